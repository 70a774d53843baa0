"""What `pyro_opu.fidelity` returns: numbers by name, and a table to print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from textwrap import fill
from typing import Any, ClassVar

from pyro_opu.judging.yardstick import in_draws
from pyro_opu.reports.base import Report
from pyro_opu.reports.certainty import CertaintyRow
from pyro_opu.reports.regions import Region, region_table
from pyro_opu.utils.tables import cell, table

__all__ = ["FidelityReport", "NamedNumbers", "Row", "SetFidelity"]

_COLUMNS = ("student", "attainable", "floor", "best", "trivial", "teacher")
# The columns of a table by certainty, by attribute of a row.
_BY_CERTAINTY = {
    "draws": "draws",
    "kl": "KL",
    "mutual_information_ratio": "MI",
    "epistemic_factor": "factor",
    "energy_share": "energy",
    "coverage_50": "50 %",
    "coverage_90": "90 %",
    "concentration_mean": "alpha_0",
}
#: Columns of text that a line of words takes.
WIDTH = 96


@dataclass(frozen=True)
class Row:
    """One quantity: the student's, and what to read it beside. NaN where it is not defined."""

    student: float
    attainable: float  #: What a perfect student, the very posterior it was taught, would score.
    floor: float  #: A second, independent set of teacher draws.
    best: float  #: The best Dirichlet (or normal) per input, by the moments of the posterior.
    trivial: float  #: One Dirichlet (or normal) for all inputs.
    teacher: float  #: What a posterior of infinitely many draws would have.


class NamedNumbers(Report):
    """``kl`` is the student's number of the row ``kl``; ``kl_floor`` and so on are the others."""

    rows: Mapping[str, Row]

    def __getattr__(self, name: str) -> float:
        if not name.startswith("_") and name != "rows":
            if name in self.rows:
                return self.rows[name].student
            stem, _, column = name.rpartition("_")
            if stem in self.rows and column in _COLUMNS:
                return float(getattr(self.rows[stem], column))
            raise AttributeError(
                f"no number {name!r}; there are {', '.join(self.rows)}, each of the student, and "
                f"with the endings {', '.join('_' + c for c in _COLUMNS if c != 'student')}"
            )
        raise AttributeError(name)

    def __dir__(self) -> list[str]:
        named = [*self.rows, *(f"{row}_{column}" for row in self.rows for column in _COLUMNS)]
        return [*super().__dir__(), *named]


@dataclass(frozen=True, repr=False)
class SetFidelity(NamedNumbers):
    """Fidelity on one set of inputs.

    Every row is also a number by name: ``kl`` (the student's), ``kl_floor``, ``kl_best``,
    ``kl_trivial`` and ``kl_teacher``, and in the same way for the other rows.
    """

    name: str
    num_inputs: int
    rows: dict[str, Row]  #: All quantities by name; `pyro_opu.fidelity` says what they are.
    by_certainty: tuple[CertaintyRow, ...]  #: From the least certain class on; none of a real y.
    #: Whether the student is, on all inputs and in every class with enough; ``None`` where inputs
    #: or draws are too few to tell.
    faithful: bool | None
    grade: str  #: "excellent", "good", "fair" or "poor"; "not graded" of fewer than 20 inputs.
    sentence: str  #: Whether it is faithful, and what differs for those who use it.
    measures: str  #: The three measures that decide, and what is beyond its limit.
    advice: str  #: The next step.
    draws_interval: tuple[float, float]  #: Of ``draws``: 95 %, over inputs.
    num_classes: int | None = None  #: C; ``None`` for a real outcome.
    wasserstein_inputs: int | None = None  #: Inputs of the 1-Wasserstein distance, likewise.

    _best: ClassVar[str] = "best Dirichlet"
    #: How each row is labelled, and whether a perfect student's value differs from the teacher's.
    _labels: ClassVar[dict[str, tuple[str, bool]]] = {
        "kl": ("KL of the mean", True),
        "draws": ("  as that of draws", True),
        "epistemic_factor": ("factor at single inputs", True),
        "energy_distance": ("energy distance", True),
        "energy_share": ("  over the spread", True),
        "wasserstein": ("Wasserstein-1", False),
        "mutual_information": ("mutual information", False),
        "mutual_information_error": ("  relative error", False),
        "mutual_information_spearman": ("  Spearman", False),
        "variance": ("variance", False),
        "variance_error": ("  relative error", False),
        "variance_spearman": ("  Spearman", False),
        "coverage_50": ("coverage, central 50 %", False),
        "coverage_90": ("coverage, central 90 %", False),
        "agreement": ("same likeliest class", True),
    }
    _notes: ClassVar[str] = (
        "attainable: a perfect student by these draws. floor: the teacher asked again.\n"
        "best: the posterior's moments, per input. trivial: one Dirichlet for all inputs.\n"
        "Certainty: by the teacher's largest mean probability; MI and alpha_0 are the student's\n"
        "over the teacher's, energy is the distance over the draws' spread."
    )

    @property
    def verdict(self) -> str:
        """What the report begins with, in one line."""
        return f"{self.sentence} {self.measures} {self.advice}"

    def draws_text(self, num_draws: int, max_draws: int | None) -> str:
        """How many draws of the teacher judged, in words."""
        if max_draws is None:
            return f"{num_draws} teacher draws judge, {num_draws} others are the floor."
        return (
            f"The posterior holds {max_draws} draws: two disjoint random sets of "
            f"{num_draws}\njudge in turn, the other being the floor."
        )

    def __repr__(self) -> str:
        lines = self.sentence, self.measures, self.advice
        return "\n\n".join(["\n".join(fill(line, WIDTH) for line in lines), *self.tables()])

    def tables(self) -> list[str]:
        """All rows, and those by the teacher's certainty."""
        parts = [self._table()]
        if self.by_certainty:
            lines = [
                [
                    row.certainty,
                    str(row.num_inputs),
                    *(_shown(name, getattr(row, name)) for name in _BY_CERTAINTY),
                ]
                for row in self.by_certainty
                if row.num_inputs
            ]
            header = ["  certainty", "inputs", *_BY_CERTAINTY.values()]
            parts.append(table(header, lines))
        return parts

    def _table(self) -> str:
        columns = [self._best if column == "best" else column for column in _COLUMNS]
        lines = []
        for name, (label, attainable) in self._labels.items():
            row = self.rows[name]
            if name == "wasserstein" and self.wasserstein_inputs != self.num_inputs:
                label += f" ({self.wasserstein_inputs} inputs)"
            shown = {column: getattr(row, column) for column in _COLUMNS}
            if not attainable:
                shown["attainable"] = None
            lines.append([label, *(_shown(name, value) for value in shown.values())])
        return table([f"{self.name} ({self.num_inputs} inputs)", *columns], lines)


