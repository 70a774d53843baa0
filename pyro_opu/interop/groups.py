"""ArviZ's groups as plain arrays, and those of a student or a teacher at inputs and labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from pyro.infer import MCMC, Predictive
from torch import Tensor

from pyro_opu.checks import ArgumentError, ArgumentTypeError, check_tensor, positive_int
from pyro_opu.reports.answers import at_border, is_student, ready_teacher, student_answer
from pyro_opu.teachers import Source, Teacher
from pyro_opu.teachers.base import DEFAULT_DRAWS

#: Variables of one group by name.
Arrays = dict[str, np.ndarray]


class Wanted(NamedTuple):
    """What was asked for; see :func:`pyro_opu.to_inference_data`."""

    log_likelihood: bool
    posterior_predictive: bool
    probs: bool
    num_draws: int | None
    num_chains: int
    predictions: Any = None


class Groups(NamedTuple):
    """What is to be converted."""

    values: dict[str, Arrays]  # group -> variable -> array; draws begin with (chain, draw)
    dims: dict[str, list[str]]  # variable -> names of its other axes, from the first on
    note: str  # what the chains are, in words: the attribute "chains" of the posterior
    independent: bool = False  # whether the draws are those of a student, and no chain's


def arrays(values: Mapping[str, Tensor]) -> Arrays:
    """Tensors as NumPy arrays, by the same names."""
    return {name: value.detach().cpu().numpy() for name, value in values.items()}


def gives_class_probs(source: Source) -> bool:
    """Whether this may be a student or a teacher; a run or a ``Predictive`` knows its latents."""
    if isinstance(source, (MCMC, Predictive)):
        return False
    return callable(source) or isinstance(source, (list, tuple, Teacher))


def class_groups(
    source: Any, wanted: Wanted, x: Tensor | None = None, y: Tensor | None = None
) -> Groups:
    r"""Draws :math:`\pi_s` ``(chain, draw, N, C)`` of a student or a teacher at inputs and labels.

    The labels of draw s are drawn from its own :math:`\pi_s`: a teacher's stay joint over inputs.
    """
    form, x, source = at_border(x, source)
    independent = is_student(source, x)
    site, flat, note = _log_draws(source, x, wanted.num_draws, independent)
    held = Predictive(lambda: None, {"probs": flat.cpu()})
    draws = chains_of(held, wanted.num_chains)["probs"]
    points = draws.exp()
    groups: dict[str, Arrays] = {"posterior": arrays({"probs": points})}
    if wanted.posterior_predictive:
        labels = torch.multinomial(points.flatten(0, -2), 1).reshape(points.shape[:-1])
        groups["posterior_predictive"] = arrays({site: labels})
        if wanted.probs:
            groups["posterior_predictive"]["probs"] = groups["posterior"]["probs"]
    if y is not None:
        labels = _checked_labels(y, *points.shape[-2:])
        if wanted.log_likelihood:
            groups["log_likelihood"] = arrays({site: log_prob_of(labels, draws)})
        groups["observed_data"] = arrays({site: labels})
    inputs = form.named_parts(x)
    groups["constant_data"] = arrays(inputs)
    dims = {"probs": ["data", "class"], site: ["data"], **{name: ["data"] for name in inputs}}
    note = f"{note}, cut into {wanted.num_chains} chain(s)"
    if wanted.predictions is not None:
        groups |= _predicted(source, wanted)
    return Groups(groups, dims, note, independent)


def _predicted(source: Source, wanted: Wanted) -> dict[str, Arrays]:
    """Labels and probabilities at new rows, by another call."""
    args, kwargs = new_call(wanted.predictions)
    asked = wanted._replace(predictions=None, posterior_predictive=True, probs=True)
    new = class_groups(source, asked, *args, **kwargs).values
    return {
        "predictions": new["posterior_predictive"],
        "predictions_constant_data": new["constant_data"],
    }


def new_call(given: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a call at new rows: a tuple by position, a dict by name, or x alone."""
    if isinstance(given, Mapping):
        return (), dict(given)
    return (given if isinstance(given, tuple) else (given,)), {}


