"""Searching the subset of a pool of draws whose mean is nearest to the mean of all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag
from tqdm.auto import tqdm

from pyro_opu.teachers import HeldTeacher

__all__ = ["METHODS", "SubsetTable"]

#: Numbers in the sums of the subsets that are judged together.
AT_ONCE = 2**19
#: Draws among which greedy selection looks for the next one.
CANDIDATES = 8


class SubsetTable:
    r"""The pool's class probabilities at the inputs, by which subsets are judged.

    .. math::
        \mathrm{KL}_A = \sum_i w_i \big(R_i - 1 - \log R_i\big), \quad
        R_i = \frac1K \sum_{s \in A} r_{si}, \quad r_{si} = p_{si} / m_i, \quad w_i = m_i / N

    with i over inputs and classes and m the mean of p over the pool. Ratios keep their digits where
    p is small, and where R is nearly 1.
    """

    def __init__(self, held: HeldTeacher, x: Tensor, bar: tqdm) -> None:
        ratios, means = [], []
        for block in held.stream(x):
            block = block.to(torch.promote_types(block.dtype, torch.float32))
            log_mean = block.logsumexp(0) - math.log(len(block))
            ratios.append((block - log_mean).exp_().flatten(1))
            means.append(log_mean.exp().flatten())
        self.ratios = torch.cat(ratios, 1)  # (S, N C)
        weights = torch.cat(means)
        self.weights = weights / weights.sum()
        self.evaluations = 0
        self.bar = bar

    @property
    def size(self) -> int:
        """S."""
        return len(self.ratios)

    def judged(self, sums: Tensor, size: int) -> Tensor:
        """Divergences ``(B,)`` of subsets from their sums of ratios ``(B, N C)``, in place."""
        self.evaluations += len(sums)
        self.bar.update(len(sums))
        log_ratio = sums.div_(size).clamp_min_(torch.finfo(sums.dtype).tiny).log_()
        return -(log_ratio @ self.weights)  # sum_i w_i (R_i - 1) is zero for every subset

    def with_one_more(self, sum_of_others: Tensor, candidates: Tensor, size: int) -> Tensor:
        """Divergences ``(B,)`` of some draws with each of the candidates."""
        blocks = candidates.split(max(1, AT_ONCE // len(self.weights)))
        return torch.cat([self.judged(self.ratios[b] + sum_of_others, size) for b in blocks])

    def others(self, chosen: list[int], count: int) -> Tensor:
        """Up to ``count`` random draws that are not among the chosen."""
        free = torch.ones(self.size, dtype=torch.bool)
        free[chosen] = False
        left = free.nonzero().squeeze(1)
        return left[torch.randperm(len(left))[:count]]

    def divergence(self, chosen: Tensor) -> float:
        """Divergence of one subset, in float64."""
        ratio = self.ratios[chosen].double().mean(0).clamp_min(torch.finfo(torch.float32).tiny)
        return float((self.weights.double() * (ratio - 1 - ratio.log())).sum())


def _random(table: SubsetTable, size: int, tries: int) -> Tensor:
    """The best of random subsets."""
    best, found = math.inf, torch.arange(size)
    at_once = max(1, AT_ONCE // max(table.size, len(table.weights)))
    for start in range(0, tries, at_once):
        subsets = _random_subsets(table.size, size, min(at_once, tries - start))
        sums = embedding_bag(subsets.to(table.ratios.device), table.ratios, mode="sum")
        lowest, index = table.judged(sums, size).min(0)
        if float(lowest) < best:
            best, found = float(lowest), subsets[int(index)]
    return found


def _random_subsets(pool: int, size: int, count: int) -> Tensor:
    """Uniform subsets ``(count, size)`` without repetition: the first places of a shuffle."""
    order = torch.arange(pool).repeat(count, 1)
    rows = torch.arange(count)
    for place in range(size):
        other = torch.randint(place, pool, (count,))
        order[rows, place], order[rows, other] = order[rows, other], order[rows, place]
    return order[:, :size]


def _greedy(table: SubsetTable, size: int, tries: int) -> Tensor:
    """One draw after another, then swaps."""
    chosen: list[int] = []
    total = torch.zeros_like(table.weights)
    candidates = max(1, min(CANDIDATES, tries // (2 * size)))
    for count in range(1, size + 1):
        others = table.others(chosen, candidates)
        best = int(table.with_one_more(total, others, count).argmin()) if candidates > 1 else 0
        chosen.append(int(others[best]))
        total += table.ratios[chosen[-1]]
    lowest = float(table.judged(total.unsqueeze(0), size))
    candidates, most = 1, table.size - size
    while table.evaluations < tries:
        before = lowest
        lowest = _swap_each(table, chosen, lowest, min(candidates, most), tries)
        if lowest == before and candidates >= most:
            break
        candidates *= 2
    return torch.tensor(chosen)


def _swap_each(
    table: SubsetTable, chosen: list[int], lowest: float, candidates: int, tries: int
) -> float:
    """Swap the draw at every place for the best of some others, if that is lower; the lowest."""
    for place, own in enumerate(chosen):
        others = table.others(chosen, min(candidates, tries - table.evaluations))
        if not len(others):
            break
        rest = table.ratios[[s for s in chosen if s != own]].sum(0)
        found, best = table.with_one_more(rest, others, len(chosen)).min(0)
        if float(found) < lowest:
            chosen[place], lowest = int(others[int(best)]), float(found)
    return lowest


#: Name -> search: the indices ``(K,)`` of the subset.
Method = Literal["greedy", "random"]
METHODS: dict[Method, Callable[[SubsetTable, int, int], Tensor]] = {
    "greedy": _greedy,
    "random": _random,
}
