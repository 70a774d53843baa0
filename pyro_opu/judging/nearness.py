"""How near a student is on some inputs: its mean, its epistemic part and its shape."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pyro_opu.judging.base import LEVELS
from pyro_opu.judging.yardstick import (
    BEYOND,
    FEWEST,
    FEWEST_ROWS,
    MOST_MEAN,
    NOTHING,
    Array,
    Finding,
    SingleInputs,
    all_of,
    of_mean,
    of_shape,
    of_single_inputs,
    quotient,
)

__all__ = ["Nearness", "nearness"]

#: Share of the inputs at which a mean differs by no more than is said.
MOST_INPUTS = 0.95


@dataclass(frozen=True)
class Nearness:
    """The three measures, and whether each keeps to its limit.

    Attributes:
        num_inputs: N.
        held: M, draws that the posterior holds; infinite where it draws afresh.
        draws: The mean's error, in draws.
        single: The epistemic part at single inputs.
        epistemic: The mean epistemic part as a multiple of the teacher's; NaN of nothing.
        share: Energy distance as a share of the draws' spread.
        coverage: Coverage of central intervals, by level.
        gap: How far the mean is off at 95 % of the inputs: the largest difference of a class
            probability, or of the mean of y in deviations of y; without what the draws add.
        gap_by_chance: What the draws that judge add to it.
        other: Share of the inputs whose likeliest class is another; NaN where there is none.
        other_by_chance: What the draws that judge make of a perfect student.
        within: By "mean", "epistemic" and "shape", whether all its numbers keep to their limits.
    """

    num_inputs: int
    held: float
    draws: Finding
    single: SingleInputs
    epistemic: float
    share: Finding
    coverage: dict[float, Finding]
    gap: float
    gap_by_chance: float
    other: float
    other_by_chance: float
    within: dict[str, bool | None]

    @property
    def faithful(self) -> bool | None:
        """True if all numbers keep to their limits, ``None`` where inputs or draws are too few."""
        found = all_of(list(self.within.values()))
        enough = self.num_inputs >= (FEWEST_ROWS if found else FEWEST)
        return found if enough else None

    @property
    def off(self) -> float:
        """By how much the coverage is off, at the worse level."""
        return max(abs(each.value - level) for level, each in self.coverage.items())


def nearness(
    values: Mapping[str, Array], num_draws: int, held: float, most_mean: float = MOST_MEAN
) -> Nearness:
    """From numbers of every input ``(N,)``, by name.

    Args:
        values: "kl", "kl_attainable"; "uncertainty", "uncertainty_teacher", with "noise", shares of
            the variance of the latter's sum, and "noise_single", the standard error at one input
            as a share; "distance", "spread", "coverage_50", "coverage_90"; "gap", "gap_by_chance",
            and of classes "other", "other_by_chance".
            The draws of a sure posterior are rare where they matter, and may all be missing. What
            is to be expected if the student is right counts where it is more: "kl_expected",
            "noise_expected", and "uncertainty_redrawn", what as many draws of its own say. One that
            is not sure enough cannot hide behind it, as its epistemic part gives it away.
        num_draws: S, the draws that judge.
        held: M.
        most_mean: Factor that the mean epistemic part may be off by.
    """
    mine, theirs = values["uncertainty"], values["uncertainty_teacher"]
    redrawn, expected = (values.get(n) for n in ("uncertainty_redrawn", "noise_expected"))
    error = math.sqrt(max(0.0, values["noise"].sum())) / len(mine)
    if expected is not None and redrawn is not None:
        own = math.sqrt(max(0.0, expected.sum())) / len(mine)
        error = max(error, own, abs(float((redrawn - mine).mean())))
    common = quotient(error, float(theirs.mean()))
    single = of_single_inputs(mine, theirs, values["noise_single"], common, redrawn)
    share, coverage = _shape(values, num_draws, held)
    draws = of_mean(
        values["kl"], values["kl_attainable"], num_draws, held, values.get("kl_expected")
    )
    ratio = quotient(float(mine.mean()), float(theirs.mean()))
    beyond = max(mine.mean() - most_mean * theirs.mean(), theirs.mean() / most_mean - mine.mean())
    mean_is_right = bool(beyond <= BEYOND * error + NOTHING)
    gap, by_chance = (float(np.quantile(values[n], MOST_INPUTS)) for n in ("gap", "gap_by_chance"))
    return Nearness(
        num_inputs=len(mine),
        held=held,
        draws=draws,
        single=single,
        epistemic=ratio,
        share=share,
        coverage=coverage,
        gap=math.sqrt(max(gap**2 - by_chance**2, 0.0)),
        gap_by_chance=by_chance,
        other=float(values["other"].mean()) if "other" in values else math.nan,
        other_by_chance=float(values["other_by_chance"].mean()) if "other" in values else math.nan,
        within={
            "mean": draws.within,
            "epistemic": all_of([single.found.within, mean_is_right]),
            "shape": all_of([each.within for each in (share, *coverage.values())]),
        },
    )


def _shape(
    values: Mapping[str, Array], num_draws: int, held: float
) -> tuple[Finding, dict[float, Finding]]:
    """The shape at inputs whose epistemic part matters; at all where hardly any does."""
    theirs = values["uncertainty_teacher"]
    some = theirs > NOTHING
    few = int(some.sum()) < FEWEST
    some = some | few
    covered = {level: values[name][some] for name, level in LEVELS.items()}
    # Halves are split anew at every input: what all have in common is the error of both together.
    share, coverage = of_shape(
        values["distance"][some], values["spread"][some], covered, 2 * num_draws, held
    )
    if few:
        nothing = True if theirs.mean() <= NOTHING else None
        share = share._replace(within=nothing)
        coverage = {level: each._replace(within=nothing) for level, each in coverage.items()}
    return share, coverage
