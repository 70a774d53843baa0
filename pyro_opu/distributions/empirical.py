"""A few points of the simplex, equally likely: a small ensemble, or a mean alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_opu.checks import ArgumentError, check_tensor
from pyro_opu.distributions.dirichlet import SimplexDistribution
from pyro_opu.distributions.measures import SimplexMeasures, point_moments
from pyro_opu.rng import drawing

__all__ = ["Atoms", "Empirical"]


class Empirical(SimplexDistribution):
    r"""Equally likely points of the simplex at every input: a small ensemble, or a mean alone.

    .. math:: q(\pi \mid x) = \frac1K \sum_k \delta(\pi - \pi_k(x))

    The variance divides by K, not K - 1. With K = 1 the mutual information is 0 and the
    concentration infinite. There is no density, so no ``log_prob``. ``log_points`` are normalised
    log-probabilities, ``(K, N, C)``, finite.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {  # type: ignore[misc]
        "log_points": constraints.real_vector
    }

    def __init__(self, log_points: Tensor) -> None:
        if check_tensor("log_points", log_points, "(K, N, C)").dim() != 3 or not len(log_points):
            raise ArgumentError(
                "`log_points` must be log-probabilities (K, N, C) with K >= 1; got "
                f"{tuple(log_points.shape)}. For one point per input pass log_probs[None]."
            )
        super().__init__(*log_points.shape[1:])
        self.log_points = log_points

    @property
    def log_mean(self) -> Tensor:
        """Logarithm of the points' average, ``(N, C)``."""
        return self.log_points.logsumexp(0) - math.log(len(self.log_points))

    @property
    def variance(self) -> Tensor:
        """The mean of the points, ``(N, C)``."""
        return self.log_points.exp().var(0, correction=0)

    def log_rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Points chosen at random, for every input independently, ``(*sample_shape, N, C)``."""
        shape, (count, *rows, classes) = torch.Size(sample_shape), self.log_points.shape
        device, size = self.log_points.device, (shape.numel(), *rows, 1)
        with drawing(device) as generator:
            chosen = torch.randint(count, size, generator=generator, device=device)
        draws = self.log_points.gather(0, chosen.expand(*size[:-1], classes))
        return draws.reshape(*shape, *rows, classes)

    def as_tensors(self) -> dict[str, Tensor]:
        return {"log_points": self.log_points}

    def measures(self) -> SimplexMeasures:
        """Exact for these points."""
        return SimplexMeasures(self.log_points.dtype, *point_moments(self.log_points.double()))


#: The name of :class:`Empirical` until 1.0.
Atoms = Empirical
