"""Draws as a user's function returns them: class probabilities, or mean and scale of a real y."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, ArgumentTypeError, rows_off_simplex, simplex_tolerance
from pyro_opu.parts.outcome import Outcome

__all__ = ["check_simplex", "read_values", "said_by"]


def read_values(values: object, rows: int) -> tuple[Outcome, Tensor]:
    """The outcome, and draws ``(S, N, K)`` of it, checked.

    Args:
        values: Points of the simplex ``(S, N, C)``, or a pair (loc, scale), ``(S, N)`` each.
        rows: N.
    """
    if isinstance(values, tuple) and len(values) == 2:
        return Outcome.of_real(), said_by(_read_normals(values, rows))
    probs = check_simplex(values, rows)
    return Outcome.of_classes(probs.shape[-1]), said_by((probs,))


def said_by(values: tuple[Tensor, ...]) -> Tensor:
    """Draws ``(S, N, K)`` from probabilities, or from loc and scale; nothing is checked."""
    if len(values) == 2:
        loc, scale = values
        return torch.stack([loc, scale.log()], -1)
    (probs,) = values
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()


def _read_normals(values: Any, rows: int) -> tuple[Tensor, Tensor]:
    """Means and scales ``(S, N)`` from a pair of tensors, checked."""
    if not all(isinstance(value, Tensor) and value.is_floating_point() for value in values):
        raise ArgumentTypeError(
            "`source` must return two floating tensors (loc, scale), draws of y's mean and of "
            f"the noise's standard deviation; got "
            f"{[type(value).__name__ for value in values]}. For noise that is "
            "known return torch.full_like(loc, scale)."
        )
    loc, scale = values
    if loc.ndim != 2 or loc.shape[1] != rows:
        raise ArgumentError(
            f"`source` must return means of shape (S, N) with N = {rows}; got "
            f"{tuple(loc.shape)}. Draws come first, then inputs."
        )
    try:
        scale = scale.to(loc.dtype).expand_as(loc)
    except RuntimeError as error:
        raise ArgumentError(
            f"`source` must return scales of the means' shape {tuple(loc.shape)}; got "
            f"{tuple(scale.shape)}."
        ) from error
    return loc.detach(), scale.detach()


def check_simplex(values: object, rows: int) -> Tensor:
    """Return ``values`` if they are draws ``(S, N, C)`` on the simplex."""
    if not isinstance(values, Tensor) or not values.is_floating_point():
        found = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise ArgumentTypeError(
            f"`source` must return a floating tensor of class probabilities (S, {rows}, C); "
            f"got {found}. Return torch.as_tensor(..., dtype=torch.float32)."
        )
    if values.ndim != 3 or values.shape[1] != rows or len(values) == 0:
        raise ArgumentError(
            f"`source` must return draws of shape (S, N, C) with S >= 1 and N = {rows}; got "
            f"{tuple(values.shape)}. Draws come first, then inputs, then classes."
        )
    if values.shape[-1] < 2:
        raise ArgumentError(
            f"`source` must return at least two classes (C >= 2); got {tuple(values.shape)}. "
            "For two classes return [1 - p, p]."
        )
    if torch.isnan(values.sum()):
        raise ArgumentError(
            "`source` must return probabilities; got NaN. Check its posterior draws and the "
            "inputs (torch.isfinite)."
        )
    low, off = rows_off_simplex(values)
    if low < 0 or off > simplex_tolerance(values.dtype):
        raise ArgumentError(
            "`source` must return probabilities: rows that are >= 0 and sum to 1; got a "
            f"smallest entry {low:.3g} and a sum off by {off:.3g}. "
            "Apply softmax over the last axis?"
        )
    return values.detach()
