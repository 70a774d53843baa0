"""Draws in ascending order, class by class: distribution functions, and mean distances to them."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad


class Marginals:
    """The marginals of draws on the simplex, sorted once and then asked at many points.

    Args:
        draws: ``(S, N, C)``; no gradient goes through them.

    Attributes:
        table: The same numbers as ``(N, C, S)``, ascending along S.
    """

    def __init__(self, draws: Tensor) -> None:
        self.table = draws.detach().permute(1, 2, 0).contiguous().sort(-1).values

    def cdf(self, points: Tensor) -> Tensor:
        """Share of the draws below each point, class by class, ``(P, N, C)`` as ``points``."""
        below = torch.searchsorted(self.table, self._by_class(points))
        return (below / self.table.shape[-1]).permute(2, 0, 1).to(points.dtype)

    def distance(self, points: Tensor) -> Tensor:
        """Mean l1 distance ``(P, N)`` of points ``(P, N, C)`` to the draws."""
        return self._distances(self._by_class(points)).sum(1).T.to(points.dtype)

    @cached_property
    def spread(self) -> Tensor:
        r""":math:`\mathbb{E}\|Y - Y'\|_1` of two different draws, ``(N,)``."""
        return difference_of_sorted(self.table.double()).sum(-1)

    def energy_distance(self, other: Marginals) -> Tensor:
        r""":math:`2\,\mathbb{E}\|Y - Z\|_1` less both spreads, ``(N,)``, without bias."""
        between = self._distances(other.table).mean(-1).sum(-1)
        return 2 * between - self.spread - other.spread

    @cached_property
    def _sums(self) -> Tensor:
        """Sums of the least 0, 1, ..., S draws, in which float32 would lose small distances."""
        return pad(self.table.cumsum(-1, dtype=torch.float64), (1, 0))

    def _by_class(self, points: Tensor) -> Tensor:
        return points.detach().to(self.table.dtype).permute(1, 2, 0).contiguous()

    def _distances(self, where: Tensor) -> Tensor:
        r"""Mean distances to the draws of every class, of numbers ``(N, C, P)``.

        With F the distribution function and M(t) the mean of the draws below t, times their share:
        :math:`\mathbb{E}|t - Y| = t\,(2F(t) - 1) + \mathbb{E}Y - 2M(t)`.
        """
        below = torch.searchsorted(self.table, where)
        count = self.table.shape[-1]
        part, whole = self._sums.gather(-1, below), self._sums[..., -1:]
        return where * (2 * below.double() / count - 1) + (whole - 2 * part) / count


def mean_absolute_difference(values: Tensor) -> Tensor:
    r"""Unbiased :math:`\mathbb{E}|X - X'|` of values along the last axis, by sorting.

    .. math:: \frac{2}{n(n-1)} \sum_i (2i - n - 1)\, x_{(i)}
    """
    return difference_of_sorted(values.sort(-1).values)


def difference_of_sorted(values: Tensor) -> Tensor:
    """`mean_absolute_difference` of values that are in ascending order."""
    count = values.shape[-1]
    rank = 2 * torch.arange(1, count + 1, dtype=values.dtype, device=values.device) - count - 1
    return (values * rank).sum(-1) * 2 / (count * (count - 1))