def _shown(name: str, value: float | None) -> str:
    return in_draws(value) if name == "draws" and value is not None else cell(value)


class RealSetFidelity(SetFidelity):
    """Fidelity on one set of inputs where the outcome is a real value."""

    _best = "best normal"
    _labels: ClassVar[dict[str, tuple[str, bool]]] = {
        "kl": ("KL of the normals", True),
        "draws": ("  as that of draws", True),
        "epistemic_factor": ("factor at single inputs", True),
        "mean_error": ("error of the mean", True),
        "energy_distance": ("energy distance of y", True),
        "mean_energy_distance": ("  of its mean f", True),
        "energy_share": ("  the latter over its spread", True),
        "aleatoric": ("aleatoric variance", False),
        "aleatoric_error": ("  relative error", False),
        "aleatoric_spearman": ("  Spearman", False),
        "epistemic": ("epistemic variance", False),
        "epistemic_error": ("  relative error", False),
        "epistemic_spearman": ("  Spearman", False),
        "coverage_50": ("coverage of f, central 50 %", False),
        "coverage_90": ("coverage of f, central 90 %", False),
    }
    _notes = (
        "attainable: a perfect student by these draws. floor: the teacher asked again.\n"
        "best: the normal with its moments, per input. trivial: one normal for all inputs.\n"
        "Error of the mean and energy distances in the teacher's deviations."
    )


@dataclass(frozen=True, repr=False)
class FidelityReport(NamedNumbers):
    """How close a student is to its teacher: ``print`` it, or take the numbers by name.

    The main set's are attributes, ``report.kl``, ``report.kl_ratio``, ``report.verdict`` ...
    (see `SetFidelity`), and ``report["kl"]`` is a whole row of it; ``report["noise"].kl`` is of
    another set.

    Attributes:
        sets: Every set by name, the main one first.
        num_draws: S, teacher draws in each of the two sets that were compared.
        max_draws: M; ``None`` where the posterior gives any number of draws.
        where: Regions of the main set, the worst first, where they were asked for.
    """

    sets: dict[str, SetFidelity]
    num_draws: int
    max_draws: int | None
    where: tuple[Region, ...] = ()
    _totals = ("verdict", "faithful", "grade", "draws", "draws_interval", "advice")

    def __getitem__(self, name: str) -> Any:
        if name in self.sets:
            return self.sets[name]
        if name in self.rows:
            return self.rows[name]
        raise KeyError(
            f"no set of inputs {name!r}; there are {', '.join(self.sets)}; and no row {name!r}; "
            f"there are {', '.join(self.rows)}"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.sets)

    @property
    def main(self) -> SetFidelity:
        """The main set."""
        return next(iter(self.sets.values()))

    rows = property(attrgetter("main.rows"), doc="All quantities on the main set by name.")
    num_inputs = property(attrgetter("main.num_inputs"), doc="Inputs of the main set.")
    by_certainty = property(attrgetter("main.by_certainty"), doc="Its rows by certainty.")
    faithful = property(
        attrgetter("main.faithful"), doc="Whether it is; None where too few rows say."
    )
    grade = property(attrgetter("main.grade"), doc='"excellent", "good", "fair" or "poor".')
    verdict = property(attrgetter("main.verdict"), doc="What this comes to, in one line.")
    advice = property(attrgetter("main.advice"), doc="The next step.")
    draws_interval = property(attrgetter("main.draws_interval"), doc="95 % of ``draws``.")

    def __repr__(self) -> str:
        return "\n\n".join([*(str(part) for part in self.sets.values()), *self._ends()])

    def _ends(self) -> list[str]:
        notes = f"{self.main._notes}\n{self.main.draws_text(self.num_draws, self.max_draws)}"
        return [*([region_table(self.where)] if self.where else []), notes]
