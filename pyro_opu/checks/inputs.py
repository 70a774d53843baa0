"""What an input must be, checked once where it enters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["check_inputs"]


def check_inputs(
    x: Any, argument: str = "x", *, features: bool = True, dtype: torch.dtype | None = None
) -> Tensor:
    """Return ``x`` if it is a non-empty, finite, floating tensor ``(N, ...)``.

    Args:
        x: What was passed.
        argument: Its name in the messages.
        features: Whether a feature axis is needed; without it rows may be numbers, ``(N,)``.
        dtype: What ``x`` will be rounded to, in which it must be finite too.

    Returns:
        ``x`` itself.

    Raises:
        TypeError: ``x`` is no floating tensor.
        ValueError: ``x`` has no feature axis, is sparse, holds nothing, holds NaN or infinity, or
            holds what ``dtype`` cannot.

    Example:
        >>> check_inputs(torch.zeros(3), "inputs")
        Traceback (most recent call last):
        ValueError: `inputs` must have shape (N, D) or (N, *input_shape); got (3,). For a single \
input pass inputs[None]; for one feature per input pass inputs[:, None].
    """
    if not isinstance(x, Tensor):
        raise TypeError(
            f"`{argument}` must be a torch.Tensor of shape (N, *input_shape); got "
            f"{type(x).__name__}. Convert it with torch.as_tensor({argument}, dtype=torch.float32)."
        )
    if not x.is_floating_point():
        raise TypeError(
            f"`{argument}` must have a floating dtype; got {x.dtype}. "
            f"Convert it with {argument}.float()."
        )
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
    if not torch.isfinite(rounded.sum(dtype=wide)):  # one number; only then look at every entry
        _check_rows(x, f"`{argument}` must be finite; got NaN or infinity", "Remove or impute them")
        most = torch.finfo(rounded.dtype).max
        _check_rows(
            rounded,
            f"`{argument}` must be finite in {rounded.dtype}, at most {most:.3g}; got up to "
            f"{float(x.detach().abs().max()):.3g}, too large",
            "Rescale the inputs, or call .double() on what answers",
        )
    return x


def _check_rows(x: Tensor, wrong: str, remedy: str) -> None:
    bad = ~torch.isfinite(x).reshape(len(x), -1).all(1)
    if bad.any():
        raise ValueError(
            f"{wrong} in {int(bad.sum())} of {len(x)} rows (first: row {int(bad.nonzero()[0])}). "
            f"{remedy}."
        )
