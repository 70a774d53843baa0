"""How close a student is to its teacher, beside what is possible and what is trivial."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import permutations
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from pyro_opu.checks import check_inputs, check_mapping, check_row_shape, check_seed, positive_int
from pyro_opu.distributions import Answer as Distribution
from pyro_opu.distributions.dirichlet import PredictiveDirichlet, moment_matched
from pyro_opu.reports.answers import ready_teacher, student_answer
from pyro_opu.reports.certainty import by_certainty, certainty_rows, verdict_of
from pyro_opu.reports.fidelity_report import FidelityReport, SetFidelity
from pyro_opu.reports.judging import (
    Judged,
    average,
    by_input,
    from_distribution,
    from_draws,
    joined,
    judge,
    posterior,
    rows_of,
    spreads,
)
from pyro_opu.rng import seeded
from pyro_opu.utils.chunks import chunks

if TYPE_CHECKING:
    from pyro_opu.regression import RegressionFidelity
    from pyro_opu.teachers import BaseTeacher

__all__ = ["FidelityReport", "SetFidelity", "fidelity"]

#: The name of the main input set in the report.
HELD_OUT = "held-out"
# Draws per input from which the trivial student is made; they are averaged over all inputs.
_TRIVIAL_DRAWS = 64


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
) -> FidelityReport | RegressionFidelity:
    r"""Compare a student's answers with draws of its teacher, and with what a perfect one scores.

    Two disjoint sets of ``S`` teacher draws are taken at every input. The first, :math:`A`, judges;
    the second is :math:`B`. Judged by :math:`A` in the same way are

    - **student**: mostly :math:`\mathrm{Dir}(\alpha(x))`;
    - **attainable**: a perfect student, the very posterior that was taught: the mean of infinitely
      many draws where the teacher gives fresh ones at every call, of all the M draws where it holds
      so many. It scores more than 0 in the KL, since the mean of :math:`A` is not that of the
      posterior;
    - **floor**: :math:`B`, the teacher asked once more;
    - **best**: per input, the Dirichlet with the mean and the concentration (moments) of the
      posterior, without the sampling error of its fit. What lies between it and the attainable is
      the Dirichlet family's doing, not the student's;
    - **trivial**: one Dirichlet for all inputs, with the mean and concentration of all teacher
      draws at ``x`` together. It serves the extra sets too.

    Which draws are in :math:`A` is decided at random for every input anew. A teacher's draws are
    joint over inputs, and one split for all would leave its luck in every mean.

    Where the posterior holds M draws, :math:`A` and :math:`B` are random subsets: of ``S`` draws
    each if it holds ``2 S``, and otherwise its two halves. Each then judges in turn and the results
    are averaged, so that all draws count. M is :math:`\infty` otherwise.

    The rows, each a mean over inputs:

    - ``kl``: :math:`\mathrm{KL}(\bar A\,\|\,m)` of the means of draws and answer, nats. Attainable
      is :math:`2 (1 - S / M)\, \mathrm{KL}(\bar A\,\|\,\overline{A \cup B})`: exact for a posterior
      of 2 S draws, a quarter of the floor there; half of the floor for fresh draws, to second
      order in the sampling error (too low for classes so rare that few draws have them);
    - ``kl_ratio``: ``kl`` as a multiple of the attainable. **The headline**: 1 is a perfect student
      of any posterior;
    - ``energy_distance``: from the posterior, the M held draws equally likely, or what the fresh
      ones are a sample of. Unbiased: 0 is attainable for both, and it may be slightly negative. The
      best Dirichlet's is extrapolated from fits to S and to 2 S draws, with an error of order
      :math:`1 / S^2`;
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

    A mean over all inputs hides those the teacher is sure of. ``by_certainty`` has a row for inputs
    where the largest mean probability of the teacher is below .7, .7-.9, .9-.99, .99-.999 and
    above: their number, KL, energy distance, mutual information and concentration
    (:class:`~pyro_opu.reports.certainty.CertaintyRow`).

    The report begins with its ``verdict``. A student is ``faithful`` where

    - its KL is at most twice the attainable: the error of its mean is then no larger than the
      error that the mean of ``S`` draws, its stand-in, has itself; and
    - its mutual information is within 10 % of the teacher's;

    each beyond what chance explains: three standard errors, over inputs for the KL and over the
    teacher's draws (which inputs share) for the mutual information, and 1e-7 nats, which float32
    answers do not resolve. It must be so on average and in every class of certainty with at least
    10 inputs; the verdict says where it is not. A student beyond a limit by less than that counts
    as ``faithful``, and the verdict says "Not shown to be unfaithful", with the limits.

    A student's draws are independent between inputs, a teacher's are not: the report is about the
    marginal distribution at every input, which is all that a Dirichlet per input can copy.

    Args:
        student: What `distill` returns, or any object with ``distribution(x)`` or
            ``dirichlet(x)``, or a guide ``x -> Dirichlet``.
        teacher: What `as_teacher` takes. A regressor is compared as
            :func:`~pyro_opu.regression_fidelity` says.
        x: Held-out inputs, shape ``(N, ...)``.
        extra: More sets of inputs ``(M, ...)`` by name, such as out-of-domain ones. Not of a
            regressor.
        num_draws: Draws ``S`` in each of the two sets.
        chunk_size: Inputs handled at once. By default such that a block of draws
            ``(2 S, chunk_size, C)`` has about four million numbers; all the draws are never held.
        seed: Makes the report reproducible, and leaves torch's generators as they were.
        wasserstein_inputs: Inputs used for the 1-Wasserstein distance, at most; 0 leaves it out. It
            is of classes alone.
        wasserstein_draws: Draws used for it with more than two classes, at most.

    Returns:
        The report; ``print`` it, read ``report.kl_ratio``, ``report.verdict``, ``report.kl``,
        ``report.kl_attainable``, ``report["name"].kl`` ... Of a regressor a
        :class:`~pyro_opu.regression.RegressionFidelity`.

    Raises:
        TypeError: When ``x`` is no floating tensor, ``extra`` no mapping, or the student does not
            return Dirichlets.
        ValueError: When inputs or answers hold NaN, extra inputs have another shape, a number is
            out of range, the posterior holds fewer than 4 draws, or the student has other classes
            than the teacher.

    Example:
        >>> student = lambda x: torch.distributions.Dirichlet(1 + 4 * torch.softmax(x, -1))
        >>> teacher = lambda x, num_draws: student(x).sample((num_draws,))
        >>> report = fidelity(student, teacher, torch.eye(3).repeat(20, 1), num_draws=100, seed=0)
        >>> report.faithful, report.kl_ratio < 1.5, report.energy_distance_trivial > 0.01
        (True, True, True)
    """
    from pyro_opu.regression import is_regressor, regression_fidelity  # built on this module

    sets = _checked_sets(x, extra)
    positive_int("num_draws", num_draws, 2, "One draw has no spread.")
    positive_int("wasserstein_inputs", wasserstein_inputs, 0, "0 leaves the distance out.")
    positive_int("wasserstein_draws", wasserstein_draws)
    if is_regressor(teacher, x, None, None):
        if extra:
            raise ValueError(
                "`extra` must be left out where `teacher` is a regressor; got "
                f"{', '.join(map(repr, extra))}. Call `fidelity` once for every set of inputs."
            )
        return regression_fidelity(
            student, teacher, x, num_draws=num_draws, chunk_size=chunk_size, seed=seed
        )
    with seeded(check_seed(seed)), torch.no_grad():
        ready = ready_teacher(teacher, x)
        _check_answer(student_answer(student, x[:1]), ready.num_classes)
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


def _checked_sets(x: Tensor, extra: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """All sets of inputs by name."""
    check_inputs(x)
    extra = check_mapping("extra", extra, "name -> inputs")
    for name, inputs in extra.items():
        if name == HELD_OUT:
            raise ValueError(
                f"`extra` must not use the name {HELD_OUT!r}, which is that of `x`. Choose another."
            )
        argument = f"extra[{name!r}]"
        check_inputs(inputs, argument)
        check_row_shape(argument, inputs, x.shape[1:], "Bring it into the form of `x`.")
    return {HELD_OUT: x, **extra}


def _check_answer(answer: Distribution, num_classes: int) -> None:
    """Refuse an answer to another question, and one that is no number."""
    if answer.event_shape[0] != num_classes:
        raise ValueError(
            f"`student` must have the teacher's {num_classes} classes; it has "
            f"{answer.event_shape[0]}. Pass a student that was distilled from this teacher."
        )
    undefined = answer.log_mean.isnan().any(-1) | answer.log_concentration.isnan()
    if undefined.any():
        raise ValueError(
            "`student` must answer with numbers; its mean or its concentration is NaN at "
            f"{int(undefined.sum())} of {len(undefined)} inputs. Check its weights "
            "(torch.isfinite), or distil it again."
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
        _check_answer(answer, draws.shape[-1])
        first, second = _split(draws)
        taught = posterior(first, second, plan.size)
        mine = from_distribution(answer, plan.num_draws)
        again = spreads(draws)
        sides = [from_draws(side, plan.size) for side in (first, second)]
        for judged, (target, other) in zip(turns, permutations(sides), strict=False):
            alike = trivial.expand(x[part].shape[:1])
            answers = {
                "student": mine,
                "floor": other,
                "trivial": from_distribution(alike, plan.num_draws),
            }
            here = for_wasserstein[part]
            found = judge(target, answers, taught, here, plan.wasserstein_draws)
            judged.append(again | found | by_input(mine, target, other, taught))
    values = [joined(judged) for judged in turns]
    certainty = by_certainty(values)
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
