"""Judging answers of a real y."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pyro_opu.distributions import RealAnswer
from pyro_opu.distributions.normal import PredictiveNormal
from pyro_opu.judging.base import LEVELS, Judged, PartJudge
from pyro_opu.judging.yardstick import relative_noise
from pyro_opu.metrics.normals import (
    cdf_of_mean,
    energies,
    energies_of_draws,
    energies_of_moments,
    kl_of_normals,
    spread_of_mean,
    teacher_moments,
)
from pyro_opu.objectives import Objective
from pyro_opu.objectives.normal import NormalMoments

__all__ = ["VARIANCES", "RealJudge"]

#: The parts of the variance of y.
VARIANCES = ("aleatoric", "epistemic")


@dataclass(frozen=True)
class RealJudge(PartJudge[RealAnswer, PredictiveNormal]):
    """Judges answers by draws of mean and log deviation of y, ``(S, N, 2)``.

    Attributes:
        by_moments: Judge the energy distance by the teacher's moments, not its draws: wrong moments
            may happen to be nearer to draws that no normal can follow.
    """

    epistemic = "epistemic_share"
    unit_of_gaps = "deviations"
    fewest = 2

    by_moments: bool = False

    def for_objective(self, objective: Objective) -> RealJudge:
        """By moments where these are what is taught."""
        return replace(self, by_moments=isinstance(objective, NormalMoments))

    def mean_of(self, answer: RealAnswer) -> PredictiveNormal:
        return answer.normal()

    def mean_of_draws(self, draws: Tensor) -> PredictiveNormal:
        return teacher_moments(draws)

    def gaps(self, answer: RealAnswer) -> Tensor:
        """In predictive deviations of the posterior."""
        teacher = teacher_moments(self.draws)
        return (answer.normal().mean - teacher.mean).abs() / teacher.scale

    def kl(self, mean: PredictiveNormal, other: PredictiveNormal) -> Tensor:
        return kl_of_normals(mean, other)

    def energy(self, answer: RealAnswer) -> Tensor:
        """The sum for y and for its mean f: y alone does not say which variance is epistemic."""
        return self._energy(answer, math.inf)

    def _energy(self, answer: RealAnswer, size: float) -> Tensor:
        """From so many draws of a posterior."""
        if self.by_moments:
            of_y, of_mean = energies_of_moments(answer, self.draws)
        else:
            of_y, of_mean = energies(answer, self.draws, size)
        return of_y + of_mean

    def energies(self, answer: RealAnswer) -> tuple[float, float]:
        found = float(self._energy(answer, self.size).mean())
        if self.by_moments:  # half of S draws are as far from all S as these are from a posterior
            halves = [float(self.energy(half).mean()) for half in self.means]
            return found, sum(halves) / len(halves)
        itself = float(self._energy(answer, len(self.draws)).mean())
        return found, itself - float(self.energy(answer).mean())

    def epistemic_parts(self, answer: RealAnswer) -> tuple[Tensor, Tensor, Tensor]:
        """Shares of the teacher's variance of y."""
        teacher, f = teacher_moments(self.draws), self.draws[..., 0]
        mine, theirs = (each.epistemic / teacher.variance for each in (answer.normal(), teacher))
        return mine, theirs, (f - f.mean(0)).square() / teacher.variance

    @cached_property
    def best(self) -> PredictiveNormal:
        """The normal with the moments of both halves."""
        return teacher_moments(torch.cat(self.halves))

    @cached_property
    def best_energies(self) -> tuple[Tensor, ...]:
        """Its energy distances of y and of f from the posterior."""
        sets = [torch.cat(self.halves), *self.halves]
        found = [energies(teacher_moments(draws), draws, len(draws)) for draws in sets]
        return tuple(self.extrapolated(w, halves) for w, *halves in zip(*found, strict=True))

    def of_all(self, answer: RealAnswer) -> Judged:
        """Epistemic parts, and shares of the variance of their sum, as inputs share their draws."""
        mine, theirs, squares = self.epistemic_parts(answer)
        left, count = max(0.0, 1 / len(self.draws) - 1 / self.size), squares.shape[1]
        return {
            ("verdict", "uncertainty"): mine,
            ("verdict", "uncertainty_teacher"): theirs,
            ("verdict", "noise"): (squares.sum(-1).var() * left / count).expand(count),
            ("verdict", "noise_single"): relative_noise(squares, self.size),
        }

    def turn(
        self,
        answer: RealAnswer,
        trivial: RealAnswer,
        one: int,
        other: int,
        costly: Tensor,
    ) -> Judged:
        a, b = self.halves[one], self.halves[other]
        teacher, floor, best = self.means[one], self.means[other], self.best
        distances = {
            "student": energies(answer, a, self.size),
            "attainable": (torch.zeros_like(best.mean),) * 2,
            "floor": energies_of_draws(b, a),
            "best": self.best_energies,
            "trivial": energies(trivial, a, self.size),
        }
        normals = {"student": answer.normal(), "floor": floor, "best": best}
        normals["trivial"] = trivial.normal()
        out = {("teacher", name): getattr(teacher, name) for name in VARIANCES}
        for column, normal in normals.items():
            out |= {(column, name): getattr(normal, name) for name in VARIANCES}
        for column, normal in (normals | {"attainable": best}).items():
            # The mean of S draws is further from that of M than from that of 2 S, by this factor.
            sampling = 2 * self.left if normal is best else 1.0
            of_y, of_mean = distances[column]
            error = ((normal.mean - teacher.mean) / teacher.scale).square()
            out |= {
                (column, "kl"): self.kl(teacher, normal) * sampling,
                (column, "mean_error"): error * sampling,
                (column, "energy_distance"): of_y,
                (column, "mean_energy_distance"): of_mean,
            }
        for column, each in {"student": answer, "best": best, "trivial": trivial}.items():
            below = cdf_of_mean(each, a)
            for name, level in LEVELS.items():
                out[column, name] = ((below - 0.5).abs() <= level / 2).double().mean(0)
        apart = (teacher.mean - floor.mean).abs() / best.scale
        by_chance = math.sqrt(max(0.0, 2 * self.left - 1)) / 2
        return out | {
            ("teacher", "spread"): spread_of_mean(a),
            ("verdict", "kl_attainable"): out["attainable", "kl"],
            ("verdict", "gap"): (normals["student"].mean - best.mean).abs() / best.scale,
            ("verdict", "gap_by_chance"): apart * by_chance,
        }
