"""Exact answers of any posterior: its own draws, all at once, with nothing learned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, ArgumentTypeError, positive_int
from pyro_opu.distributions import Answer
from pyro_opu.ladder.base import Exact
from pyro_opu.ladder.files import FEW, labels_by
from pyro_opu.parts import Outcome, Part, by_part
from pyro_opu.programs.batched import BatchedPredictive
from pyro_opu.teachers import PredictiveTeacher, Source, as_teacher
from pyro_opu.teachers.base import BaseTeacher

#: What the records of a ``Predictive`` rest on.
FIXED = {"model", "guide", "posterior_samples", "num_samples", "return_sites"}

__all__ = ["ExactPosterior", "ExactPredictive", "batched", "exact"]


def exact(
    source: Source,
    site: str | None = None,
    *,
    num_draws: int | None = None,
    chunk_size: int | None = None,
) -> Any:
    r"""Make the exact answer of a posterior fast: the same draws as one program, nothing learned.

    What the posterior does to tensors is recorded under all draws at once, at the first call of a
    form; later calls run this record alone, without Pyro, for any number of rows where the model
    allows it. What follows from the draws alone, or from the inputs alone, is computed once. The
    record is compared with the model at every new number of rows. What cannot be recorded is
    evaluated as :func:`~pyro_opu.as_teacher` does, by :func:`torch.vmap` or in a loop, and a
    warning says why. A model is recorded anew where its draws, or the weights, parts or modes of
    modules that it calls, have changed. Where anything else that it reads changes, such as a number
    in an attribute, make another; of a list of networks the weights are copied at the first call.

    Args:
        source: What :func:`~pyro_opu.as_teacher` takes, or what it has made. A ``Predictive``
            (samples, guide or prior) gives one: ``exact(predictive)(x)`` has all of its sites,
            keys, shapes and dtypes, under the same posterior draws, joint over the inputs; what a
            draw determines is equal to rounding, and what the model samples afresh, such as
            labels, has the same distribution. The result for any other posterior is called with
            the inputs, and gives draws of what is observed.
        site: The observed site of ``.probs`` and ``.uncertainty``, where a model has several.
        num_draws: Draws behind ``.probs`` and ``.uncertainty``; by default all of a posterior that
            holds them, and of any other those of its ``num_samples``, drawn once.
        chunk_size: Numbers in the widest tensor of one evaluation, which bounds memory beside the
            samples and the results. By default 2 million on a processor and more on a GPU.

    Returns:
        An :class:`~pyro_opu.ladder.base.Exact`: a teacher, with ``.uncertainty(x)``.

    Raises:
        TypeError: ``source`` is none of these, or a ``Predictive`` with weights.
        ValueError: ``num_draws`` or ``chunk_size`` is not a positive integer.

    Example:
        >>> import pyro, pyro.distributions as dist, torch
        >>> from pyro.infer import Predictive
        >>> from pyro_opu import exact
        >>> def model(x, y=None):
        ...     w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        ...     with pyro.plate("data", len(x)):
        ...         probs = pyro.deterministic("probs", torch.sigmoid(x @ w))
        ...         pyro.sample("obs", dist.Bernoulli(probs), obs=y)
        >>> predictive, x = exact(Predictive(model, {"w": torch.randn(300, 2)})), torch.randn(5, 2)
        >>> {site: tuple(draws.shape) for site, draws in predictive(x).items()}
        {'obs': (300, 5), 'probs': (300, 5)}
        >>> predictive.uncertainty(x).epistemic.shape, predictive.probs(x).shape
        (torch.Size([5]), torch.Size([300, 5, 2]))
    """
    for name, value in (("num_draws", num_draws), ("chunk_size", chunk_size)):
        if value is not None:
            positive_int(name, value, advice="Leave it out.")
    if isinstance(source, Exact):
        source = source.teacher
    teacher: BaseTeacher = as_teacher(source, site)
    if isinstance(teacher, PredictiveTeacher):
        return ExactPredictive(teacher, num_draws, chunk_size)
    return ExactPosterior(teacher, num_draws, chunk_size)


batched = exact


class ExactPredictive(Exact, BatchedPredictive):
    """The exact answers of a ``Predictive``, which is a ``Predictive`` itself."""

    teacher: PredictiveTeacher

    def __init__(
        self, teacher: PredictiveTeacher, num_draws: int | None, chunk_size: int | None
    ) -> None:
        BatchedPredictive.__init__(self, teacher.predictive, chunk_size)
        self._begin(teacher, num_draws, chunk_size)

    def __getstate__(self) -> dict[str, Any]:
        return BatchedPredictive.__getstate__(self) | {"_said": {}}

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FIXED and "teacher" in self.__dict__:
            raise ArgumentError(
                f"`{name}` must stay as it is, since what is recorded rests on it; got another. "
                "Make another: exact(Predictive(...))."
            )
        super().__setattr__(name, value)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draw from the predictive distribution: what ``Predictive`` gives, key by key."""
        if self._seen is None:
            self._seen = _few_rows(args, kwargs)
        return super().forward(*args, **kwargs)


