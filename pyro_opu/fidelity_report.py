"""What `pyro_opu.fidelity` returns: numbers by name, and a table to print."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pyro_opu.tables import cell, json_ready, table

__all__ = ["FidelityReport", "Row", "SetFidelity"]

_LABELS = {
    "kl": "KL of the mean",
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
    "floor": "floor",
    "best": "best Dirichlet",
    "trivial": "trivial",
    "teacher": "teacher",
}


@dataclass(frozen=True)
class Row:
    """One quantity: the student's, and what to read it beside. NaN where it is not defined.

    Attributes:
        student: Of the student.
        floor: Of a second, independent set of teacher draws.
        best: Of the best Dirichlet per input, moment-matched to that second set.
        trivial: Of one Dirichlet for all inputs.
        teacher: The value that a perfect copy of the teacher would have.
    """

    student: float
    floor: float
    best: float
    trivial: float
    teacher: float


class _NamedNumbers:
    """``kl`` is the student's number of the row ``kl``; ``kl_floor`` and so on are the others."""

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
            f"no number {name!r}; there are {', '.join(_LABELS)}, each of the student, and with "
            f"the endings {', '.join('_' + c for c in _COLUMNS if c != 'student')}"
        )

    def __dir__(self) -> list[str]:
        named = [*_LABELS, *(f"{row}_{column}" for row in _LABELS for column in _COLUMNS)]
        return [*super().__dir__(), *named]


@dataclass(frozen=True, repr=False)
class SetFidelity(_NamedNumbers):
    """Fidelity on one set of inputs.

    Every row is also a number by name: ``kl`` (the student's), ``kl_floor``, ``kl_best``,
    ``kl_trivial`` and ``kl_teacher``, and in the same way for the other rows.

    Attributes:
        name: Of the set.
        num_inputs: ``N``.
        num_classes: ``C``.
        wasserstein_inputs: Inputs on which the 1-Wasserstein distance was computed.
        rows: All quantities by name; `pyro_opu.fidelity` says what they are.
    """

    name: str
    num_inputs: int
    num_classes: int
    wasserstein_inputs: int
    rows: dict[str, Row]

    def _row(self, name: str) -> Row | None:
        return self.rows.get(name)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers; undefined ones are ``None``."""
        numbers: dict[str, Any] = json_ready(asdict(self))
        return numbers

    def __repr__(self) -> str:
        header = [f"{self.name} ({self.num_inputs} inputs)", *_COLUMNS.values()]
        lines = []
        for name, row in self.rows.items():
            label = _LABELS[name]
            if name == "wasserstein" and self.wasserstein_inputs < self.num_inputs:
                label += f" ({self.wasserstein_inputs} inputs)"
            lines.append([label, *(cell(getattr(row, column)) for column in _COLUMNS)])
        return table(header, lines)


@dataclass(frozen=True, repr=False)
class FidelityReport(_NamedNumbers):
    """How close a student is to its teacher: ``print`` it, or take the numbers by name.

    The numbers of the main set are attributes, ``report.kl``, ``report.kl_floor``,
    ``report.mutual_information_teacher`` ... (see `SetFidelity`); those of another set are found
    under its name, ``report["noise"].kl``.

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

    def _row(self, name: str) -> Row | None:
        return next(iter(self.sets.values())).rows.get(name)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for ``json.dump``; undefined ones are ``None``."""
        numbers: dict[str, Any] = json_ready(asdict(self))
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
            "floor: the teacher asked again. best: moment-matched to the floor, per input.\n"
            "trivial: one Dirichlet for all inputs. teacher: what a perfect copy would have.\n"
            + draws
        )
        return "\n\n".join([*(str(part) for part in self.sets.values()), notes])
