"""Laws without a density: their draws are what a network makes of noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions.utils import lazy_property

from pyro_opu.distributions.dirichlet import SimplexDistribution
from pyro_opu.distributions.empirical import Empirical
from pyro_opu.distributions.measures import SimplexMeasures, in_float64, point_moments
from pyro_opu.rng import drawing

__all__ = ["FromNoise", "Implicit"]

#: What a law without a density is asked for in vain, and what has one.
NO_DENSITY = (
    "a guide from noise gives draws and their moments, and no density. Call .matched() for the "
    'Dirichlet with its moments, or distil guide="mixture" or guide="logistic_normal".'
)
#: Logarithm of a variance that is none.
NO_VARIANCE = -60.0


class FromNoise:
    """What a network makes of standard normal noise at N rows.

    Args:
        make: Noise ``(S, N, D)``, or ``(S, 1, D)`` for all rows alike, -> values ``(S, N, ...)``,
            or a list of them.
        points: The fixed noise ``(P, D)`` that moments are averages over.
        rows: N.
    """

    def __init__(self, make: Callable[[Tensor], Any], points: Tensor, rows: int) -> None:
        self.make, self.points, self.rows = make, points, rows

    def fixed(self) -> Any:
        """Values ``(P, N, ...)`` at the fixed noise, the same at every call."""
        return self.make(self.points[:, None])

    def fresh(self, count: int) -> Any:
        """Values ``(S, N, ...)`` at new noise, of every row by itself."""
        noise = self.points.new_empty(self.rows, self.points.shape[1], count)
        with drawing(noise.device) as generator:
            noise.normal_(generator=generator)
        return self.make(noise.permute(2, 0, 1))


class PointMeasures(SimplexMeasures):
    """Measures of points that stand for a distribution whose density is unknown."""

    @property
    def differential_entropy(self) -> Tensor:
        """Entropy of the Dirichlet with the same moments."""
        value = in_float64(self.log_mean, self.concentration.log()).entropy()
        return torch.where(self.concentration.isfinite(), value, -torch.inf)


class Implicit(Empirical):
    r"""What a network makes of noise: any distribution of class probabilities with draws.

    .. math:: \pi = G(x, \epsilon), \qquad \epsilon \sim N(0, I_D)

    Draws are from new noise. Moments and :meth:`measures` are averages over P fixed points of
    noise, so that the same input has the same answer: they are off by what P quasi-random points
    leave. There is no density.

    Args:
        source: What gives normalised log-probabilities ``(S, N, C)``.
        num_inputs: N.
        num_classes: C.

    References:
        Mohamed and Lakshminarayanan (2016), Learning in implicit generative models.
    """

    def __init__(self, source: FromNoise, num_inputs: int, num_classes: int) -> None:
        SimplexDistribution.__init__(self, num_inputs, num_classes)
        self.source: FromNoise | None = source

    @lazy_property
    def log_points(self) -> Tensor:  # type: ignore[override]
        """Log-probabilities at the fixed noise, ``(P, N, C)``."""
        assert self.source is not None
        return self.source.fixed()

    def log_rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Logarithms of draws, ``(*sample_shape, N, C)``, with pathwise gradients."""
        if self.source is None:
            return super().log_rsample(sample_shape)
        shape = torch.Size(sample_shape)
        draws = self.source.fresh(shape.numel())
        return draws.reshape(*shape, *self.batch_shape, *self.event_shape)

    def measures(self) -> SimplexMeasures:
        """Averages over the fixed points; the entropy of a density is that of ``matched``."""
        return PointMeasures(self.log_points.dtype, *point_moments(self.log_points.double()))

    def log_prob(self, value: Tensor) -> Tensor:
        """Refused: there is no density."""
        raise NotImplementedError(f"`log_prob` needs a density: {NO_DENSITY}")

    def unflatten(self, shape: Sequence[int]) -> Implicit:
        return self.from_tensors({"log_points": self.log_points.unflatten(1, shape)})

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Any:
        """The distribution of the fixed points alone: its draws are chosen from them at random."""
        found, points = cls.__new__(cls), tensors["log_points"]
        TorchDistribution.__init__(found, points.shape[1:-1], points.shape[-1:], False)
        found.source, found.log_points = None, points
        return found
