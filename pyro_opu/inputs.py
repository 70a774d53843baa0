"""What an input must be, checked once where it enters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["check_inputs"]


def check_inputs(x: Any, argument: str = "x", *, features: bool = True) -> Tensor:
    """Return ``x`` if it is a non-empty, finite, floating tensor ``(N, ...)``.

    Args:
        x: What was passed.
        argument: Its name in the messages.
        features: Whether a feature axis is needed; without it rows may be numbers, ``(N,)``.

    Returns:
        ``x`` itself.

    Raises:
        TypeError: ``x`` is no floating tensor.
        ValueError: ``x`` has no feature axis, is sparse, holds nothing, or holds NaN or infinity.

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
    if not torch.isfinite(x.detach().sum()):  # one number; only then look at every entry
        bad = ~torch.isfinite(x).reshape(len(x), -1).all(1)
        if bad.any():
            raise ValueError(
                f"`{argument}` must be finite; got NaN or infinity in {int(bad.sum())} of "
                f"{len(x)} rows (first: row {int(bad.nonzero()[0])}). Remove or impute those rows."
            )
    return x
