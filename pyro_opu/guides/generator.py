"""From noise to numbers: what the guides without a density share."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import repeat

import torch
from torch import Tensor, nn

from pyro_opu.distributions.logistic_normal import normal_points

__all__ = ["HIDDEN", "NOISE", "Generator"]

#: Points of noise that moments are averages over, numbers of noise in a draw, and units that it
#: passes through.
NUM_POINTS, NOISE, HIDDEN = 128, 4, 32
#: Numbers in the hidden layer that are made at once: four megabytes, which stay in a cache.
AT_ONCE = 2**20
#: Largest size of what a row says of a unit.
MOST_SIZE = 50.0
#: Range of the deviation that draws begin with.
LEAST, MOST = 0.05, 3.0


class Generator(nn.Module):
    r"""One layer from noise to numbers, whose units the input shifts and weighs.

    .. math::
        z = \mu(x) + V \big( a(x) \odot \mathrm{relu}(U \epsilon + b(x)) \big)

    The trunk is passed once for all draws. A draw costs D + K products for each of H units.

    Args:
        num_outputs: K.
        units: H.
        noise: D.
        num_points: P, points of the fixed noise.
    """

    points: Tensor

    def __init__(
        self,
        num_outputs: int,
        units: int = HIDDEN,
        noise: int = NOISE,
        num_points: int = NUM_POINTS,
    ) -> None:
        super().__init__()
        self.widths = (num_outputs, units, units)
        self.directions = nn.Parameter(torch.randn(noise, units) / math.sqrt(noise))
        self.weight = nn.Parameter(torch.randn(num_outputs, units) / math.sqrt(units))
        self.register_buffer("points", normal_points(noise, num_points).float())

    @torch.no_grad()
    def begin(self, bias: Tensor, deviation: float = 0.5) -> None:
        """Let a head's bias begin with no mean, units that bend at all places, and a deviation."""
        mean, scale, shift = bias.split(self.widths)
        mean.zero_()
        scale.fill_(min(max(deviation, LEAST), MOST))
        shift.normal_()

    @property
    def num_inputs(self) -> int:
        r"""Numbers of one row that shape its draws: :math:`\mu`, a and b."""
        return sum(self.widths)

    def at(self, shape: Tensor) -> Callable[[Tensor], Tensor]:
        """The values of these rows as a function of noise, by the weights of now."""
        weights = self.directions.clone(), self.weight.clone()
        return lambda noise: self(shape, noise, weights)

    def forward(
        self, shape: Tensor, noise: Tensor, weights: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """Values ``(S, N, K)`` of rows ``(N, num_inputs)`` at noise ``(S, N or 1, D)``.

        By the weights U and V, which are its own where none are given. The draws come last in
        memory, so that a row's own weights make all of them in two products.
        """
        by = (self.directions, self.weight) if weights is None else weights
        points = noise.permute(1, 2, 0)
        if torch.compiler.is_compiling():  # for any number of rows
            return self._made(shape, points, *by).permute(2, 0, 1)
        rows = max(1, AT_ONCE // (len(noise) * self.weight.shape[1]))
        some = points.split(rows) if len(points) > 1 else repeat(points)
        parts = [self._made(*pair, *by) for pair in zip(shape.split(rows), some, strict=False)]
        return (torch.cat(parts) if len(parts) > 1 else parts[0]).permute(2, 0, 1)

    def _made(self, shape: Tensor, noise: Tensor, directions: Tensor, weight: Tensor) -> Tensor:
        """Values ``(n, K, S)`` of some rows at noise ``(n or 1, D, S)``."""
        mean, of_units = shape.split([self.widths[0], 2 * self.widths[1]], -1)
        scale, shift = (MOST_SIZE * (of_units / MOST_SIZE).tanh()).chunk(2, -1)
        of_all = directions.mT.expand(len(shape), -1, -1), noise.expand(len(shape), -1, -1)
        hidden = torch.baddbmm(shift[..., None], *of_all).relu_()
        return torch.baddbmm(mean[..., None], weight * scale[:, None], hidden)
