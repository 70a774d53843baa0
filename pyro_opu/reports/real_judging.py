"""What `pyro_opu.fidelity` measures where the teacher's outcome is a real value."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyro_opu.distributions.normal import PredictiveNormal, RealAnswer
from pyro_opu.judging.nearness import LEVELS, Nearness, nearness
from pyro_opu.judging.yardstick import relative_noise, typical_factor
from pyro_opu.metrics.distances import split
from pyro_opu.metrics.normals import (
    cdf_of_mean,
    energies,
    energies_of_draws,
    kl_of_normals,
    spread_of_mean,
    teacher_moments,
)
from pyro_opu.metrics.ranks import spearman
from pyro_opu.reports.answers import check_numbers, student_answer
from pyro_opu.reports.certainty import CertaintyRow
from pyro_opu.reports.fidelity_report import RealSetFidelity
from pyro_opu.reports.judging import Judge, Judged, Values, extrapolated, repeated, row_of
from pyro_opu.reports.verdict import REAL
from pyro_opu.utils.chunks import chunks

__all__ = ["RealJudge"]

_VARIANCES = ("aleatoric", "epistemic")
# What the verdict needs, by column and quantity of the values.
_VERDICT = {
    "kl": ("student", "kl"),
    "kl_attainable": ("attainable", "kl"),
    "uncertainty": ("share", "student"),
    "uncertainty_teacher": ("share", "teacher"),
    "noise": ("share", "noise"),
    "noise_single": ("share", "noise_single"),
    "distance": ("student", "mean_energy_distance"),
    "spread": ("teacher", "spread"),
    **{name: ("student", name) for name in LEVELS},
    "gap": ("gap", "student"),
    "gap_by_chance": ("gap", "by chance"),
}


class RealJudge(Judge):
    """Judges answers of a real y; see `pyro_opu.fidelity`."""

    table = RealSetFidelity
    terms = REAL
    energy = "mean_energy_distance"
    width = 16

    def ask(self, student: Any, x: Tensor) -> RealAnswer:
        answer: RealAnswer = student_answer(student, x, RealAnswer, self.columns)
        normal = answer.normal()
        check_numbers(normal.mean, normal.log_variance)
        return answer

    def draws(self, x: Tensor, count: int) -> Tensor:
        return self.teacher.draws(x, count).double()

    def trivial_answer(self, x: Tensor, num_draws: int) -> PredictiveNormal:
        parts = chunks(len(x), num_draws, self.width * self.columns, self.plan.chunk_size)
        draws = torch.cat([self.draws(x[part], num_draws) for part in parts], 1)
        return teacher_moments(draws.reshape(-1, self.columns, 2))

    def judge(self, answer: RealAnswer, draws: Tensor, picked: Tensor) -> list[Judged]:
        """The first half of the draws judges, in one turn."""
        trivial = repeated(self.trivial, draws.shape[1])
        judged = _judged(answer, trivial, *split(draws), self.plan.size)
        return [judged | _sampling(draws, self.plan.size)]

    def rows(self, values: Values) -> dict[str, dict[str, float]]:
        row = partial(row_of, values)
        rows = {
            "kl": row("kl", _mean, 0.0),
            "mean_error": row("mean_error", lambda squares: math.sqrt(_mean(squares)), 0.0),
        }
        rows |= {n: row(n, _mean, 0.0) for n in ("energy_distance", "mean_energy_distance")}
        for name in _VARIANCES:
            truth = values["teacher", name]
            rows[name] = row(name, _mean, _mean(truth))
            rows[f"{name}_error"] = row(name, partial(_typical_error, truth), 0.0)
            rows[f"{name}_spearman"] = row(name, partial(spearman, b=truth), 1.0)
        factor = typical_factor(values["floor", "epistemic"], values["teacher", "epistemic"])
        rows["epistemic_factor"] = {**row("", _mean, 1.0), "floor": factor}
        rows["spread"] = row("spread", _mean, _mean(values["teacher", "spread"]))
        return rows | {name: row(name, _mean, level) for name, level in LEVELS.items()}

    def near(self, turns: list[Values]) -> tuple[Nearness, tuple[CertaintyRow, ...]]:
        values = {name: turns[0][key] for name, key in _VERDICT.items()}
        return nearness(values, self.plan.num_draws, self.plan.size), ()


def _mean(values: Any) -> float:
    return float(torch.from_numpy(values).mean())


def _typical_error(truth: Any, values: Any) -> float:
    """The median of the relative errors; of an even number, the lower of the two middle ones."""
    return float(torch.from_numpy(abs(values / truth - 1)).median())


def _judged(
    student: RealAnswer, trivial: PredictiveNormal, a: Tensor, b: Tensor, size: float
) -> Judged:
    """Every answer against the draws ``a``, one number per input; ``b`` are others."""
    draws = torch.cat([a, b])
    teacher, other, best = teacher_moments(a), teacher_moments(b), teacher_moments(draws)
    left = 1 - len(draws) / size
    distances = {
        "student": energies(student, a, size),
        "attainable": (torch.zeros_like(best.mean),) * 2,
        "floor": energies_of_draws(b, a),
        "best": _best_energies(a, b, left),
        "trivial": energies(trivial, a, size),
    }
    normals = {"student": student.normal(), "floor": other, "best": best, "trivial": trivial}
    out = {("teacher", name): getattr(teacher, name) for name in _VARIANCES}
    for column, normal in normals.items():
        out |= {(column, name): getattr(normal, name) for name in _VARIANCES}
    for column, normal in (normals | {"attainable": best}).items():
        # The mean of S draws is further from that of M than from that of 2 S, by this factor.
        sampling = 1 + left if normal is best else 1.0
        error = ((normal.mean - teacher.mean) / teacher.scale).square()
        of_y, of_mean = distances[column]
        out |= {
            (column, "kl"): kl_of_normals(teacher, normal) * sampling,
            (column, "mean_error"): error * sampling,
            (column, "energy_distance"): of_y,
            (column, "mean_energy_distance"): of_mean,
        }
    for column in ("student", "best", "trivial"):
        answer = {"student": student, "best": best, "trivial": trivial}[column]
        below = cdf_of_mean(answer, a)
        for name, level in LEVELS.items():
            out[column, name] = ((below - 0.5).abs() <= level / 2).double().mean(0)
    out["teacher", "spread"] = spread_of_mean(a)
    out["gap", "student"] = (normals["student"].mean - best.mean).abs() / best.scale
    apart = (teacher.mean - other.mean).abs() / best.scale
    out["gap", "by chance"] = apart * math.sqrt(max(0.0, left)) / 2
    # In units of y's variance, as shares of it.
    out["share", "student"] = normals["student"].epistemic / best.variance
    out["share", "teacher"] = best.epistemic / best.variance
    return out


def _best_energies(a: Tensor, b: Tensor, left: float) -> tuple[Tensor, ...]:
    """Energy distances of y and of f of the normals with the moments of a posterior."""
    sets = [torch.cat([a, b]), a, b]
    found = [energies(teacher_moments(draws), draws, len(draws)) for draws in sets]
    return tuple(extrapolated(whole, halves, left) for whole, *halves in zip(*found, strict=True))


def _sampling(draws: Tensor, size: float) -> Judged:
    """Shares of the variance of the sum of epistemic variances, from joint draws ``(S, N, 2)``."""
    f, count = draws[..., 0], draws.shape[1]
    squares = (f - f.mean(0)).square() / teacher_moments(draws).variance
    left = max(0.0, 1 / len(draws) - 1 / size)
    return {
        ("share", "noise"): (squares.sum(-1).var() * left / count).expand(count),
        ("share", "noise_single"): relative_noise(squares, size),
    }
