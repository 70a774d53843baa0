"""Ranks with ties at their mean, and Spearman's correlation of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, ArgumentTypeError, check_tensor, in_range

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


def spearman(a: object, b: object, rounding: float = 0.0) -> float:
    """Spearman's rank correlation of tensors or arrays ``(N,)``.

    NaN where it is not defined: a side holds NaN, fewer than two numbers, or is constant to a range
    of ``rounding``.

    Example:
        >>> spearman([1.0, 2.0, 3.0], [2.0, 4.0, 3.0])
        0.5
    """
    sides = [_numbers(name, side) for name, side in (("a", a), ("b", b))]
    if len(sides[0]) != len(sides[1]):
        raise ArgumentError(
            f"`b` must hold as many numbers as `a`, {len(sides[0])}; got {len(sides[1])}. Take "
            "both at the same rows."
        )
    in_range("rounding", rounding, 0)
    for side in sides:
        if len(side) < 2 or side.isnan().any():
            return math.nan
        largest = side[side.isfinite()].abs().amax() if side.isfinite().any() else 0.0
        if not side.amax() - side.amin() > max(rounding, ROUNDING * float(largest)):
            return math.nan
    return float(torch.corrcoef(torch.stack([ranks(side) for side in sides]))[0, 1])


def _numbers(name: str, side: object) -> Tensor:
    """One side as real numbers ``(N,)`` in float64."""
    try:
        found = check_tensor(name, torch.as_tensor(side))
    except (TypeError, RuntimeError, ValueError) as error:
        raise ArgumentTypeError(
            f"`{name}` must be numbers (N,), a tensor, an array or a list; got "
            f"{type(side).__name__} ({error}). Convert it with torch.as_tensor."
        ) from error
    if found.ndim != 1 or found.is_complex():
        raise ArgumentError(
            f"`{name}` must be real numbers of shape (N,); got {found.dtype} of shape "
            f"{tuple(found.shape)}. Flatten it with .flatten()."
        )
    return found.detach().double().cpu()
