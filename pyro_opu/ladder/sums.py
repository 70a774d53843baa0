"""Measures of draws that are added up block by block, while a block is in cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError
from pyro_opu.distributions.measures import (
    DrawMeasures,
    Measures,
    NormalMeasures,
    cached_property,
)
from pyro_opu.parts import Part

__all__ = ["Sums", "checked_levels", "laid_out", "sums_of"]

#: Draws that are added up in their own precision, and of how many numbers at least.
TOGETHER, MANY = 16, 2**15


class Sums:
    """Sums over draws of what they say of M numbers, in float64.

    Attributes:
        law: The measures that they give.

    Args:
        like: One draw, ``(M, width)``.
    """

    def __init__(self, like: Tensor) -> None:
        self.count, self.dtype = 0, like.dtype
        self.units = self.law.units
        self._sums: list[Tensor] = []

    law: ClassVar[type[Measures]] = NormalMeasures

    def add(self, said: Tensor, probs: Tensor | None = None) -> None:
        """Add draws ``(s, M, width)``, of which the exponential may be known."""
        self.count += len(said)
        found = [_total(each) for each in self._terms(said, probs)]
        before = self._sums or [torch.zeros((), dtype=torch.float64)] * len(found)
        self._sums = [a + b for a, b in zip(before, found, strict=True)]

    def means(self) -> list[Tensor]:
        """Averages over the draws."""
        return [total / self.count for total in self._sums]

    def _terms(self, said: Tensor, probs: Tensor | None = None) -> list[Tensor]:
        raise NotImplementedError

    def shown(self, said: Tensor) -> Tensor:
        """What ``mean`` is the mean of, under draws ``(s, M, width)``."""
        raise NotImplementedError

    def numbers(self, said: Tensor) -> Tensor:
        """What draws ``(s, M, width)`` say, ``(s, F)``, by which some may stand for all."""
        return said.flatten(1)

    def measures(self) -> Measures:
        """The measures of all draws so far."""
        raise NotImplementedError


class ClassSums(Sums):
    """Sums of log class probabilities ``(s, M, C)``."""

    law: ClassVar[type[Measures]] = DrawMeasures

    def _terms(self, said: Tensor, probs: Tensor | None = None) -> list[Tensor]:
        log_probs = said.clamp_min(math.log(torch.finfo(said.dtype).tiny))
        probs = said.exp() if probs is None else probs
        return [probs, log_probs, probs * log_probs, (1.0 - probs).mul_(probs)]

    def shown(self, said: Tensor) -> Tensor:
        return said.exp()

    def numbers(self, said: Tensor) -> Tensor:
        """Probabilities, and entropies that weigh as much."""
        probs, _, product, _ = self._terms(said)
        return torch.cat([probs, product.sum(-1, keepdim=True).expand_as(probs)], -1).flatten(1)

    def measures(self) -> Measures:
        return SummedDraws(self.count, self.dtype, *self.means())


class SummedDraws(DrawMeasures):
    """What :class:`.DrawMeasures` tells of draws, from sums over them.

    Args:
        count: S.
        dtype: What measures are rounded to.
        mean, mean_log, product, within: Averages ``(M, C)`` of the probabilities p, of log p, of
            p log p, and of p (1 - p).
    """

    def __init__(
        self,
        count: int,
        dtype: torch.dtype,
        mean: Tensor,
        mean_log: Tensor,
        product: Tensor,
        within: Tensor,
    ) -> None:
        self.draws, self.dtype = mean.new_empty(count, 0), dtype
        self.mean, self.mean_log = mean, mean_log
        self.aleatoric, self.within = -product.sum(-1), within.sum(-1)

    @cached_property
    def variance(self) -> Tensor:
        between = (self.mean * (1.0 - self.mean)).sum(-1) - self.within
        return between.clamp(min=0.0) * (self.count / (self.count - 1))


class TrialSums(ClassSums):
    """Sums of two log probabilities, of failure and success in each of some trials."""

    law: ClassVar[type[Measures]] = NormalMeasures

    def __init__(self, like: Tensor, trials: Tensor) -> None:
        super().__init__(like)
        self._trials = trials.double()

    def shown(self, said: Tensor) -> Tensor:
        return (self._trials * said[..., 1].exp()).to(said.dtype)

    def measures(self) -> Measures:
        found, n = SummedDraws(self.count, self.dtype, *self.means()), self._trials
        made = NormalMeasures(
            n * found.mean[..., 1], n * found.within / 2, n.square() * found.variance / 2
        )
        made.dtype = self.dtype
        return made


class RealSums(Sums):
    """Sums of mean and log deviation ``(s, M, 2)`` of a real y or a count."""

    def __init__(self, like: Tensor) -> None:
        super().__init__(like)
        self._near = like[..., 0].double()  # of the means, so that squares do not cancel

    def shown(self, said: Tensor) -> Tensor:
        return said[..., 0]

    def _terms(self, said: Tensor, probs: Tensor | None = None) -> list[Tensor]:
        off = said[..., 0].double() - self._near
        return [off, off.square(), (2 * said[..., 1].double()).exp()]

    def measures(self) -> Measures:
        off, square, noise = self.means()
        between = (square - off.square()).clamp(min=0.0) * (self.count / max(1, self.count - 1))
        made = NormalMeasures(self._near + off, noise, between)
        made.dtype = self.dtype
        return made


def _total(terms: Tensor) -> Tensor:
    """The sum over draws in float64, of many numbers by a few draws in their own precision."""
    if terms.dim() == 3 and terms.stride(-1) > terms.stride(1):  # rows lie side by side
        return _total(terms.mT).mT
    short = not torch.compiler.is_compiling() and terms.numel() < MANY  # a file is for any number
    if short or len(terms) < TOGETHER:
        return terms.sum(0, dtype=torch.float64)
    whole = len(terms) // TOGETHER * TOGETHER
    few = terms[:whole].unflatten(0, (-1, TOGETHER)).sum(1).sum(0, dtype=torch.float64)
    return few + terms[whole:].sum(0, dtype=torch.float64) if whole < len(terms) else few


def sums_of(part: Part, like: Tensor, x: Tensor) -> Sums:
    """The sums of a site's numbers.

    Args:
        part: The site.
        like: What one draw says of them, ``(N L, width)``.
        x: Inputs ``(N, ...)``, which may say how many trials there are.
    """
    trials = part.trials_at(x)
    if trials is not None:
        return TrialSums(like, trials)
    return (ClassSums if part.on_simplex else RealSums)(like)


def laid_out(part: Part, tables: list[Any]) -> Any:
    """Tables of successive rows as one, each number of a row in its place."""
    if len(tables) == 1 and not part.shape:
        return tables[0]
    found: dict[str, Tensor] = {}
    for name in tables[0].to_dict():
        axis = 1 if name == "quantiles" else 0
        values = torch.cat([table[name] for table in tables], axis)
        found[name] = values.unflatten(axis, (-1, *part.shape)) if part.shape else values
    return replace(tables[0], **found)


def checked_levels(quantiles: Sequence[float] | None) -> Tensor | None:
    """Levels of quantiles in float64, if there are any."""
    if quantiles is None:
        return None
    levels = torch.as_tensor(quantiles, dtype=torch.float64).reshape(-1)
    if not len(levels) or not bool(((levels >= 0) & (levels <= 1)).all()):
        raise ArgumentError(
            f"`quantiles` must be levels between 0 and 1; got {quantiles!r}. For a central "
            "interval of 90 % pass (0.05, 0.95)."
        )
    return levels
