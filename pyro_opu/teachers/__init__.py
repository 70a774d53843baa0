"""Teachers: any posterior as draws of what it says of a row."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeGuard

from pyro.infer import MCMC, Predictive
from torch import Tensor, nn

from pyro_opu.checks import ArgumentError, ArgumentTypeError, is_sequence
from pyro_opu.programs.samples import posterior_of
from pyro_opu.programs.signature import call_of
from pyro_opu.teachers.arrays import ArrayFunction
from pyro_opu.teachers.base import BaseTeacher, Teacher
from pyro_opu.teachers.contexts import OutOfBagTeacher, bagged_contexts, out_of_bag
from pyro_opu.teachers.estimators import EstimatorsTeacher, is_estimator
from pyro_opu.teachers.function import FunctionTeacher, MembersTeacher
from pyro_opu.teachers.held import HeldTeacher, held_from, hold
from pyro_opu.teachers.mixture import MixtureTeacher
from pyro_opu.teachers.networks import DropoutTeacher, EnsembleTeacher
from pyro_opu.teachers.numpyro import NumpyroTeacher, is_numpyro
from pyro_opu.teachers.options import SourceOptions
from pyro_opu.teachers.outputs import Output, with_output
from pyro_opu.teachers.posteriors import PosteriorTeacher, is_posterior
from pyro_opu.teachers.pyro_model import PredictiveTeacher


class Estimator(Protocol):
    """A fitted estimator of scikit-learn."""

    def predict(self, X: object) -> object: ...


#: What :func:`~pyro_opu.as_teacher` takes.
Source = (
    Predictive | MCMC | nn.Module | Estimator | Teacher | Sequence[object] | Callable[..., object]
)

__all__ = [
    "ArrayFunction",
    "EstimatorsTeacher",
    "MixtureTeacher",
    "PosteriorTeacher",
    "Teacher",
    "as_teacher",
    "bagged_contexts",
    "out_of_bag",
]


def as_teacher(
    source: Source,
    site: str | None = None,
    *,
    inputs: Callable[..., Tensor] | None = None,
    arguments: Callable[..., object] | None = None,
    return_sites: Sequence[str] | None = None,
    num_samples: int | None = None,
    output: Output | None = None,
) -> Any:
    r"""Make a teacher, draws :math:`\pi_s = T(x; \theta_s)` on the simplex, from any posterior.

    Args:
        source: One of

            * a :class:`pyro.infer.Predictive`, from posterior samples or a guide, or a
              :class:`pyro.infer.MCMC` run; NumPyro's ``Predictive``;
            * an ``nn.Module`` with dropout, ``x -> logits (N, C)``: each draw one set of masks;
            * a sequence of ``nn.Module``: an ensemble, SGLD snapshots;
            * a sequence of posteriors, S / K draws of each, at least one of them a ``Predictive``
              or :class:`Teacher` (dropout networks: ``[as_teacher(net) for net in nets]``);
            * a callable ``x -> (S, N, C)`` or ``(x, num_draws) -> (S, N, C)``, of tensors or of
              NumPy arrays (:class:`~.arrays.ArrayFunction`);
            * a fitted scikit-learn ensemble (:class:`~.estimators.EstimatorsTeacher`);
            * a pair (posterior, function) of draws, an ArviZ ``InferenceData`` or a dict, and of
              what one of them predicts (:class:`~.posteriors.PosteriorTeacher`);
            * a :class:`Teacher`, of which what else is given here is said then.
        site: The observed site of a ``Predictive``'s model, when there are several. By default
            :func:`~pyro_opu.distill` learns all that the ``Predictive`` returns.
        inputs: Picks the input from the arguments of a model that is not called ``model(x)``, such
            as ``lambda n, x: x``; other arguments without a default are given ``None``. The student
            is called in the same way.
        arguments: The way back, ``x -> (args, kwargs)`` of the model's call, for ``inputs`` that do
            more than pick one argument.
        return_sites: Sites that a student gives back; by default those of the ``Predictive``.
            "probs" asks for the draws of class probabilities, "mean" for those of the mean of a
            real y.
        num_samples: S of a student's answers; by default the ``Predictive``'s.
        output: What the numbers of a network are: "classes", "labels" ``(N, L)``, the "mean" of a
            real y (whose noise is then not known, and taken for 1e-3), or its "mean and log
            variance", ``(N, 2)`` or a pair. By default classes; of two numbers that are no
            probabilities it must be said.

    Returns:
        A teacher with ``.probs(x, num_draws=None) -> (S, N, C)``, ``.log_probs``, ``.num_classes``.

    Raises:
        TypeError: ``source`` is none of these; ``inputs`` is not a function.
        ValueError: ``site`` for a source without sites; a source that has nothing to teach.

    Example:
        >>> import torch
        >>> from pyro_opu import as_teacher
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Dropout())
        >>> as_teacher(net).probs(torch.zeros(5, 2), num_draws=7).shape
        torch.Size([7, 5, 3])
    """
    said = SourceOptions(None, site, inputs, arguments, return_sites, num_samples)
    if isinstance(source, BaseTeacher) and output is None:
        known = replace(source.options, source=source.options.source or source)
        if said.empty:
            return source
        options = known.updated(said)
    else:
        options = replace(said, source=source)
    made = _made(options, output)
    teacher: BaseTeacher = copy.copy(made) if made is options.source else made
    teacher.options = options if output is None else replace(options, source=teacher)
    return teacher


def _made(options: SourceOptions, output: Output | None = None) -> Any:
    """The teacher of a source, as far as it is known without a look at the inputs."""
    source, site, inputs = posterior_of(options.source), options.site, options.inputs
    if not isinstance(source, BaseTeacher) and isinstance(
        found := getattr(source, "teacher", None), BaseTeacher
    ):  # exact answers
        source = found
    if output is not None:
        return with_output(_networks(source), output)
    if isinstance(source, PredictiveTeacher) and site is not None:
        return PredictiveTeacher(source.predictive, site, source.call)
    if _is_mixture(source):
        members = [_made(replace(options, source=member)) for member in source]
        return MixtureTeacher(members)
    if isinstance(source, Predictive):
        return PredictiveTeacher(source, site, call_of(inputs, source.model, options.arguments))
    if is_numpyro(source):
        return NumpyroTeacher(source, site, inputs, options.arguments)
    if site is not None:
        raise ArgumentError(
            "`site` names a site of a Pyro model, so `source` must be a pyro.infer.Predictive; got "
            f"a {type(source).__name__}. Leave `site` out."
        )
    if isinstance(source, BaseTeacher):
        return source
    if is_estimator(source):
        return EstimatorsTeacher(source)
    if is_posterior(source):
        return PosteriorTeacher(*source)
    if _are_several(source):
        return EnsembleTeacher(source)
    if isinstance(source, Teacher):
        return MembersTeacher(source)
    if isinstance(source, nn.Module):
        if any(kind.__module__.startswith("pyro.contrib.gp") for kind in type(source).__mro__):
            raise ArgumentTypeError(
                f"`source` is a Gaussian process, {type(source).__name__}, which tells mean and "
                "variance of f at x. Draw f in a model of x, and pass Predictive(model, "
                "num_samples=500):\n"
                "    def model(x, y=None):\n"
                "        loc, variance = process(x)\n"
                "        with pyro.plate('data', len(x)):\n"
                "            f = pyro.sample('f', dist.Normal(loc, variance.sqrt()))\n"
                "            pyro.sample('y', dist.Bernoulli(logits=f), obs=y)"
            )
        return DropoutTeacher(source)
    if callable(source):
        return FunctionTeacher(source)
    raise ArgumentTypeError(
        "`source` must be a pyro.infer.Predictive, an nn.Module with dropout, a sequence of "
        "nn.Modules, a callable x -> (S, N, C), a fitted ensemble of scikit-learn, a pair "
        "(posterior, function of one draw and x), or a Teacher; got "
        f"{type(source).__name__}. Wrap it in a function of x."
    )


def _networks(source: object) -> Any:
    """A network, or several, for which alone `output` is given."""
    several = source if _are_several(source) else [source]
    if all(isinstance(each, nn.Module) for each in several):
        return source
    raise ArgumentError(
        "`output` says what the numbers of an nn.Module are, or of a sequence of them; got a "
        f"{type(source).__name__}. Leave it out: a Predictive says it by its observed site, and a "
        "function of a real y returns (loc, scale)."
    )


def _are_several(source: object) -> TypeGuard[Sequence[Any]]:
    return is_sequence(source) or isinstance(source, nn.ModuleList)


def _is_mixture(source: object) -> TypeGuard[Sequence[Any]]:
    """Whether ``source`` is a sequence that holds a posterior, not plain networks alone."""
    return is_sequence(source) and any(
        isinstance(each, (Predictive, MCMC, BaseTeacher, Teacher)) for each in source
    )


def __dir__() -> list[str]:
    return sorted(__all__)
