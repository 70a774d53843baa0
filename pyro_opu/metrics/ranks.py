"""Ranks with ties at their mean, and Spearman's correlation of them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["ranks", "spearman"]

#: Values that differ by less than this share of the largest are one value, rounded.
ROUNDING = 1e-6


def ranks(values: Tensor) -> Tensor:
    """Ranks from 1 along the last axis, float64; equal values share the mean of theirs.

    Example:
        >>> ranks(torch.tensor([0.3, 0.1, 0.3]))
        tensor([2.5000, 1.0000, 2.5000], dtype=torch.float64)
    """
    ordered = values.sort(-1).values
    below = torch.searchsorted(ordered, values)
    up_to = torch.searchsorted(ordered, values, right=True)
    return (below + up_to + 1).double() / 2


def spearman(a: Any, b: Any, rounding: float = 0.0) -> float:
    """Spearman's rank correlation of tensors or arrays ``(N,)``.

    NaN where a side holds NaN, or is constant to a range of ``rounding``.

    Example:
        >>> spearman([1.0, 2.0, 3.0], [2.0, 4.0, 3.0])
        0.5
    """
    sides = [torch.as_tensor(side).detach().double().cpu() for side in (a, b)]
    for side in sides:
        if len(side) < 2 or side.isnan().any():
            return math.nan
        if side.amax() - side.amin() <= max(rounding, ROUNDING * float(side.abs().amax())):
            return math.nan
    return float(torch.corrcoef(torch.stack([ranks(side) for side in sides]))[0, 1])
