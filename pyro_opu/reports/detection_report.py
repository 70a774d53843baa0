"""What `pyro_opu.detection` returns: scores by name, and tables to print."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

from pyro_opu.checks import ArgumentError
from pyro_opu.metrics.scores import Calibration
from pyro_opu.reports.base import Report
from pyro_opu.reports.readings import MEASURES
from pyro_opu.utils.tables import cell, table

__all__ = ["EPISTEMIC", "DetectionReport", "DetectionTable", "Score"]

#: The measures of the spread of the posterior, as opposed to its mean alone.
EPISTEMIC = frozenset(MEASURES) - {"entropy", "max_probability"}


class Score(NamedTuple):
    """Area under the ROC curve and average precision of one detector; NaN when undefined."""

    auroc: float
    aupr: float


@dataclass(frozen=True, repr=False)
class DetectionTable(Report):
    """Scores of every measure on one task."""

    name: str  #: ``"misclassification"``, or the name of the outside inputs.
    student: dict[str, Score]  #: By measure.
    teacher: dict[str, Score]  #: By measure.
    trivial: dict[str, Score]  #: Of what needs no classifier, in the better of both directions.
    num_inputs: int
    #: Errors, or outside inputs, for ``"student"`` and ``"teacher"``; their share is the AUPR of a
    #: detector that knows nothing.
    num_positive: dict[str, int]

    def __repr__(self) -> str:
        if self.name == "misclassification":
            found = " and ".join(f"{n} of the {who}" for who, n in self.num_positive.items())
            task = f"misclassification: find the errors, {found}, in {self.num_inputs} inputs"
        else:
            count = self.num_positive["student"]
            task = f"{self.name}: find the {count} outside inputs in {self.num_inputs}"
        header = ["", "student AUROC", "AUPR", "teacher AUROC", "AUPR"]
        lines = [
            [name.replace("_", " "), *map(cell, (*self.student[name], *self.teacher[name]))]
            for name in self.student
        ]
        for name, score in self.trivial.items():
            lines.append([f"trivial: {name.replace('_', ' ')}", *map(cell, score), "", ""])
        text = f"{task}\n{table(header, lines)}"
        undefined = [who for who, n in self.num_positive.items() if n in (0, self.num_inputs)]
        if undefined:
            reason = f"n/a: the {' and the '.join(undefined)} made no error, or only errors"
            text += f"\n{reason}; there is nothing to tell apart."
        return text


@dataclass(frozen=True, repr=False)
class DetectionReport(Report):
    """Student and teacher as classifiers and as detectors."""

    #: By name, ``"misclassification"`` first, then every set of outside inputs; also
    #: ``report[name]``.
    tables: dict[str, DetectionTable]
    student: Calibration  #: Of the student's mean.
    teacher: Calibration  #: Of the teacher's mean.
    num_draws: int  #: Teacher draws per input.

    def __getitem__(self, name: str) -> DetectionTable:
        if name not in self.tables:
            raise KeyError(f"no table {name!r}; there are {', '.join(self.tables)}")
        return self.tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    def best(
        self, who: Literal["student", "teacher"], name: str, *, epistemic: bool = False
    ) -> tuple[str, Score]:
        """The measure with the highest AUROC in a table, and its score.

        Chosen on the data it is scored on, it flatters a little: state the measure in advance, or
        choose it on other data, when the number itself is to be believed. ``epistemic`` leaves out
        entropy and max-probability.

        Raises:
            ValueError: ``who`` is something else, or no AUROC is defined.
            KeyError: There is no such table.
        """
        if who not in ("student", "teacher"):
            raise ArgumentError(f"`who` must be 'student' or 'teacher'; got {who!r}.")
        scores: dict[str, Score] = getattr(self[name], who)
        defined = {
            measure: score
            for measure, score in scores.items()
            if not math.isnan(score.auroc) and (measure in EPISTEMIC or not epistemic)
        }
        if not defined:
            raise ValueError(
                f"no AUROC of the {who} is defined for {name!r}: it made no error, or only errors."
            )
        best = max(defined, key=lambda measure: defined[measure].auroc)
        return best, defined[best]

    def __repr__(self) -> str:
        scores = [
            [who, *map(cell, asdict(getattr(self, who)).values())] for who in ("student", "teacher")
        ]
        calibrated = table(["", "accuracy", "NLL", "Brier", "ECE"], scores)
        notes = f"teacher: {self.num_draws} draws. positive: errors, or outside inputs."
        if any(part.trivial for part in self.tables.values()):
            notes += "\ntrivial: no classifier asked; the better of both directions."
        return "\n\n".join([calibrated, *(str(part) for part in self.tables.values()), notes])
