"""Regions of the inputs in a fidelity report: whether a student is wrong there, corrected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyro_opu.utils.tables import cell, table

__all__ = ["Region", "corrected", "region_table"]

#: False alarms of a perfect student, in all regions together.
LEVEL = 0.05


@dataclass(frozen=True)
class Region:
    """A region of the inputs, and how far the student's draws are from the teacher's there.

    Attributes:
        region: In words.
        num_inputs: Rows that were tested.
        distance: Energy distance of 64 draws of the student, or as many as the posterior holds,
            from as many of the teacher, not freed of their sampling error, averaged over the rows.
        attainable: The same of draws shuffled between the two, as for a perfect student.
        p_value: How often a perfect student looks as wrong in some region; by permutation, with
            the error that all rows share of draws that are held, and corrected for the number of
            regions.
        wrong: Whether that is less than 5 %.
    """

    region: str
    num_inputs: int
    distance: float
    attainable: float
    p_value: float
    wrong: bool


def corrected(found: Sequence[Region]) -> tuple[Region, ...]:
    """The regions with p-values for all of them together, by Holm's method; the worst first."""
    ordered, least = [], 0.0
    for number, each in enumerate(sorted(found, key=lambda each: each.p_value)):
        least = max(least, min(1.0, each.p_value * (len(found) - number)))
        ordered.append(replace(each, p_value=least, wrong=least < LEVEL))
    return tuple(ordered)


def region_table(found: Sequence[Region]) -> str:
    """The regions as a table."""
    rows = [
        [
            each.region,
            str(each.num_inputs),
            *map(cell, (each.distance, each.attainable, each.p_value)),
            "wrong" if each.wrong else "",
        ]
        for each in found
    ]
    return table(["where", "inputs", "student", "attainable", "p", ""], rows)
