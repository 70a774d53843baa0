"""A verdict in terms of use: what differs, what keeps to its limit, a grade, and a next step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pyro_opu.judging.advice import Known, next_step
from pyro_opu.judging.nearness import Nearness
from pyro_opu.judging.yardstick import (
    FAITHFUL,
    FEWEST,
    FEWEST_ROWS,
    LEAST_RANKS,
    MOST_MEAN,
    NOT_GRADED,
    TEACHER_RANKS,
    grade_of,
    in_draws,
)
from pyro_opu.reports.certainty import CertaintyRow
from pyro_opu.reports.fidelity_report import Row

__all__ = ["CLASSES", "REAL", "Terms", "Verdict", "verdict_of"]


class Terms(NamedTuple):
    """The words of an outcome."""

    gap: str  #: What differs, and a verb.
    unit: str  #: Of a hundredth of it.
    mean: str  #: What errs as that of so many draws, and a verb.
    epistemic: str  #: Its measure.
    ranks: str  #: The row of the ranks by it.


CLASSES = Terms(
    "class probabilities differ",
    "points",
    "mean errs",
    "mutual information",
    "mutual_information_spearman",
)
REAL = Terms(
    "the mean of y differs",
    "% of the deviation of y",
    "mean and variance of y err",
    "epistemic variance",
    "epistemic_spearman",
)


class Verdict(NamedTuple):
    """What a report begins with."""

    faithful: bool | None
    grade: str
    sentence: str  #: Whether it is faithful, and what that means in use.
    measures: str  #: The three measures, and what is beyond its limit.
    advice: str  #: The next step.


def verdict_of(
    near: Nearness,
    classes: Sequence[CertaintyRow],
    rows: dict[str, Row],
    terms: Terms,
    known: Known,
) -> Verdict:
    """The verdict on all inputs, on every class of certainty with enough, and on the ranks."""
    ranks = rows[terms.ranks]
    unranked = (
        near.num_inputs >= FEWEST and ranks.student < LEAST_RANKS and ranks.floor >= TEACHER_RANKS
    )
    missed = [row for row in classes if row.faithful is False]
    faithful = near.faithful
    if near.num_inputs >= FEWEST and (missed or unranked):
        faithful = False
    numbers = near.draws.value, near.single.found.value, near.share.value, near.off
    grade = grade_of(*numbers, held=near.held, faithful=faithful)
    if near.num_inputs < FEWEST_ROWS:
        grade = NOT_GRADED
    beyond = {what for what, within in near.within.items() if within is False}
    known = known._replace(
        faithful=faithful,
        beyond=frozenset(beyond.union(*(row.beyond for row in missed))),
        num_inputs=near.num_inputs,
        held=near.held,
        family=rows["energy_share"].best,
    )
    faults = [*_faults(near, terms, faithful), *(_of_class(row, terms) for row in missed)]
    if unranked:
        faults.append(f"ranks unlike the teacher's, which repeats its own at {ranks.floor:.2g}")
    word = {True: "Faithful", False: "Not faithful", None: "Undecided"}[faithful]
    return Verdict(
        faithful,
        grade,
        f"{word}, {grade}: {_in_use(near, rows, terms)}.",
        f"{_measures(near, terms)}.{''.join(f' {each}.' for each in faults)}",
        f"Next: {next_step(known)}",
    )


def _in_use(near: Nearness, rows: dict[str, Row], terms: Terms) -> str:
    """What differs, for those who use the answers."""
    told = near.gap >= near.gap_by_chance
    size = f"{100 * max(near.gap, near.gap_by_chance):.2g} {terms.unit}"
    by = size if told else f"less than the {size} that these draws can tell"
    parts = [f"{terms.gap} from the teacher's by {by} at 95 % of inputs"]
    if not math.isnan(near.other):
        mine, chance = 100 * near.other, 100 * near.other_by_chance
        by_chance = f" (by chance {chance:.2g} %)" if chance else ""
        parts.append(f"the likeliest class is another at {mine:.2g} %{by_chance}")
    ranks = rows[terms.ranks]
    if not math.isnan(ranks.student):
        parts.append(
            f"inputs are ranked by {terms.epistemic} as the teacher does with a correlation of "
            f"{ranks.student:.2g} (the teacher asked again: {ranks.floor:.2g})"
        )
    return "; ".join(parts)


def _measures(near: Nearness, terms: Terms) -> str:
    """The numbers that are limited."""
    draws, single = near.draws, near.single
    parts = [f"Its {terms.mean} as that of {in_draws(draws.value)} posterior draws"]
    if draws.low < draws.high:
        parts[0] += f" ({in_draws(draws.low)} to {in_draws(draws.high)})"
    if not math.isnan(near.epistemic):
        side, off = "above" if near.epistemic >= 1 else "below", abs(near.epistemic - 1)
        parts.append(f"its {terms.epistemic} is {100 * off:.2g} % {side} on average")
    if not math.isnan(single.found.value):
        parts[-1] += (
            f", and off by a factor of {single.found.value:.3g} at single inputs (chance alone: "
            f"{single.by_chance:.3g})"
        )
    covered = " and ".join(f"{100 * each.value:.3g}" for each in near.coverage.values())
    levels = " and ".join(f"{100 * level:.0f}" for level in near.coverage)
    if not math.isnan(near.share.value):
        parts.append(
            f"its energy distance is {100 * max(near.share.value, 0.0):.2g} % of the draws' "
            f"spread, and its central {levels} % intervals hold {covered} % of them"
        )
    return "; ".join(parts)


def _faults(near: Nearness, terms: Terms, faithful: bool | None) -> list[str]:
    """What is beyond its limit, or is too near to it to say, with the limits."""
    limits = {
        "mean": f"the mean (of at least {min(FAITHFUL.draws, near.held):.0f} draws)",
        "epistemic": f"the {terms.epistemic} (within a factor of {FAITHFUL.factor} at single "
        f"inputs, and of {MOST_MEAN} on average)",
        "shape": f"the shape (within {100 * FAITHFUL.share:.0f} % of the spread, and "
        f"{100 * FAITHFUL.off:.0f} points of coverage)",
    }
    found = []
    for within, text in ((False, "Beyond its limit"), (None, "Too near its limit to say")):
        names = [limits[what] for what, each in near.within.items() if each is within]
        if names and not (within is None and faithful is False):
            found.append(f"{text}: {', '.join(names)}")
    if faithful is None and near.num_inputs < FEWEST_ROWS:
        found = [f"{near.num_inputs} inputs say little"]
    return found


def _of_class(row: CertaintyRow, terms: Terms) -> str:
    """What is beyond its limit in one class of certainty."""
    found = {
        "mean": f"a mean as of {in_draws(row.draws)} draws",
        "epistemic": f"{terms.epistemic} {row.mutual_information_ratio:.2g} times the teacher's",
        "shape": f"an energy distance of {100 * row.energy_share:.2g} % of the spread, and "
        f"{100 * row.coverage_50:.2g} and {100 * row.coverage_90:.2g} % in central intervals",
    }
    what = ", ".join(found[each] for each in row.beyond)
    return f"Where the teacher's largest mean probability is {row.certainty}: {what}"
