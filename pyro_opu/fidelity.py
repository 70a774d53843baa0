"""How close a student is to its teacher, beside what is possible and what is trivial."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_opu.answers import ready_teacher, student_answer
from pyro_opu.certainty import certainty_rows, verdict_of
from pyro_opu.chunks import chunks
from pyro_opu.dirichlet import PredictiveDirichlet
from pyro_opu.fidelity_report import FidelityReport, SetFidelity
from pyro_opu.judging import (
    Judged,
    average,
    by_input,
    from_distribution,
    from_draws,
    joined,
    judge,
    moment_matched,
    posterior,
    rows_of,
    spreads,
)
from pyro_opu.restoring import seeded

if TYPE_CHECKING:
    from pyro_opu.teachers import BaseTeacher

__all__ = ["FidelityReport", "SetFidelity", "fidelity"]

#: The name of the main input set in the report.
HELD_OUT = "held-out"
# Draws per input from which the trivial student is made; they are averaged over all inputs.
_TRIVIAL_DRAWS = 64
# What a table by certainty has from the draws that judge, averaged over the turns.
_BY_CERTAINTY = {
    "kl": ("student", "kl"),
    "kl_attainable": ("attainable", "kl"),
    "energy_distance": ("student", "energy_distance"),
}


def fidelity(
    student: Any,
    teacher: Any,
    x: Tensor,
    *,
    extra: Mapping[str, Tensor] | None = None,
    num_draws: int = 500,
    chunk_size: int | None = None,
    seed: int | None = None,
    wasserstein_inputs: int = 64,
    wasserstein_draws: int = 200,
) -> FidelityReport:
    r"""Compare a student's Dirichlets with fresh draws of its teacher.

    Two independent sets of ``S`` teacher draws are taken at every input. The first, :math:`A`,
    judges; four answers are judged by it, in the same way:

    - **student**: :math:`\mathrm{Dir}(\alpha(x))`;
    - **floor**: the second set, :math:`B`, the teacher asked once more. No student is expected to
      do better at ``S`` draws, except in the KL, where a perfect student has about *half* the
      floor, since its mean is without noise;
    - **best**: per input, the Dirichlet with the mean and concentration of :math:`B` (moments).
      What lies between it and the floor is the Dirichlet family's doing, not the student's;
    - **trivial**: one Dirichlet for all inputs, with the mean and concentration of all teacher
      draws at ``x`` together. It serves the extra sets too.

    Which draws are in :math:`A` is decided at random for every input anew. A teacher's draws are
    joint over inputs, and one split for all would leave its luck in every mean.

    Where the posterior holds finitely many draws, :math:`A` and :math:`B` are disjoint random
    subsets: of ``S`` draws each if it holds ``2 S``, and otherwise its two halves. Each half then
    judges in turn and the results are averaged, so that all draws count and all four answers are
    still judged alike. The report says so.

    The rows, each a mean over inputs:

    - ``kl``: :math:`\mathrm{KL}(\text{mean of } A\,\|\,\text{mean of the answer})`, nats;
    - ``energy_distance``: unbiased, 0 for a perfect answer and possibly slightly negative;
    - ``wasserstein``: exact, between as many draws of both; *not* 0 for a perfect answer, the floor
      is. On evenly spaced inputs;
    - ``mutual_information`` (nats), ``variance`` (:math:`\sum_k \mathrm{Var}\,\pi_k`), and for both
      ``..._error``, the relative error of the mean over inputs (for the floor between two sets
      of joint draws, and without sign), and ``..._spearman``, the rank correlation over inputs. On
      draws, the variance is unbiased, and the mutual information free of its bias of order 1/S;
    - ``coverage_50``, ``coverage_90``: share of draws of :math:`A` in the central intervals of the
      answer's marginals (`central_coverage`; of an answer that is no Dirichlet those of ``S``
      draws), classes weighted by the mean of :math:`B`;
    - ``agreement``: share of inputs where the likeliest class is that of :math:`A`.

    A student's draws are independent between inputs, a teacher's are not: the report is about the
    marginal distribution at every input, which is all that a Dirichlet per input can copy.

    Args:
        student: What `distill` returns, or any object with ``distribution(x)`` or
            ``dirichlet(x)``, or a guide ``x -> Dirichlet``.
        teacher: What `as_teacher` takes.
        x: Held-out inputs, shape ``(N, ...)``.
        extra: More sets of inputs ``(M, ...)`` by name, such as out-of-domain ones.
        num_draws: Draws ``S`` in each of the two sets.
        chunk_size: Inputs handled at once. By default such that a block of draws
            ``(2 S, chunk_size, C)`` has about four million numbers; all the draws are never held.
        seed: Makes the report reproducible, and leaves torch's generators as they were.
        wasserstein_inputs: Inputs used for the 1-Wasserstein distance, at most; 0 leaves it out.
        wasserstein_draws: Draws used for it with more than two classes, at most.

    Returns:
        The report; ``print`` it, read ``report.kl``, ``report.kl_floor``, ``report["name"].kl`` ...

    Raises:
        TypeError: When ``x`` is no floating tensor, or the student does not return Dirichlets.
        ValueError: When inputs hold NaN, the posterior holds fewer than 4 draws, or the student
            has other classes than the teacher.

    Example:
        >>> student = lambda x: torch.distributions.Dirichlet(1 + 4 * torch.softmax(x, -1))
        >>> teacher = lambda x, num_draws: student(x).sample((num_draws,))
        >>> report = fidelity(student, teacher, torch.eye(3), num_draws=100, seed=0)
        >>> report.energy_distance < 0.01 < report.energy_distance_trivial
        True
    """
    from pyro_opu.inputs import check_inputs

    if HELD_OUT in (extra or {}):
        raise ValueError(f"`extra` must not use the name {HELD_OUT!r}, which is that of `x`.")
    sets = {HELD_OUT: x, **(extra or {})}
    for name, inputs in sets.items():
        check_inputs(inputs, "x" if name == HELD_OUT else f"extra[{name!r}]")
    if num_draws < 2:
        raise ValueError(f"`num_draws` must be at least 2, to see a spread; got {num_draws}.")
    with seeded(seed), torch.no_grad():
        ready = ready_teacher(teacher, x)
        held = ready.max_draws
        if held is not None and held < 4:
            raise ValueError(
                "`teacher` must hold at least 4 posterior draws, two in each half; it holds "
                f"{held}. Sample a longer posterior, or compare the means with `kl_divergence`."
            )
        plan = _Plan(
            num_draws=num_draws if held is None else min(num_draws, held // 2),
            size=math.inf if held is None else held,
            chunk_size=chunk_size,
            wasserstein_inputs=wasserstein_inputs,
            wasserstein_draws=wasserstein_draws,
        )
        trivial = _trivial_student(ready, x, plan)
        return FidelityReport(
            {
                name: _compare(name, student, ready, trivial, inputs, plan)
                for name, inputs in sets.items()
            },
            num_draws=plan.num_draws,
            max_draws=held,
        )


class _Plan(NamedTuple):
    num_draws: int
    size: float  # of a finite posterior, where both sets of draws judge in turn; or infinite
    chunk_size: int | None
    wasserstein_inputs: int
    wasserstein_draws: int


def _trivial_student(teacher: BaseTeacher, x: Tensor, plan: _Plan) -> PredictiveDirichlet:
    """One Dirichlet with the first two moments of the teacher's draws at all inputs together."""
    num_draws = min(plan.num_draws, _TRIVIAL_DRAWS)
    mean, square = x.new_zeros(()), x.new_zeros(())
    for part in chunks(len(x), num_draws, teacher.num_classes, plan.chunk_size):
        draws = teacher.probs(x[part], num_draws)
        mean = mean + draws.mean(0).sum(0) / len(x)
        square = square + draws.square().sum(-1).mean(0).sum() / len(x)
    within, between = 1 - square, square - mean.square().sum()
    return moment_matched(mean, torch.where(between > 0, within / between, torch.inf))