class ExactPosterior(Exact):
    """The exact answers of a posterior that is no ``Predictive``, called as a student is.

    ``exact(x)`` gives draws of what is observed, ``{"obs": (S, N)}``, one for every posterior draw:
    they are joint over the inputs. Several inputs are given by position or by name, as to the
    posterior itself.
    """

    def __init__(self, teacher: BaseTeacher, num_draws: int | None, chunk_size: int | None) -> None:
        self._begin(teacher, num_draws, chunk_size)

    def __call__(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Draws of what is observed, and of its parameters where ``return_sites`` asks for them."""
        x = self._look((args[0] if len(args) == 1 else args) if args else kwargs)
        said = self._whole(x, None)
        asked = None if self.teacher.options is None else self.teacher.options.return_sites
        layouts = self.teacher.layouts(x, asked)
        return self.outcome.sample(_Drawn(said, self.outcome), layouts, len(said))

    def __repr__(self) -> str:
        return f"ExactPosterior({self.teacher!r})"


def _few_rows(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The first rows of a call's inputs, ``None`` where something else is among them."""
    given = [*args, *kwargs.values()]
    known = given and all(isinstance(each, Tensor) and each.dim() for each in given)
    if not known or (args and kwargs) or len({len(each) for each in given}) > 1:
        return None
    few = {name: value[:FEW].detach().clone() for name, value in kwargs.items()}
    rows = tuple(value[:FEW].detach().clone() for value in args)
    return few or (rows[0] if len(rows) == 1 else rows)


class _Drawn(Answer):
    """Draws ``(S, N, K)`` in the place of a student's answer."""

    def __init__(self, said: Tensor, outcome: Outcome) -> None:
        self._said, self._parts = said, outcome.parts
        self.batch_shape = said.shape[1:2]

    def draw(self, count: int, parameters: bool = True) -> list[tuple[Tensor, Tensor]]:
        """What is observed of each part, ``(S, N L)``, and what it was drawn with."""
        pairs = zip(self._parts, by_part(self._said, self._parts), strict=True)
        return [_observed(part, values) for part, values in pairs]

    def predict(self, count: int, parameters: bool = True) -> tuple[Tensor, Tensor]:
        """The same of the only part."""
        return self.draw(count)[0]


def _observed(part: Part, said: Tensor) -> tuple[Tensor, Tensor]:
    """One draw of what is observed under every draw, and the parameters."""
    if part.kind == "classes":
        probs = said.exp()
        return labels_by(probs, torch.rand_like(probs[..., :1])), probs
    if part.kind == "real":
        mean, log_scale = said.unbind(-1)
        return mean + log_scale.exp() * torch.randn_like(mean), mean
    raise ArgumentTypeError(
        f"`source` observes {part.described}, of which a draw says mean and variance alone. Pass a "
        "Predictive, which samples it, or call .draws(x)."
    )
