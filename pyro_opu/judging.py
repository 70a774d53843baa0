"""Judging answers by a teacher's draws: the measuring half of `pyro_opu.fidelity`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_opu.coverage import central_coverage, central_coverage_of_draws
from pyro_opu.dirichlet import PredictiveDirichlet
from pyro_opu.distances import energy_distance, kl_from_log, wasserstein1
from pyro_opu.fidelity_report import Row
from pyro_opu.simplex import Answer as Distribution
from pyro_opu.uncertainty import epistemic_uncertainty, variance

__all__ = [
    "Answer",
    "average",
    "from_distribution",
    "from_draws",
    "judge",
    "moment_matched",
    "rows_of",
    "spreads",
]

_COLUMNS = ("student", "floor", "best", "trivial")
_COVERAGE = {"coverage_50": 0.5, "coverage_90": 0.9}
_HALVES = ("first half", "second half")
_SPREADS = ("mutual_information", "variance")
# The range of a moment-matched concentration: draws that all agree ask for infinity.
_CONCENTRATIONS = (1e-6, 1e8)
# A mutual information or variance of this size is float32 rounding of draws that all agree.
_ROUNDING = 1e-7

#: One number per input, by column and quantity.
Judged = dict[tuple[str, str], Tensor]


class Answer(NamedTuple):
    """A predictive distribution at ``n`` inputs, to judge or to be judged."""

    log_mean: Tensor  # (n, C)
    draws: Tensor  # (S, n, C)
    mutual_information: Tensor  # (n,)
    variance: Tensor  # (n,)
    distribution: Distribution | None = None  # of a student


def from_draws(draws: Tensor) -> Answer:
    """The answer of a teacher, from its draws ``(S, n, C)``."""
    mean, spread = draws.mean(0), draws.var(0)
    # The entropy of a mean of S draws is low by sum_k Var(pi_k) / (2 S m_k), to first order in 1/S.
    bias = (spread / mean.clamp_min(torch.finfo(mean.dtype).tiny)).sum(-1) / (2 * len(draws))
    return Answer(_log(mean), draws, epistemic_uncertainty(draws) + bias, spread.sum(-1))


def from_distribution(answer: Distribution, num_draws: int) -> Answer:
    """The answer of a student: its own measures, and draws to compare draws with."""
    return Answer(
        answer.log_mean,
        answer.sample((num_draws,)),
        epistemic_uncertainty(answer),
        variance(answer),
        answer,
    )


def moment_matched(mean: Tensor, concentration: Tensor) -> PredictiveDirichlet:
    """The Dirichlet with a mean and a concentration that were measured on draws."""
    return PredictiveDirichlet(_log(mean), concentration.clamp(*_CONCENTRATIONS).log())


def _log(mean: Tensor) -> Tensor:
    """Normalised and finite logarithm of probabilities."""
    return mean.clamp_min(torch.finfo(mean.dtype).tiny).log().log_softmax(-1)


def judge(
    target: Answer, answers: dict[str, Answer], chosen: Tensor, wasserstein_draws: int
) -> Judged:
    """Every answer against the draws that judge, input by input.

    Args:
        target: What judges: draws of the teacher.
        answers: What is judged, by column. ``floor`` are other draws of the teacher.
        chosen: Inputs for the 1-Wasserstein distance, boolean, shape ``(n,)``.
        wasserstein_draws: Draws for it, at most, when there are more than two classes.
    """
    weights = answers["floor"].log_mean.exp()
    cut = None if target.draws.shape[-1] == 2 else wasserstein_draws
    out: Judged = {
        ("teacher", "mutual_information"): target.mutual_information,
        ("teacher", "variance"): target.variance,
    }
    for column, answer in answers.items():
        out |= {
            (column, "kl"): kl_from_log(target.log_mean, answer.log_mean),
            (column, "energy_distance"): energy_distance(target.draws, answer.draws),
            (column, "mutual_information"): answer.mutual_information,
            (column, "variance"): answer.variance,
            (column, "agreement"): answer.log_mean.argmax(-1) == target.log_mean.argmax(-1),
        }
        if chosen.any():
            here = chosen.to(target.draws.device)
            samples = (target.draws[:cut, here], answer.draws[:cut, here])
            out[column, "wasserstein"] = wasserstein1(*samples)
        if answer.distribution is not None:
            covered = _coverage(answer, target.draws, weights)
            out |= {(column, name): part for name, part in zip(_COVERAGE, covered, strict=True)}
    return out


def _coverage(answer: Answer, draws: Tensor, weights: Tensor) -> Tensor:
    levels = list(_COVERAGE.values())
    if isinstance(answer.distribution, PredictiveDirichlet):
        return central_coverage(answer.distribution, draws, weights, levels)
    return central_coverage_of_draws(answer.draws, draws, weights, levels)


def spreads(draws: Tensor) -> Judged:
    """Mutual information and variance of both halves of joint draws ``(2 S, n, C)``.

    Their difference is the error of a mean over inputs that share the parameters of a draw.
    """
    out: Judged = {}
    for half, part in zip(_HALVES, draws.chunk(2), strict=True):
        answer = from_draws(part)
        out[half, "mutual_information"] = answer.mutual_information
        out[half, "variance"] = answer.variance
    return out


def rows_of(judged: list[Judged]) -> dict[str, dict[str, float]]:
    """Means, errors and rank correlations over all inputs, by row and column."""
    keys = {key for part in judged for key in part}
    values = {
        key: torch.cat([part[key] for part in judged if key in part]).double().cpu().numpy()
        for key in keys
    }

    def means(row: str, teacher: float) -> dict[str, float]:
        found = {c: values[c, row].mean() if (c, row) in values else math.nan for c in _COLUMNS}
        return {**found, "teacher": teacher}

    rows = {
        "kl": means("kl", 0.0),
        "energy_distance": means("energy_distance", 0.0),
        "wasserstein": means("wasserstein", math.nan),
    }
    for row in _SPREADS:
        truth = values["teacher", row]
        mean = truth.mean()
        rows[row] = means(row, mean)
        error = {c: rows[row][c] / mean - 1 if mean > _ROUNDING else math.nan for c in _COLUMNS}
        first, second = (values[half, row].mean() for half in _HALVES)
        floor = abs(second / first - 1) if first > _ROUNDING else math.nan
        rows[f"{row}_error"] = {**error, "floor": floor, "teacher": 0.0}
        rank = {c: _spearman(values[c, row], truth) for c in _COLUMNS}
        rows[f"{row}_spearman"] = {**rank, "teacher": 1.0}
    rows |= {name: means(name, level) for name, level in _COVERAGE.items()}
    return rows | {"agreement": means("agreement", 1.0)}


def average(turns: list[dict[str, dict[str, float]]]) -> dict[str, Row]:
    """The rows of one turn, or the averages of two."""
    return {
        row: Row(**{name: float(np.mean([turn[row][name] for turn in turns])) for name in cells})
        for row, cells in turns[0].items()
    }


def _spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Rank correlation; NaN where one side is constant to rounding: it is not defined there."""
    if len(a) < 2 or min(np.ptp(a), np.ptp(b)) < _ROUNDING:
        return math.nan
    from scipy.stats import spearmanr

    return float(spearmanr(a, b).statistic)
