"""Judging a student by its teacher's draws, whatever the outcome: the loop, and rows of results."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_opu.judging.advice import Known
from pyro_opu.judging.nearness import Nearness
from pyro_opu.judging.yardstick import MOST_DRAWS, as_draws, quotient
from pyro_opu.reports.certainty import CertaintyRow
from pyro_opu.reports.fidelity_report import Row, SetFidelity
from pyro_opu.reports.verdict import Terms, verdict_of
from pyro_opu.utils.chunks import chunks

__all__ = ["COLUMNS", "Judge", "Judged", "Plan", "Values", "extrapolated", "repeated", "row_of"]

#: Draws per input from which the trivial answer is made; they are averaged over all inputs.
TRIVIAL_DRAWS = 64
#: What is judged; the teacher stands beside it.
COLUMNS = ("student", "attainable", "floor", "best", "trivial")

#: One number per input, by column and quantity.
Judged = dict[tuple[str, str], Tensor]
#: The numbers of all inputs, ``(N,)`` each.
Values = dict[tuple[str, str], NDArray[np.float64]]


@dataclass(frozen=True)
class Plan:
    """Numbers of draws and inputs of a comparison; see `pyro_opu.fidelity`."""

    num_draws: int  # S, in each of the two sets of draws
    size: float  # M, draws that the posterior holds; infinite where it draws afresh
    chunk_size: int | None
    wasserstein_inputs: int
    wasserstein_draws: int


class Judge(ABC):
    """What an outcome decides of a comparison: how to ask, what to measure, how to sum it up."""

    #: The kind of table that comes out.
    table: ClassVar[type[SetFidelity]] = SetFidelity
    #: Its words, and the row of the energy distance that is about the epistemic part.
    terms: ClassVar[Terms]
    energy: ClassVar[str] = "energy_distance"

    def __init__(self, teacher: Any, columns: int = 1) -> None:
        self.teacher = teacher  # it has seen an input
        self.columns = columns  # numbers of a row, each judged as a row of its own

    def begin(self, plan: Plan, x: Tensor) -> None:
        """Keep the plan, and make the trivial answer from draws at the main inputs ``(N, ...)``."""
        self.plan = plan
        self.trivial = self.trivial_answer(x, min(plan.num_draws, TRIVIAL_DRAWS))

    @property
    @abstractmethod
    def width(self) -> int:
        """Numbers held at once per draw and input."""

    @abstractmethod
    def ask(self, student: Any, x: Tensor) -> Any:
        """The student's checked answer at ``x``."""

    @abstractmethod
    def draws(self, x: Tensor, count: int) -> Tensor:
        """The teacher's joint draws at ``x``, ``(S, n, K)``."""

    @abstractmethod
    def trivial_answer(self, x: Tensor, num_draws: int) -> Any:
        """One answer for all inputs, by the moments of all draws there together; ``(L,)``."""

    @abstractmethod
    def judge(self, answer: Any, draws: Tensor, picked: Tensor) -> list[Judged]:
        """The numbers of each turn, from draws ``(2 S, n, K)``; a costly one where picked."""

    @abstractmethod
    def rows(self, values: Values) -> dict[str, dict[str, float]]:
        """Numbers over all inputs by row and column."""

    @abstractmethod
    def near(self, turns: list[Values]) -> tuple[Nearness, tuple[CertaintyRow, ...]]:
        """How near the student is on all inputs, and by the teacher's certainty."""

    def facts(self, picked: Tensor) -> dict[str, Any]:
        """Further entries of the table."""
        return {}

    def compare(self, name: str, student: Any, x: Tensor, known: Known) -> SetFidelity:
        """All rows of one set of inputs: chunk by chunk, then summed up."""
        count = 2 * self.plan.num_draws
        rows = len(x) * self.columns
        picked = torch.zeros(rows, dtype=torch.bool)
        asked = min(self.plan.wasserstein_inputs, rows)
        picked[torch.linspace(0, rows - 1, asked).round().long()] = True
        by_input = picked.unflatten(0, (len(x), self.columns))
        found = [
            self.judge(
                self.ask(student, x[part]),
                self.draws(x[part], count),
                by_input[part].flatten(),
            )
            for part in chunks(len(x), count, self.width * self.columns, self.plan.chunk_size)
        ]
        turns = [_joined(turn) for turn in zip(*found, strict=True)]
        near, by_certainty = self.near(turns)
        numbers = self._average([self.rows(turn) for turn in turns], near)
        verdict = verdict_of(near, by_certainty, numbers, self.terms, known)
        return self.table(
            name=name,
            num_inputs=rows,
            rows=numbers,
            by_certainty=by_certainty,
            **verdict._asdict(),
            draws_interval=(near.draws.low, near.draws.high),
            **self.facts(picked),
        )

    def _average(self, turns: list[dict[str, dict[str, float]]], near: Nearness) -> dict[str, Row]:
        """The rows of one turn, or the averages of two, and those that follow from them."""
        rows = {
            row: {name: float(np.mean([turn[row][name] for turn in turns])) for name in cells}
            for row, cells in turns[0].items()
        }
        attainable = rows["kl"]["attainable"]
        over = {name: quotient(value, attainable) for name, value in rows["kl"].items()}
        draws = {n: as_draws(value, self.plan.num_draws, near.held) for n, value in over.items()}
        spread = rows.pop("spread")["teacher"]
        single, epistemic = near.single, rows.pop("epistemic_factor")
        epistemic |= {"student": single.found.value, "attainable": single.by_chance}
        ordered = {
            "kl": rows.pop("kl"),
            "draws": {**draws, "teacher": MOST_DRAWS},
            "kl_ratio": over,
            "epistemic_factor": epistemic,
            "energy_share": {n: quotient(v, spread) for n, v in rows[self.energy].items()},
            **rows,
        }
        return {row: Row(**cells) for row, cells in ordered.items()}


def repeated(answer: Any, rows: int) -> Any:
    """An answer ``(L,)`` for so many ``rows``, whose numbers stand one after the other."""
    tensors = {
        name: value.expand(rows // len(value), *value.shape).flatten(0, 1)
        for name, value in answer.as_tensors().items()
    }
    return answer.from_tensors(tensors)


def extrapolated(whole: Tensor, halves: Sequence[Tensor], left: float) -> Tensor:
    r"""Distance of a posterior from the answer with its moments, measured on 2 S and on S draws.

    The answer with the moments of n draws has a distance to these of
    :math:`D_n = D + c / n + O(1 / n^2)`, since they are a sample and the moments are fitted to
    them. The line is followed to the number of draws M that the posterior holds:

    .. math:: D_M = D_{2S} - (1 - 2 S / M)\, (D_S - D_{2S})
    """
    return whole - left * (torch.stack(list(halves)).mean(0) - whole)


def row_of(
    values: Values,
    name: str,
    sum_up: Callable[[NDArray[np.float64]], float],
    teacher: float,
    attainable: float | None = None,
) -> dict[str, float]:
    """The row of a quantity: numbers ``(N,)`` summed up by column, NaN where not measured.

    Where that was not measured, a perfect student has ``attainable``, by default ``teacher``.
    """
    found = {
        c: float(sum_up(values[c, name])) if (c, name) in values else math.nan for c in COLUMNS
    }
    if ("attainable", name) not in values:
        found["attainable"] = teacher if attainable is None else attainable
    return {**found, "teacher": teacher}


def _joined(judged: Sequence[Judged]) -> Values:
    """The numbers of all chunks, one after the other."""
    return {
        key: torch.cat([part[key] for part in judged if key in part]).double().cpu().numpy()
        for key in {key for part in judged for key in part}
    }
