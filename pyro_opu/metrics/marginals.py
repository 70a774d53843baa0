"""Draws in ascending order, class by class: distribution functions, and mean distances to them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

#: Draws that a distance between two sets of them sorts and sums at a time: what fits a cache.
BLOCK_NUMBERS = 2**18


class Marginals:
    """The marginals of draws on the simplex, sorted once and then asked at many points.

    Args:
        draws: ``(S, N, C)``; no gradient goes through them.

    Attributes:
        table: The same numbers as ``(N, C, S)``, ascending along S.
    """

    def __init__(self, draws: Tensor) -> None:
        blocks = draws.detach().split(_inputs(draws.shape[0] * draws.shape[2]), 1)
        self.table = torch.cat([_sorted(block) for block in blocks])

    def cdf(self, points: Tensor) -> Tensor:
        """Share of the draws below each point, class by class, ``(P, N, C)`` as ``points``."""
        below = torch.searchsorted(self.table, self._by_class(points))
        return (below / self.table.shape[-1]).permute(2, 0, 1).to(points.dtype)

    def distance(self, points: Tensor) -> Tensor:
        """Mean l1 distance ``(P, N)`` of points ``(P, N, C)`` to the draws."""
        return _distances(self.table, self._by_class(points)).sum(1).T.to(points.dtype)

    @cached_property
    def spread(self) -> Tensor:
        r""":math:`\mathbb{E}\|Y - Y'\|_1` of two different draws, ``(N,)``."""
        _, C, S = self.table.shape
        return torch.cat([_spread(block) for block in self.table.split(_inputs(S * C))])

    def energy_distance(self, draws: Tensor) -> Tensor:
        r""":math:`2\,\mathbb{E}\|Y - Z\|_1` less both spreads, without bias.

        Args:
            draws: Draws of Z, ``(P, N, C)``, sorted and let go a block of inputs at a time.

        Returns:
            The distance of each input, ``(N,)``, in float64.
        """
        _, C, S = self.table.shape
        inputs = _inputs(max(S, len(draws)) * C)
        blocks = zip(self.table.split(inputs), draws.detach().split(inputs, 1), strict=True)
        own, twice = [], []
        for table, block in blocks:
            other = _sorted(block)
            own.append(_spread(other))
            twice.append(2 * _distances(table, other).mean(-1).sum(-1))
        return torch.cat(twice) - self.spread - torch.cat(own)

    def _by_class(self, points: Tensor) -> Tensor:
        return points.detach().to(self.table.dtype).permute(1, 2, 0).contiguous()


def distance_from_dirichlet(alpha: Tensor, draws: Tensor) -> Tensor:
    r"""The energy distance of draws from a Dirichlet, less their own spread, without samples of it.

    .. math::
        2\,\mathbb{E}\|Y - Z\|_1 - \mathbb{E}\|Z - Z'\|_1, \qquad Z \sim \mathrm{Dir}(\alpha)

    Each marginal is a Beta(a, b), of mean m and distribution function F, for which

    .. math::
        \mathbb{E}|Z - y| = (y - m)\,(2F(y) - 1) + \frac{2\, y^a (1 - y)^b}{(a + b)\, B(a, b)},
        \qquad
        \mathbb{E}|Z - Z'| = \frac{4}{a + b} \frac{B(a + b, a + b)}{B(a, a)\, B(b, b)}

    Args:
        alpha: ``(N, C)``.
        draws: Draws of Y, ``(P, N, C)``; one is enough.

    Returns:
        The distance ``(N,)`` in float64 on the processor; by as many threads as torch takes.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        return _distance_from_betas(alpha, draws)
    parts = alpha.chunk(threads), draws.chunk(threads, 1)
    with ThreadPoolExecutor(threads) as pool:
        return torch.cat(list(pool.map(_distance_from_betas, *parts)))


def _distance_from_betas(alpha: Tensor, draws: Tensor) -> Tensor:
    from scipy.special import betainc, betaln, xlog1py, xlogy  # none of which holds Python's lock

    tiny = torch.finfo(torch.float64).tiny  # 0 would be no Beta
    a, y = (values.detach().double().cpu().numpy() for values in (alpha, draws))
    a, y, total = a.clip(tiny), y.clip(0, 1), a.sum(-1, keepdims=True)  # exp(log) may be above 1
    mirrored = a.shape[-1] == 2  # the two marginals; the rarer class keeps more digits
    if mirrored:
        rarer = a.argmin(-1)[:, None]
        a, y = np.take_along_axis(a, rarer, -1), np.take_along_axis(y, rarer[None], -1)
    b = (total - a).clip(tiny)
    log_beta = betaln(a, b)
    between = (y - a / total) * (2 * betainc(a, b, y) - 1)
    between += 2 / total * np.exp(xlogy(a, y) + xlog1py(b, -y) - log_beta)
    own = 4 / total * np.exp(betaln(total, total) - betaln(a, a) - betaln(b, b))
    return torch.from_numpy((2 * between.mean(0) - own).sum(-1)) * (2 if mirrored else 1)


def _inputs(numbers: int) -> int:
    """How many make a block, where each has so many numbers."""
    return max(1, BLOCK_NUMBERS // max(1, numbers))


def _sorted(draws: Tensor) -> Tensor:
    """Draws ``(S, N, C)`` in ascending order, ``(N, C, S)``."""
    return draws.permute(1, 2, 0).contiguous().sort(-1).values


def _spread(table: Tensor) -> Tensor:
    return difference_of_sorted(table.double()).sum(-1)


def _distances(table: Tensor, where: Tensor) -> Tensor:
    r"""Mean distances to sorted draws ``(N, C, S)`` of every class, of numbers ``(N, C, P)``.

    With F the distribution function and M(t) the mean of the draws below t, times their share:
    :math:`\mathbb{E}|t - Y| = t\,(2F(t) - 1) + \mathbb{E}Y - 2M(t)`. float32 would lose small
    distances in the sums.
    """
    below = torch.searchsorted(table, where)
    count = table.shape[-1]
    sums = pad(table.cumsum(-1, dtype=torch.float64), (1, 0))
    part, whole = sums.gather(-1, below), sums[..., -1:]
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