def _log_draws(
    source: Source, x: Tensor, num_draws: int | None, of_student: bool
) -> tuple[str, Tensor, str]:
    """The observed site's name, logarithms of the draws ``(S, N, C)``, and what they are."""
    if not of_student:
        teacher = ready_teacher(source, x)
        return getattr(teacher, "site", "obs"), teacher.log_probs(x, num_draws), "teacher's draws"
    answer = student_answer(source, x)
    count = getattr(source, "num_samples", DEFAULT_DRAWS) if num_draws is None else num_draws
    positive_int("num_draws", count, advice="Leave it out for as many as the student returns.")
    labels = [layout.name for layout in getattr(source, "sites", ()) if not layout.shows_parameters]
    note = "student's draws, independent of each other and between inputs"
    return (*labels, "obs")[0], answer.log_rsample((count,)), note


def log_prob_of(labels: Tensor, log_probs: Tensor) -> Tensor:
    r"""The label's log-probability ``(..., N)`` in float64, of log-probabilities ``(..., N, C)``.

    A probability near one is rounded to it; that of the other classes is not, so that it is
    :math:`\log(1 - \sum_{c \ne y} \pi_c)`. Otherwise the sure rows of many draws have equal
    likelihoods, for which ``az.loo`` of ArviZ 1.x fails.
    """
    index = labels.expand(log_probs.shape[:-1])[..., None]
    exact = log_probs.double()
    own = exact.gather(-1, index).squeeze(-1)
    others = exact.exp().scatter(-1, index, 0.0).sum(-1)
    return torch.where(others < 0.5, torch.log1p(-others.clamp_max(0.5)), own)


def _checked_labels(y: Any, rows: int, classes: int) -> Tensor:
    """Class labels ``(N,)`` as integers, where the draws are."""
    given = check_tensor("y", y, f"({rows},)").detach().cpu()
    labels = given.long()
    whole = given.shape == (rows,) and bool((labels == given).all())
    if not whole or labels.min() < 0 or labels.max() >= classes:
        raise ArgumentError(
            f"`y` must hold the classes of the {rows} rows of x, whole numbers from 0 to "
            f"{classes - 1}, shape ({rows},); got shape {tuple(y.shape)}, values from "
            f"{given.min():g} to {given.max():g}. For one-hot rows pass y.argmax(-1)."
        )
    return labels


def chains_of(run: MCMC | Predictive, num_chains: int = 1) -> dict[str, Tensor]:
    """Draws ``{site: (chains, draws, ...)}`` of a run, by name."""
    if isinstance(run, MCMC):
        if run._samples is None:
            raise ArgumentError("`run` must have sampled; got an MCMC before .run(x, y). Run it.")
        samples = run.get_samples(group_by_chain=True)
        return {name: samples[name].detach() for name in sorted(samples)}
    if not isinstance(run, Predictive):
        raise ArgumentTypeError(
            "`run` must be a pyro.infer.MCMC after .run(...), or a Predictive; got "
            f"{type(run).__name__}. Draws of your own go in as Predictive(model, samples)."
        )
    samples = run.posterior_samples
    if not samples:
        raise ArgumentError(
            "`run` must hold posterior samples; got a Predictive of a guide or the prior, whose "
            "draws are independent. Pass the MCMC run, or Predictive(model, samples)."
        )
    counts = {name: len(value) for name, value in samples.items()}
    count = next(iter(counts.values()))
    if set(counts.values()) != {count}:
        raise ArgumentError(
            f"`run` must hold as many draws of every site; got {counts}. Pass samples of one run."
        )
    if count % positive_int("num_chains", num_chains):
        raise ArgumentError(
            f"`num_chains` must be a positive divisor of the {count} posterior samples; got "
            f"{num_chains!r}. Pass the number of chains that were sampled."
        )
    return {n: samples[n].detach().unflatten(0, (num_chains, -1)) for n in sorted(samples)}
