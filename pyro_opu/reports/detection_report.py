"""What `pyro_opu.detection` returns: scores by name, and tables to print."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pyro_opu.metrics.scores import Calibration
from pyro_opu.utils.tables import cell, json_ready, table

__all__ = ["EPISTEMIC", "DetectionReport", "DetectionTable", "Score"]

#: The measures that speak of the spread of the posterior, not of its mean alone.
EPISTEMIC = frozenset(
    {
        "mutual_information",
        "variance",
        "concentration",
        "expected_pairwise_kl",
        "differential_entropy",
    }
)


class Score(NamedTuple):
    """Of one detector: area under the ROC curve, and average precision. NaN when undefined."""

    auroc: float
    aupr: float


@dataclass(frozen=True, repr=False)
class DetectionTable:
    """Scores of every measure on one task.

    Attributes:
        name: Of the task: ``"misclassification"``, or of the outside inputs.
        student: Scores by measure.
        teacher: Scores by measure.
        trivial: Scores of what needs no classifier, in the better of both directions.
        num_inputs: Inputs in all.
        num_positive: Errors, or outside inputs, for ``"student"`` and ``"teacher"``; their share
            is the AUPR of a detector that knows nothing.
    """

    name: str
    student: dict[str, Score]
    teacher: dict[str, Score]
    trivial: dict[str, Score]
    num_inputs: int
    num_positive: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers; undefined ones are ``None``."""
        numbers: dict[str, Any] = json_ready(
            {
                **{
                    who: {name: score._asdict() for name, score in getattr(self, who).items()}
                    for who in ("student", "teacher", "trivial")
                },
                "num_inputs": self.num_inputs,
                "num_positive": self.num_positive,
            }
        )
        return numbers

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
class DetectionReport:
    """Student and teacher as classifiers and as detectors: ``print`` it, or take what you need.

    Attributes:
        tables: By name, ``"misclassification"`` first, then every set of outside inputs;
            ``report[name]`` is the same.
        student: Accuracy, NLL, Brier score and ECE of the student's mean.
        teacher: The same of the teacher's mean.
        num_draws: Teacher draws per input.
    """

    tables: dict[str, DetectionTable]
    student: Calibration
    teacher: Calibration
    num_draws: int

    def __getitem__(self, name: str) -> DetectionTable:
        if name not in self.tables:
            raise KeyError(f"no table {name!r}; there are {', '.join(self.tables)}")
        return self.tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    def best(
        self, who: Literal["student", "teacher"], name: str, *, epistemic: bool = False
    ) -> tuple[str, Score]:
        """The measure with the highest AUROC, and its score.

        Chosen on the data it is scored on, it flatters a little: state the measure in advance, or
        choose it on other data, when the number itself is to be believed.

        Args:
            who: ``"student"`` or ``"teacher"``.
            name: Of the table.
            epistemic: Choose among the epistemic measures only, not entropy or max-probability.

        Returns:
            The measure and its score.

        Raises:
            ValueError: When ``who`` is something else, or no AUROC is defined.
            KeyError: When there is no such table.
        """
        if who not in ("student", "teacher"):
            raise ValueError(f"`who` must be 'student' or 'teacher'; got {who!r}.")
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

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for ``json.dump``; undefined ones are ``None``."""
        numbers: dict[str, Any] = json_ready(
            {
                "student": self.student.to_dict(),
                "teacher": self.teacher.to_dict(),
                "num_draws": self.num_draws,
                "tables": {name: part.to_dict() for name, part in self.tables.items()},
            }
        )
        return numbers

    def __repr__(self) -> str:
        scores = [
            [who, *map(cell, getattr(self, who).to_dict().values())]
            for who in ("student", "teacher")
        ]
        calibrated = table(["", "accuracy", "NLL", "Brier", "ECE"], scores)
        notes = f"teacher: {self.num_draws} draws. positive: errors, or outside inputs."
        if any(part.trivial for part in self.tables.values()):
            notes += "\ntrivial: no classifier asked; the better of both directions."
        return "\n\n".join([calibrated, *(str(part) for part in self.tables.values()), notes])
