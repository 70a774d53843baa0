"""Judging answers of a real y."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from pyro_opu.distributions import RealAnswer
from pyro_opu.distributions.normal import PredictiveNormal
from pyro_opu.judging.base import PartJudge
from pyro_opu.metrics.normals import energies, energies_of_moments, kl_of_normals, teacher_moments
from pyro_opu.objectives import Objective
from pyro_opu.objectives.normal import NormalMoments

__all__ = ["RealJudge"]


@dataclass(frozen=True)
class RealJudge(PartJudge):
    """Judges answers by draws of mean and log deviation of y, ``(S, N, 2)``.

    Attributes:
        by_moments: Judge the energy distance by the teacher's moments, not its draws: wrong moments
            may happen to be nearer to draws that no normal can follow.
    """

    epistemic = "epistemic_share"
    fewest = 2

    by_moments: bool = False

    def for_objective(self, objective: Objective) -> RealJudge:
        """By moments where these are what is taught."""
        return replace(self, by_moments=isinstance(objective, NormalMoments))

    def mean_of(self, answer: RealAnswer) -> PredictiveNormal:
        return answer.normal()

    def mean_of_draws(self, draws: Tensor) -> PredictiveNormal:
        return teacher_moments(draws)

    def kl(self, mean: PredictiveNormal, other: PredictiveNormal) -> Tensor:
        return kl_of_normals(mean, other)

    def energy(self, answer: RealAnswer) -> Tensor:
        """That of y plus that of its mean f: y alone does not say which variance is epistemic."""
        return self._energy(answer, math.inf)

    def _energy(self, answer: RealAnswer, size: float) -> Tensor:
        """From so many draws of a posterior."""
        if self.by_moments:
            of_y, of_mean = energies_of_moments(answer, self.draws)
        else:
            of_y, of_mean = energies(answer, self.draws, size)
        return of_y + of_mean

    def energies(self, answer: RealAnswer) -> tuple[float, float]:
        found = float(self._energy(answer, self.held or math.inf).mean())
        if self.by_moments:  # half of S draws are as far from all S as these are from a posterior
            halves = [float(self.energy(half).mean()) for half in self.means]
            return found, sum(halves) / len(halves)
        itself = float(self._energy(answer, len(self.draws)).mean())
        return found, itself - float(self.energy(answer).mean())

    def epistemic_parts(self, answer: RealAnswer) -> tuple[Tensor, Tensor, Tensor]:
        """Shares of the teacher's variance of y."""
        teacher, f = teacher_moments(self.draws), self.draws[..., 0]
        mine, theirs = (each.epistemic / teacher.variance for each in (answer.normal(), teacher))
        return mine, theirs, (f - f.mean(0)).square()
