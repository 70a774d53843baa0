"""The posterior over the order of the rows of a pool, and Thompson sampling from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, check_bool, positive_int
from pyro_opu.inputs import InputLike
from pyro_opu.joint.draws import joint_draws
from pyro_opu.rng import seeded
from pyro_opu.teachers import Source

__all__ = ["Ranking", "ranking", "thompson"]


@dataclass(frozen=True, eq=False)
class Ranking:
    """The order of the rows of a pool under each posterior draw.

    Attributes:
        ranks: The rank of each row, ``(S, N)``; 0 is the best.
    """

    ranks: Tensor

    @property
    def best(self) -> Tensor:
        """Probability that a row is the best, ``(N,)``."""
        return self.top(1)

    @property
    def mean(self) -> Tensor:
        """Expected rank, ``(N,)``."""
        return self.ranks.double().mean(0)

    def top(self, k: int) -> Tensor:
        """Probability that a row is among the best ``k``, ``(N,)``."""
        return (self.ranks < positive_int("k", k)).double().mean(0)

    @property
    def distribution(self) -> Tensor:
        """Probability of each rank, ``(N, N)``: rows, then ranks."""
        draws, rows = self.ranks.shape
        counts = torch.zeros(rows, rows, dtype=torch.float64, device=self.ranks.device)
        ones = counts.new_ones(rows, draws)
        return counts.scatter_add_(1, self.ranks.mT, ones) / draws


def ranking(
    source: Source,
    x: InputLike,
    weights: Tensor | None = None,
    *,
    largest: bool = True,
    num_draws: int | None = None,
    seed: int | None = None,
) -> Ranking:
    """Rank the rows of a pool by what each counts on average, under every posterior draw.

    Args:
        source, x, weights, num_draws, seed: As in :func:`~pyro_opu.joint.total`: with two classes
            the score is by default the probability of class 1, of a real y its mean. Equal scores
            are put in random order.
        largest: Whether the largest score is the best.

    Returns:
        The ranks ``(S, N)``, and probabilities of them.

    Example:
        >>> slopes = torch.tensor([1.0, 2.0, -3.0, 4.0])
        >>> line = lambda x: (slopes[:, None] * x[:, 0], torch.ones(4, 1))
        >>> ranking(line, torch.tensor([[1.0], [2.0]])).best
        tensor([0.2500, 0.7500], dtype=torch.float64)
    """
    scores = _scores(source, x, weights, largest, num_draws, seed)
    with seeded(seed):
        shuffled = torch.rand_like(scores).argsort(1)
    order = scores.gather(1, shuffled).argsort(dim=1, descending=True, stable=True)
    places = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
    return Ranking(torch.empty_like(order).scatter_(1, shuffled.gather(1, order), places))


def thompson(
    source: Source,
    x: InputLike,
    size: int,
    weights: Tensor | None = None,
    *,
    largest: bool = True,
    seed: int | None = None,
) -> Tensor:
    """Thompson sampling of a batch: every draw takes the best row that is left.

    Args:
        source, x, weights, seed: As in :func:`~pyro_opu.joint.ranking`.
        size: Rows to choose, at most N, and at least 2 draws, each of which takes one.
        largest: Whether the largest score is the best.

    Returns:
        Different rows of the pool, ``(size,)``, in the order of the draws.

    Raises:
        ValueError: ``size`` is larger than the pool, or than the draws that the source holds.

    References:
        Thompson (1933), On the likelihood that one unknown probability exceeds another in view of
        the evidence of two samples. Kandasamy, Krishnamurthy, Schneider, Poczos (2018),
        Parallelised Bayesian optimisation via Thompson sampling.

    Example:
        >>> slopes = torch.tensor([1.0, 2.0, -3.0, 4.0])
        >>> line = lambda x: (slopes[:, None] * x[:, 0], torch.ones(4, 1))
        >>> thompson(line, torch.tensor([[1.0], [2.0]]), 2).sort().values
        tensor([0, 1])
    """
    scores = _scores(source, x, weights, largest, max(2, positive_int("size", size)), seed)
    draws, rows = scores.shape
    if size > min(draws, rows):
        raise ArgumentError(
            f"`size` must be at most {rows}, the rows of the pool, and {draws}, its draws; got "
            f"{size}."
        )
    chosen: list[int] = []
    with seeded(seed):
        turns = torch.randperm(draws)[:size]
    for score in scores[turns.to(scores.device)]:
        score[chosen] = -torch.inf
        chosen.append(int(score.argmax()))
    return torch.tensor(chosen, device=scores.device)


def _scores(
    source: Source,
    x: InputLike,
    weights: Tensor | None,
    largest: bool,
    num_draws: int | None,
    seed: int | None,
) -> Tensor:
    with torch.no_grad():
        values = joint_draws(source, x, num_draws, seed).values(weights)
        return values if check_bool("largest", largest) else -values