def _teacher_draws(teacher: BaseTeacher, x: Tensor, plan: _Plan) -> Tensor:
    """Draws ``(2 S, n, C)`` in random order: the order may have been that of a Markov chain."""
    draws = teacher.probs(x, 2 * plan.num_draws)
    return draws[torch.randperm(len(draws), device=draws.device)]


def _split(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Two halves, another split at every input: then chance in it averages out over inputs."""
    order = torch.rand(draws.shape[:2], device=draws.device).argsort(0)
    first, second = draws.gather(0, order[..., None].expand_as(draws)).chunk(2)
    return first, second


def _compare(
    name_of_set: str,
    student: Any,
    teacher: BaseTeacher,
    trivial: PredictiveDirichlet,
    x: Tensor,
    plan: _Plan,
) -> SetFidelity:
    """All rows of one set of inputs: chunk by chunk, then summed up."""
    asked = min(plan.wasserstein_inputs, len(x))
    for_wasserstein = torch.zeros(len(x), dtype=torch.bool)
    for_wasserstein[torch.linspace(0, len(x) - 1, asked).round().long()] = True
    turns: list[list[Judged]] = [[] for _ in range(1 + math.isfinite(plan.size))]
    for part in chunks(len(x), 2 * plan.num_draws, teacher.num_classes, plan.chunk_size):
        answer = student_answer(student, x[part])
        draws = _teacher_draws(teacher, x[part], plan)
        if answer.event_shape[0] != teacher.num_classes:
            raise ValueError(
                f"`student` has {answer.event_shape[0]} classes and `teacher` has "
                f"{teacher.num_classes}; they must answer the same question."
            )
        first, second = _split(draws)
        taught = posterior(first, second, plan.size)
        mine = from_distribution(answer, plan.num_draws)
        again = spreads(draws) | by_input(mine, taught)
        for judged, pair in zip(turns, ((first, second), (second, first)), strict=False):
            target, other = pair
            answers = {
                "student": mine,
                "floor": from_draws(other),
                "trivial": from_distribution(trivial.expand(other.shape[1:2]), plan.num_draws),
            }
            here = for_wasserstein[part]
            found = judge(from_draws(target), answers, taught, here, plan.wasserstein_draws)
            judged.append(again | found)
    values = [joined(judged) for judged in turns]
    certainty = {
        name: value for (column, name), value in values[0].items() if column == "certainty"
    }
    for name, key in _BY_CERTAINTY.items():
        certainty[name] = np.mean([turn[key] for turn in values], 0)
    rows = certainty_rows(certainty)
    faithful, verdict = verdict_of(certainty, rows)
    return SetFidelity(
        name=name_of_set,
        num_inputs=len(x),
        num_classes=teacher.num_classes,
        wasserstein_inputs=asked,
        rows=average([rows_of(turn) for turn in values]),
        by_certainty=rows,
        faithful=faithful,
        verdict=verdict,
    )
