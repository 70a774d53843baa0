"""Validators of inputs and labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_opu.checks.tensors import check_floating, check_tensor

__all__ = ["check_inputs", "check_labels", "check_row_shape"]


def check_inputs(
    x: Any, argument: str = "x", *, features: bool = True, dtype: torch.dtype | None = None
) -> Tensor:
    """A non-empty, dense, finite, floating tensor ``(N, D)`` or ``(N, *input_shape)``.

    ``features=False`` allows ``(N,)`` too; ``dtype`` is what ``x`` will be rounded to, in which it
    must be finite too.

    Example:
        >>> check_inputs(torch.zeros(3), "inputs")
        Traceback (most recent call last):
        ValueError: `inputs` must have shape (N, D) or (N, *input_shape); got (3,). For a single \
input pass inputs[None]; for one feature per input pass inputs[:, None].
    """
    advice = f"Convert it with torch.as_tensor({argument}, dtype=torch.float32)."
    check_floating(argument, check_tensor(argument, x, "(N, *input_shape)", advice))
    if x.ndim < 1 + features:
        raise ValueError(
            f"`{argument}` must have shape (N, D) or (N, *input_shape); got {tuple(x.shape)}. "
            f"For a single input pass {argument}[None]; "
            f"for one feature per input pass {argument}[:, None]."
        )
    if x.layout != torch.strided or x.is_meta:
        kind = "meta" if x.is_meta else str(x.layout).removeprefix("torch.")
        raise ValueError(
            f"`{argument}` must be a dense tensor that holds numbers; got a {kind} tensor. "
            + ("Load it onto a device." if x.is_meta else f"Convert it with {argument}.to_dense().")
        )
    if x.numel() == 0:
        raise ValueError(
            f"`{argument}` must hold at least one input with at least one feature; got shape "
            f"{tuple(x.shape)}. Was it filtered down to nothing?"
        )
    rounded = x.detach().to(dtype or x.dtype)
    wide = torch.promote_types(rounded.dtype, torch.float32)
    if not torch.isfinite(rounded.sum(dtype=wide)):  # cheap; then look at every entry
        _check_rows(x, f"`{argument}` must be finite; got NaN or infinity", "Remove or impute them")
        most = torch.finfo(rounded.dtype).max
        _check_rows(
            rounded,
            f"`{argument}` must be finite in {rounded.dtype}, at most {most:.3g}; got up to "
            f"{float(x.detach().abs().max()):.3g}, too large",
            "Rescale the inputs, or call .double() on what answers",
        )
    return x


def check_row_shape(name: str, x: Tensor, shape: Sequence[int], advice: str) -> Tensor:
    """A tensor ``(N, *shape)``.

    Example:
        >>> check_row_shape("x", torch.zeros(5, 3), (4,), "Reshape it.")
        Traceback (most recent call last):
        ValueError: `x` must have shape (N, 4); got (5, 3). Reshape it.
    """
    if tuple(x.shape[1:]) == tuple(shape):
        return x
    expected = ", ".join(map(str, ("N", *shape)))
    raise ValueError(f"`{name}` must have shape ({expected}); got {tuple(x.shape)}. {advice}")


def check_labels(y: Any, rows: int, classes: int) -> Tensor:
    """Integer class labels ``(rows,)`` from 0 to ``classes - 1``, as int64."""
    if not isinstance(y, Tensor) or y.is_floating_point() or y.is_complex():
        found = y.dtype if isinstance(y, Tensor) else type(y).__name__
        raise TypeError(
            f"`y` must be a tensor of integer labels; got {found}. Convert it with .long()."
        )
    if y.shape != (rows,):
        raise ValueError(
            f"`y` must hold one label per input, shape ({rows},); got {tuple(y.shape)}. Were "
            "labels and inputs filtered in the same way?"
        )
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        raise ValueError(
            f"`y` must hold labels from 0 to C - 1 = {classes - 1}; got labels from {low} to "
            f"{high}. Number the classes from 0."
        )
    return y.long()


def _check_rows(x: Tensor, wrong: str, remedy: str) -> None:
    bad = ~torch.isfinite(x).reshape(len(x), -1).all(1)
    if bad.any():
        raise ValueError(
            f"{wrong} in {int(bad.sum())} of {len(x)} rows (first: row {int(bad.nonzero()[0])}). "
            f"{remedy}."
        )
