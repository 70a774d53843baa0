"""What `pyro_opu.fidelity` returns: numbers by name, and a table to print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from textwrap import fill
from typing import Any, ClassVar

from pyro_opu.reports.certainty import CertaintyRow
from pyro_opu.utils.tables import cell, json_ready, table

__all__ = ["FidelityReport", "NamedNumbers", "Row", "SetFidelity"]

_LABELS = {
    "kl": "KL of the mean",
    "kl_ratio": "  over attainable",
    "energy_distance": "energy distance",
    "wasserstein": "Wasserstein-1",
    "mutual_information": "mutual information",
    "mutual_information_error": "  relative error",
    "mutual_information_spearman": "  Spearman",
    "variance": "variance",
    "variance_error": "  relative error",
    "variance_spearman": "  Spearman",
    "coverage_50": "coverage, central 50 %",
    "coverage_90": "coverage, central 90 %",
    "agreement": "same likeliest class",
}
_COLUMNS = {
    "student": "student",
    "attainable": "attainable",
    "floor": "floor",
    "best": "best Dirichlet",
    "trivial": "trivial",
    "teacher": "teacher",
}
# The columns of a table by certainty, by attribute of a row.
_BY_CERTAINTY = {
    "kl": "KL",
    "kl_attainable": "attainable",
    "kl_ratio": "ratio",
    "energy_distance": "energy",
    "mutual_information_ratio": "MI",
    "concentration_median": "alpha_0",
    "concentration_mean": "mean",
}
# Rows of which a perfect student has another value than a posterior of infinitely many draws.
_ATTAINABLE = ("kl", "kl_ratio", "energy_distance", "agreement")
#: Columns of text that a line of words takes.
WIDTH = 96


@dataclass(frozen=True)
class Row:
    """One quantity: the student's, and what to read it beside. NaN where it is not defined.

    Attributes:
        student: Of the student.
        attainable: What a perfect student, the very posterior it was taught, would score.
        floor: Of a second, independent set of teacher draws.
        best: Of the best Dirichlet per input, by the moments of the posterior there.
        trivial: Of one Dirichlet for all inputs.
        teacher: What a posterior of infinitely many draws would have.
    """

    student: float
    attainable: float
    floor: float
    best: float
    trivial: float
    teacher: float


class NamedNumbers:
    """``kl`` is the student's number of the row ``kl``; ``kl_floor`` and so on are the others."""

    _names: ClassVar[Iterable[str]] = tuple(_LABELS)

    def _row(self, name: str) -> Row | None:
        raise NotImplementedError

    def __getattr__(self, name: str) -> float:
        if not name.startswith("_"):
            row = self._row(name)
            if row is not None:
                return row.student
            stem, _, column = name.rpartition("_")
            row = self._row(stem) if column in _COLUMNS else None
            if row is not None:
                return float(getattr(row, column))
        raise AttributeError(
            f"no number {name!r}; there are {', '.join(self._names)}, each of the student, and "
            f"with the endings {', '.join('_' + c for c in _COLUMNS if c != 'student')}"
        )

    def __dir__(self) -> list[str]:
        named = [*self._names, *(f"{row}_{column}" for row in self._names for column in _COLUMNS)]
        return [*super().__dir__(), *named]


