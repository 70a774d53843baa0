"""Judging answers that are class probabilities."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from pyro_opu.distributions import SimplexDistribution
from pyro_opu.judging.base import PartJudge
from pyro_opu.metrics.distances import kl_from_log, log_mean_of
from pyro_opu.metrics.marginals import Marginals
from pyro_opu.metrics.uncertainty import epistemic_uncertainty
from pyro_opu.rng import seeded

__all__ = ["ClassJudge"]

#: Student's draws per input that the energy distance is judged by.
JUDGING_DRAWS = 256


class ClassJudge(PartJudge):
    """Judges answers by draws of class probabilities ``(S, N, C)``."""

    epistemic = "mutual_information"

    @cached_property
    def marginals(self) -> Marginals:
        """The draws in order."""
        return Marginals(self.draws)

    def mean_of(self, answer: SimplexDistribution) -> Tensor:
        return answer.log_mean.double().log_softmax(-1)

    def mean_of_draws(self, draws: Tensor) -> Tensor:
        return log_mean_of(draws)

    def kl(self, mean: Tensor, other: Tensor) -> Tensor:
        """Of log means ``(N, C)``; NaN of answers that hold it."""
        if bool(other.isnan().any()):
            return torch.full(mean.shape[:1], math.nan)
        return kl_from_log(mean, other.expand_as(mean))

    def energy(self, answer: SimplexDistribution) -> Tensor:
        with seeded(0):  # two students are compared on the same noise
            draws = answer.sample((JUDGING_DRAWS,))
        return self.marginals.energy_distance(draws)

    def energies(self, answer: SimplexDistribution) -> tuple[float, float]:
        spread = float(self.marginals.spread.mean())
        to_all = float(self.energy(answer).mean()) + spread / (self.held or math.inf)
        return to_all, spread / len(self.draws)

    def sampling_distance(self) -> float:
        r"""Energy distance, as :meth:`scores` has it, of S draws from their own posterior.

        .. math:: \mathbb{E}_x\,\mathbb{E}\|\pi - \pi'\|_1 \,(1 / S - 2 / M), \qquad M = \infty
            \text{ where every call draws afresh}

        A student that is nearer to the posterior answers better than S of its draws would.

        Of M draws that a posterior holds, S at random have a distance of 1 / S - 1 / M times the
        spread from all of them. The draws that judge are then among those that teach, so that
        :meth:`scores`, which takes them for new ones, finds 1 / M times the spread too little.
        """
        share = 1 / len(self.draws) - (0 if self.held is None else 2 / self.held)
        return float(self.marginals.spread.mean()) * share

    def epistemic_parts(self, answer: SimplexDistribution) -> tuple[Tensor, Tensor, Tensor]:
        draws = self.draws.double()
        gaps = (torch.xlogy(draws, draws) - torch.xlogy(draws, draws.mean(0))).sum(-1)
        # Of S draws it is low by a share of 1 / S, to first order.
        missing = 1 / len(draws) - 1 / (self.held or math.inf)
        theirs = epistemic_uncertainty(self.draws).double() * (1 + missing)
        return epistemic_uncertainty(answer).double(), theirs, gaps
