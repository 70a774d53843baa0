"""Means and measures of uncertainty of a student or a teacher at many inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_opu.checks import ArgumentError, positive_int
from pyro_opu.distributions import SimplexDistribution
from pyro_opu.metrics.uncertainty import uncertainty
from pyro_opu.reports.answers import Student, ready_teacher, student_answer
from pyro_opu.teachers import Source
from pyro_opu.utils.chunks import chunks

__all__ = ["MEASURES", "Array", "Reader", "Reading", "check_same_classes"]

Array = NDArray[np.float64]
Measure = Literal[
    "entropy",
    "max_probability",
    "mutual_information",
    "variance",
    "concentration",
    "expected_pairwise_kl",
    "differential_entropy",
]
#: All measures, by the names they have in the tables.
MEASURES: tuple[Measure, ...] = get_args(Measure)


@dataclass(frozen=True)
class Reading:
    """What one source says of one set of inputs."""

    log_mean: Tensor  #: Logarithm of the mean class probabilities, ``(N, C)``.
    measures: dict[str, Array]  #: As :func:`~pyro_opu.uncertainty` defines them, ``(N,)`` each.
    #: For each measure a score that grows with uncertainty: the measure itself, the probability of
    #: all classes but the likeliest for ``max_probability``, and minus the logarithm of
    #: ``concentration``.
    detectors: dict[str, Array]

    @classmethod
    def of(cls, answer: SimplexDistribution | Tensor) -> Reading:
        """The reading of a student's answer, or of a teacher's log-probabilities (S, n, C)."""
        if isinstance(answer, Tensor):
            log_mean = answer.logsumexp(0) - math.log(len(answer))
            found = uncertainty(answer.exp())
        else:
            log_mean, found = answer.log_mean, uncertainty(answer)
        measures = {name: found[name] for name in MEASURES}
        # 1 - max, added up from the other classes: in float32 the difference is often zero.
        largest = torch.nn.functional.one_hot(log_mean.argmax(-1), log_mean.shape[-1]).bool()
        others = log_mean.masked_fill(largest, -torch.inf).logsumexp(-1).exp()
        turned: dict[Measure, Tensor] = {
            "max_probability": others,
            "concentration": -found.concentration.log(),
        }
        return cls(log_mean, _arrays(measures), _arrays(measures | turned))

    @classmethod
    def joined(cls, parts: list[Reading]) -> Reading:
        """One reading of several sets of inputs, one after the other."""
        return cls(
            torch.cat([part.log_mean for part in parts]),
            _joined([part.measures for part in parts]),
            _joined([part.detectors for part in parts]),
        )


class Reader:
    """Reads a student or a teacher at any inputs, with bounded memory."""

    def __init__(self, source: Source | Student, x: Tensor, student: bool, num_draws: int) -> None:
        self.source: Any = source
        self.student = student
        self.num_draws = self.num_classes = 1
        num_draws = positive_int("num_draws", num_draws, 2, "One draw has no spread.")
        if not student:
            self.source = ready_teacher(source, x)
            held = self.source.max_draws
            self.num_draws = num_draws if held is None else min(num_draws, held)
            self.num_classes = self.source.num_classes

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Reading:
        """The reading at ``x``; a teacher that draws afresh does so for every chunk of inputs."""
        parts = (x[part] for part in self._parts(len(x)))
        return Reading.joined([Reading.of(self._answer(part)) for part in parts])

    def _answer(self, x: Tensor) -> Any:
        if self.student:
            return student_answer(self.source, x)
        return self.source.log_probs(x, self.num_draws)

    @torch.no_grad()
    def together(self, x: Tensor) -> Reading:
        """The reading at ``x`` by one set of draws for all inputs."""
        if self.student:
            return self(x)
        blocks = self.source.stream(x, self.num_draws)
        parts = (block[:, part] for block in blocks for part in self._parts(block.shape[1]))
        return Reading.joined([Reading.of(part) for part in parts])

    def _parts(self, rows: int) -> Iterator[slice]:
        return chunks(rows, self.num_draws, self.num_classes)


def check_same_classes(student: Reading, teacher: Reading) -> None:
    """Raise unless both readings are over the same number of classes."""
    mine, theirs = student.log_mean.shape[-1], teacher.log_mean.shape[-1]
    if mine != theirs:
        raise ArgumentError(
            f"`student` must have the {theirs} classes of `teacher`; got {mine}. Pass the student "
            "that was distilled from it."
        )


def _joined(parts: list[dict[str, Array]]) -> dict[str, Array]:
    return {name: np.concatenate([part[name] for part in parts]) for name in MEASURES}


def _arrays(measures: Mapping[Measure, Tensor]) -> dict[str, Array]:
    """Float64 arrays; infinite values (draws that all agree) become the largest float."""
    for name, values in measures.items():
        if values.isnan().any():
            raise ValueError(
                f"the source's probabilities must be finite; got the measure {name!r} NaN at "
                f"{int(values.isnan().sum())} inputs. Check its weights or draws (torch.isfinite)."
            )
    return {name: v.double().nan_to_num().cpu().numpy() for name, v in measures.items()}
