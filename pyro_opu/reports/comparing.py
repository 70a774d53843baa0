"""Comparing a student with its teacher: chunk by chunk, then summed up in rows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_opu.checks import ArgumentError
from pyro_opu.distributions import Answer, RealAnswer, SimplexDistribution
from pyro_opu.distributions.dirichlet import PredictiveDirichlet, moment_matched
from pyro_opu.distributions.normal import PredictiveNormal
from pyro_opu.judging.advice import Known
from pyro_opu.judging.base import LEVELS, Judged, PartJudge
from pyro_opu.judging.classes import ClassJudge
from pyro_opu.judging.nearness import Nearness, nearness
from pyro_opu.judging.real import VARIANCES, RealJudge
from pyro_opu.judging.yardstick import MOST_DRAWS, as_draws, quotient, typical_factor
from pyro_opu.metrics.normals import teacher_moments
from pyro_opu.metrics.ranks import spearman
from pyro_opu.parts import by_part
from pyro_opu.reports.answers import Student, check_numbers, student_answer
from pyro_opu.reports.certainty import certainty_rows, values_of
from pyro_opu.reports.fidelity_report import RealSetFidelity, Row, SetFidelity
from pyro_opu.reports.verdict import CLASSES, REAL, Terms, verdict_of
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.utils.chunks import chunks

__all__ = ["ClassComparison", "Comparison", "Plan", "RealComparison", "comparisons_of"]

#: Draws per input from which the trivial answer is made; they are averaged over all inputs.
TRIVIAL_DRAWS = 64
#: What is judged; the teacher stands beside it.
COLUMNS = ("student", "attainable", "floor", "best", "trivial")
_HALVES = ("first half", "second half")
#: A mutual information or variance of this size is float32 rounding of draws that all agree.
_ROUNDING = 1e-7

#: The numbers of all inputs, ``(N,)`` each.
Values = dict[tuple[str, str], NDArray[np.float64]]


@dataclass(frozen=True)
class Plan:
    """Numbers of draws and inputs of a comparison; see `pyro_opu.fidelity`."""

    num_draws: int  # S, in each of the two sets of draws
    held: int | None  # M, draws that the posterior holds; None where it draws afresh
    chunk_size: int | None
    wasserstein_inputs: int


class Comparison(ABC):
    """A student and its teacher, of one part of what is observed: what is asked and shown.

    Args:
        student: What `fidelity` takes.
        teacher: It has seen an input.
        number: Which of the parts it is.
    """

    judge: ClassVar[type[PartJudge]]
    #: The kind of table that comes out, and its words.
    table: ClassVar[type[SetFidelity]]
    terms: ClassVar[Terms]
    #: The row of the energy distance that is about the epistemic part.
    energy: ClassVar[str] = "energy_distance"

    def __init__(self, student: Student, teacher: BaseTeacher, number: int = 0) -> None:
        self.student, self.teacher, self.number = student, teacher, number
        self.part = teacher.outcome.parts[number]
        self.columns, self.width = self.part.columns, self.part.width
        self.ending = f", {self.part.site}" if len(teacher.outcome.parts) > 1 else ""

    @property
    def numbers(self) -> int:
        """Numbers held at once per draw and input."""
        return self.width * self.columns

    def ask(self, x: Tensor) -> Any:
        """The student's checked answer at ``x``, batch shape ``(N L,)``."""
        outcome = self.teacher.outcome
        answer = student_answer(self.student, x, outcome.answers)
        return self.checked(outcome.each(answer)[self.number])

    @abstractmethod
    def checked(self, answer: Any) -> Any:
        """The answer, with the numbers that the teacher has."""

    def draws(self, x: Tensor, count: int) -> Tensor:
        """The teacher's joint draws ``(S, N L, width)``, in random order, as no chain has it."""
        draws = self.teacher.draws(x, count)
        draws = draws[torch.randperm(len(draws), device=draws.device)]
        return by_part(draws, self.teacher.outcome.parts)[self.number]

    def begin(self, plan: Plan, x: Tensor) -> None:
        """Keep the plan, and make the trivial answer from draws at the main inputs ``(N, ...)``."""
        self.plan, count = plan, min(plan.num_draws, TRIVIAL_DRAWS)
        some = chunks(len(x), count, self.numbers, plan.chunk_size)
        self.trivial = self.trivial_answer(
            self.draws(x[each], count).unflatten(1, (-1, self.columns)) for each in some
        )

    @abstractmethod
    def trivial_answer(self, blocks: Iterator[Tensor]) -> Any:
        """One answer for all inputs, by the moments of all draws ``(S, n, L, width)``; ``(L,)``."""

    @abstractmethod
    def rows(self, values: Values) -> dict[str, dict[str, float]]:
        """Numbers over all inputs by row and column."""

    def facts(self, costly: Tensor) -> dict[str, Any]:
        """Further entries of the table."""
        return {}

    def compare(self, name: str, x: Tensor, known: Known) -> SetFidelity:
        """All rows of one set of inputs."""
        plan, rows = self.plan, len(x) * self.columns
        costly = torch.zeros(rows, dtype=torch.bool)
        asked = min(plan.wasserstein_inputs, rows)
        costly[torch.linspace(0, rows - 1, asked).round().long()] = True
        by_input = costly.unflatten(0, (len(x), self.columns))
        found = []
        blocks = chunks(len(x), 2 * plan.num_draws, self.numbers, plan.chunk_size)
        for block, some in enumerate(blocks):
            answer, draws = self.ask(x[some]), self.draws(x[some], 2 * plan.num_draws)
            judge = self.judge(x[some], draws, plan.held, block=block)
            trivial = _repeated(self.trivial, judge.draws.shape[1])
            picked = by_input[some].flatten()
            found.append(judge.turns(answer, trivial, picked))
        turns = [_joined(turn) for turn in zip(*found, strict=True)]
        whole, by_class = values_of(turns, self.energy)
        judges = plan.num_draws, plan.held or math.inf
        near = nearness(whole, *judges)
        by_certainty = certainty_rows(by_class, *judges) if by_class else ()
        numbers = self._average([self.rows(turn) for turn in turns], near)
        verdict = verdict_of(near, by_certainty, numbers, self.terms, known)
        return self.table(
            name=name + self.ending,
            num_inputs=rows,
            rows=numbers,
            by_certainty=by_certainty,
            **verdict._asdict(),
            draws_interval=(near.draws.low, near.draws.high),
            **self.facts(costly),
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


class ClassComparison(Comparison):
    """Comparison of class labels."""

    judge = ClassJudge
    table = SetFidelity
    terms = CLASSES

    def checked(self, answer: SimplexDistribution) -> SimplexDistribution:
        if answer.event_shape[0] != self.width:
            raise ArgumentError(
                f"`student` must have the teacher's {self.width} classes; it has "
                f"{answer.event_shape[0]}. Pass a student that was distilled from this teacher."
            )
        check_numbers(answer.log_mean, answer.log_concentration)
        return answer

    def trivial_answer(self, blocks: Iterator[Tensor]) -> PredictiveDirichlet:
        count, mean, square = 0, torch.zeros(()), torch.zeros(())
        for draws in blocks:
            count += draws.shape[1]
            mean = draws.mean(0).sum(0) + mean.to(draws)
            square = draws.square().sum(-1).mean(0).sum(0) + square.to(draws)
        mean, square = mean / count, square / count
        within, between = 1 - square, square - mean.square().sum(-1)
        return moment_matched(mean, torch.where(between > 0, within / between, torch.inf))

    def rows(self, values: Values) -> dict[str, dict[str, float]]:
        row = partial(_row, values)
        rows = {name: row(name, _mean, 0.0) for name in ("kl", "energy_distance")}
        rows["spread"] = row("spread", _mean, _mean(values["teacher", "spread"]))
        first, second = (values[half, "mutual_information"] for half in _HALVES)
        rows["epistemic_factor"] = {**row("", _mean, 1.0), "floor": typical_factor(first, second)}
        rows["wasserstein"] = row("wasserstein", _mean, math.nan)
        for name in ("mutual_information", "variance"):
            truth = values["teacher", name]
            mean = float(truth.mean())
            rows[name] = row(name, _mean, mean)
            error = partial(_relative_error, mean)
            rows[f"{name}_error"] = row(name, error, 0.0, attainable=error(truth))
            first, second = (values[half, name] for half in _HALVES)
            rows[f"{name}_error"]["floor"] = abs(_relative_error(_mean(first), second))
            ranked = partial(spearman, b=truth, rounding=_ROUNDING)
            rows[f"{name}_spearman"] = row(name, ranked, 1.0)
        rows |= {name: row(name, _mean, level) for name, level in LEVELS.items()}
        return rows | {"agreement": row("agreement", _mean, 1.0)}

    def facts(self, costly: Tensor) -> dict[str, Any]:
        return {"num_classes": self.width, "wasserstein_inputs": int(costly.sum())}


class RealComparison(Comparison):
    """Comparison of a real y."""

    judge = RealJudge
    table = RealSetFidelity
    terms = REAL
    energy = "mean_energy_distance"

    @property
    def numbers(self) -> int:
        return 16 * self.columns  # of the pairs that distances are made of

    def draws(self, x: Tensor, count: int) -> Tensor:
        return super().draws(x, count).double()

    def checked(self, answer: RealAnswer) -> RealAnswer:
        normal = answer.normal()
        check_numbers(normal.mean, normal.log_variance)
        return answer

    def trivial_answer(self, blocks: Iterator[Tensor]) -> PredictiveNormal:
        return teacher_moments(torch.cat(list(blocks), 1).flatten(0, 1))

    def rows(self, values: Values) -> dict[str, dict[str, float]]:
        row = partial(_row, values)
        rows = {
            "kl": row("kl", _mean, 0.0),
            "mean_error": row("mean_error", lambda squares: math.sqrt(_mean(squares)), 0.0),
        }
        rows |= {n: row(n, _mean, 0.0) for n in ("energy_distance", "mean_energy_distance")}
        for name in VARIANCES:
            truth = values["teacher", name]
            rows[name] = row(name, _mean, _mean(truth))
            rows[f"{name}_error"] = row(name, partial(_typical_error, truth), 0.0)
            rows[f"{name}_spearman"] = row(name, partial(spearman, b=truth), 1.0)
        factor = typical_factor(values["floor", "epistemic"], values["teacher", "epistemic"])
        rows["epistemic_factor"] = {**row("", _mean, 1.0), "floor": factor}
        rows["spread"] = row("spread", _mean, _mean(values["teacher", "spread"]))
        return rows | {name: row(name, _mean, level) for name, level in LEVELS.items()}


def comparisons_of(student: Student, teacher: BaseTeacher) -> list[Comparison]:
    """One of every part that the teacher observes."""
    parts = enumerate(teacher.outcome.parts)
    kinds = ((ClassComparison if part.on_simplex else RealComparison, n) for n, part in parts)
    return [kind(student, teacher, number) for kind, number in kinds]


def _mean(values: Any) -> float:
    return float(values.mean())


def _relative_error(mean: float, values: object) -> float:
    return quotient(_mean(values), mean, _ROUNDING) - 1


def _typical_error(truth: Any, values: Any) -> float:
    """The median of the relative errors."""
    return float(np.median(abs(values / truth - 1)))


def _row(
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


def _repeated(answer: Answer, rows: int) -> Any:
    """An answer ``(L,)`` for so many ``rows``, whose numbers stand one after the other."""
    tensors = {
        name: value.expand(rows // len(value), *value.shape).flatten(0, 1)
        for name, value in answer.as_tensors().items()
    }
    return answer.from_tensors(tensors)


def _joined(judged: Sequence[Judged]) -> Values:
    """The numbers of all chunks, one after the other."""
    return {
        key: torch.cat([part[key] for part in judged if key in part]).double().cpu().numpy()
        for key in {key for part in judged for key in part}
    }