@dataclass(frozen=True, repr=False)
class SetFidelity(NamedNumbers):
    """Fidelity on one set of inputs.

    Every row is also a number by name: ``kl`` (the student's), ``kl_floor``, ``kl_best``,
    ``kl_trivial`` and ``kl_teacher``, and in the same way for the other rows.

    Attributes:
        name: Of the set.
        num_inputs: ``N``.
        num_classes: ``C``.
        wasserstein_inputs: Inputs on which the 1-Wasserstein distance was computed.
        rows: All quantities by name; `pyro_opu.fidelity` says what they are.
        by_certainty: A row for every class of certainty, from the least certain to the most.
        faithful: Whether the student is faithful on all inputs and in every class with enough.
        verdict: A sentence that says so, and where it is not.
    """

    name: str
    num_inputs: int
    num_classes: int
    wasserstein_inputs: int
    rows: dict[str, Row]
    by_certainty: tuple[CertaintyRow, ...]
    faithful: bool
    verdict: str

    def _row(self, name: str) -> Row | None:
        return self.rows.get(name)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers; undefined ones are ``None``."""
        numbers: dict[str, Any] = json_ready(asdict(self))
        return numbers

    def __repr__(self) -> str:
        shown = [row for row in self.by_certainty if row.num_inputs]
        lines = [
            [row.certainty, str(row.num_inputs), *(cell(getattr(row, c)) for c in _BY_CERTAINTY)]
            for row in shown
        ]
        by_certainty = table(["  teacher's certainty", "inputs", *_BY_CERTAINTY.values()], lines)
        return "\n\n".join([fill(self.verdict, WIDTH), self._table(), by_certainty])

    def _table(self) -> str:
        header = [f"{self.name} ({self.num_inputs} inputs)", *_COLUMNS.values()]
        lines = []
        for name, row in self.rows.items():
            label = _LABELS[name]
            if name == "wasserstein" and self.wasserstein_inputs < self.num_inputs:
                label += f" ({self.wasserstein_inputs} inputs)"
            shown = {column: getattr(row, column) for column in _COLUMNS}
            if name not in _ATTAINABLE:
                shown["attainable"] = None
            lines.append([label, *map(cell, shown.values())])
        return table(header, lines)


@dataclass(frozen=True, repr=False)
class FidelityReport(NamedNumbers):
    """How close a student is to its teacher: ``print`` it, or take the numbers by name.

    The numbers of the main set are attributes, ``report.kl``, ``report.kl_ratio``,
    ``report.mutual_information_teacher``, ``report.by_certainty``, ``report.verdict`` ... (see
    `SetFidelity`); those of another set are found under its name, ``report["noise"].kl``.

    Attributes:
        sets: Every set by name, the main one first.
        num_draws: Teacher draws ``S`` in each of the two sets of draws that were compared.
        max_draws: Draws that the posterior holds; ``None`` when it gives any number.
    """

    sets: dict[str, SetFidelity]
    num_draws: int
    max_draws: int | None

    def __getitem__(self, name: str) -> SetFidelity:
        if name not in self.sets:
            raise KeyError(f"no set of inputs {name!r}; there are {', '.join(self.sets)}")
        return self.sets[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sets)

    @property
    def main(self) -> SetFidelity:
        """The main set."""
        return next(iter(self.sets.values()))

    @property
    def by_certainty(self) -> tuple[CertaintyRow, ...]:
        """Rows of the main set by the teacher's certainty."""
        return self.main.by_certainty

    @property
    def faithful(self) -> bool:
        """Whether the student is faithful on the main set."""
        return self.main.faithful

    @property
    def verdict(self) -> str:
        """A sentence that says so, and where it is not."""
        return self.main.verdict

    def _row(self, name: str) -> Row | None:
        return self.main.rows.get(name)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for ``json.dump``; undefined ones are ``None``."""
        main = {"verdict": self.verdict, "faithful": self.faithful}
        numbers: dict[str, Any] = json_ready(main | asdict(self))
        return numbers

    def __repr__(self) -> str:
        if self.max_draws is None:
            draws = f"{self.num_draws} teacher draws judge, {self.num_draws} others are the floor."
        else:
            draws = (
                f"The posterior holds {self.max_draws} draws: two disjoint random sets of "
                f"{self.num_draws}\njudge in turn, the other being the floor."
            )
        notes = (
            "attainable: a perfect student by these draws. floor: the teacher asked again.\n"
            "best: the posterior's moments, per input. trivial: one Dirichlet for all inputs.\n"
            "By the teacher's largest mean probability: MI and alpha_0 (median, and of all inputs\n"
            "together) are the student's over the teacher's.\n" + draws
        )
        return "\n\n".join([*(str(part) for part in self.sets.values()), notes])
