"""Judging answers that are several numbers of every row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyro_opu.judging.base import Judge, PartJudge
from pyro_opu.judging.classes import ClassJudge
from pyro_opu.judging.real import RealJudge
from pyro_opu.judging.yardstick import as_draws
from pyro_opu.parts import Part, TableAnswer, by_part

__all__ = ["TableJudge"]

#: Numbers of a report that are sums over the parts, and those that are of the worst.
_SUMS = ("kl_attainable", "kl_trivial", "energy_to_posterior", "energy_of_draws")
_WORST = ("epistemic_factor", "energy_share")


@dataclass(frozen=True)
class TableJudge(Judge[TableAnswer]):
    """Judges answers by draws of several numbers of every row.

    Attributes:
        parts: The observed sites.
    """

    parts: tuple[Part, ...] = ()

    @cached_property
    def each(self) -> list[ClassJudge | RealJudge]:
        """A judge of every part, whose numbers are rows of their own."""
        return [
            ClassJudge(self.x, draws, self.held)
            if part.on_simplex
            else RealJudge(self.x, draws, self.held, by_moments=True)
            for part, draws in zip(self.parts, by_part(self.draws, self.parts), strict=True)
        ]

    def by_site(self, answer: TableAnswer) -> list[tuple[str, PartJudge[Any, Any], Any]]:
        return [
            (part.site, judge, own)
            for part, judge, own in zip(self.parts, self.each, answer.answers, strict=True)
        ]

    def scores_of(self, answer: TableAnswer) -> dict[str, float]:
        """Sums over the parts, and the draws of each by its name."""
        pairs = list(zip(self.each, answer.answers, strict=True))
        found = [judge.scores_of(part) for judge, part in pairs]
        least = [judge.attainable for judge in self.each]
        ratio = sum(a * row["kl_ratio"] for a, row in zip(least, found, strict=True)) / sum(least)
        return {
            "energy_distance": sum(row["energy_distance"] for row in found),
            "kl": sum(row["kl"] for row in found),
            "kl_ratio": ratio,
            "draws": as_draws(ratio, self.num_judging, self.held),
            **{f"draws of {p.site}": r["draws"] for p, r in zip(self.parts, found, strict=True)},
        }

    def summary_of(self, answer: TableAnswer) -> dict[str, Any]:
        """Sums over the parts, the worst of them, or averages; and each, by name, in "sites"."""
        pairs = zip(self.each, answer.answers, strict=True)
        found = [judge.summary_of(part) for judge, part in pairs]
        families = dict.fromkeys(row["family"].removeprefix("Predictive") for row in found)
        report = {**found[0], "family": ", ".join(families)}
        for name in _SUMS:
            report[name] = sum(row[name] for row in found)
        for name in _WORST:
            report[name] = max((r[name] for r in found if r[name] is not None), default=None)
        for name in {judge.epistemic for judge in self.each}:
            for key in (name, f"{name}_teacher"):
                if all(key in row for row in found):
                    report[key] = sum(row[key] for row in found) / len(found)
                else:
                    report.pop(key, None)
        sites = {part.site: row for part, row in zip(self.parts, found, strict=True)}
        return {**report, "sites": sites}
