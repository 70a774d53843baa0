"""Validators of tensors and devices."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyro_opu.checks.values import _message, instance_of

__all__ = [
    "check_device",
    "check_floating",
    "check_log_probs",
    "check_probs",
    "check_tensor",
    "rows_off_simplex",
    "simplex_tolerance",
]


def check_tensor(name: str, x: Any, shape: str = "", advice: str = "") -> Tensor:
    """A tensor; ``shape`` describes it in words and is not checked.

    Example:
        >>> check_tensor("probs", [[0.5, 0.5]], "(N, C)")
        Traceback (most recent call last):
        TypeError: `probs` must be a torch.Tensor of shape (N, C); got list. Convert it with \
torch.as_tensor(probs).
    """
    expected = f"a torch.Tensor of shape {shape}" if shape else "a torch.Tensor"
    advice = advice or f"Convert it with torch.as_tensor({name})."
    return instance_of(name, x, Tensor, expected, advice)


def check_floating(name: str, x: Tensor) -> Tensor:
    """A tensor of a floating dtype."""
    if x.is_floating_point():
        return x
    raise TypeError(
        f"`{name}` must have a floating dtype; got {x.dtype}. Convert it with {name}.float()."
    )


def check_probs(name: str, p: Any, shape: str = "(..., C)") -> Tensor:
    """Probabilities over the last axis: finite, nonnegative, rows that sum to one.

    A sum may deviate by 1e-3, or by 4 eps of a coarser dtype (0.031 in bfloat16).

    Example:
        >>> check_probs("probs", torch.tensor([[0.5, 0.2]]))
        Traceback (most recent call last):
        ValueError: `probs` must hold probabilities over its last axis, rows that are >= 0 and sum \
to 1; got a smallest entry 0.2 and a sum off by 0.3. Apply softmax(-1), or divide by sum(-1).
    """
    check_floating(name, check_tensor(name, p, shape))
    if p.ndim == 0 or p.numel() == 0:
        raise ValueError(
            f"`{name}` must hold probabilities of shape {shape}; got shape {tuple(p.shape)}, which "
            "holds none. Pass at least one row."
        )
    values = p.detach()
    low, off = rows_off_simplex(values)
    if not math.isfinite(off):
        raise ValueError(
            f"`{name}` must be finite; got NaN or infinity in "
            f"{int((~torch.isfinite(values)).any(-1).sum())} of {values[..., 0].numel()} rows. "
            "Look where they come from with torch.isfinite."
        )
    if low < 0 or off > simplex_tolerance(p.dtype):
        raise ValueError(
            f"`{name}` must hold probabilities over its last axis, rows that are >= 0 and sum to "
            f"1; got a smallest entry {low:.3g} and a sum off by {off:.3g}. Apply softmax(-1), or "
            "divide by sum(-1)."
        )
    return p


def check_log_probs(name: str, log_p: Any, shape: str = "(..., C)") -> Tensor:
    """Log-probabilities over the last axis; minus infinity stands for zero.

    Example:
        >>> check_log_probs("log_probs", torch.tensor([[0.5, 0.5]]), "(N, C)")
        Traceback (most recent call last):
        ValueError: `log_probs` must hold log-probabilities (N, C), rows whose exp sums to 1; got \
a torch.float32 tensor of shape (1, 2) with a sum off by 2.3. Apply log_softmax(-1) to logits, \
log() to probabilities.
    """
    check_tensor(name, log_p, shape)
    off = math.nan
    if log_p.is_floating_point() and log_p.ndim and log_p.numel():
        off = rows_off_simplex(log_p.detach().exp())[1]
        if off <= simplex_tolerance(log_p.dtype):
            return log_p
    raise ValueError(
        f"`{name}` must hold log-probabilities {shape}, rows whose exp sums to 1; got a "
        f"{log_p.dtype} tensor of shape {tuple(log_p.shape)} with a sum off by {off:.3g}. Apply "
        "log_softmax(-1) to logits, log() to probabilities."
    )


def simplex_tolerance(dtype: torch.dtype) -> float:
    """Largest allowed deviation from one of the sum of a row of probabilities."""
    return max(1e-3, 4 * torch.finfo(dtype).eps)


def rows_off_simplex(p: Tensor) -> tuple[float, float]:
    """The smallest entry, and the largest deviation of a row sum from one; either may be NaN."""
    wide = torch.promote_types(p.dtype, torch.float32)
    return float(p.min()), float((p.sum(-1, dtype=wide) - 1).abs().max())


def check_device(device: torch.device | str | None, name: str = "device") -> torch.device:
    """An available device that stores values; the CPU where ``device`` is None."""
    if device is not None and not isinstance(device, (str, torch.device)):
        raise TypeError(_message(name, 'such as "cpu" or "cuda"', device))
    try:
        chosen = torch.device("cpu" if device is None else device)
    except RuntimeError as error:
        raise ValueError(_message(name, 'such as "cpu" or "cuda"', device)) from error
    fault = _fault(chosen)
    if fault:
        raise ValueError(f'`{name}` is "{chosen}", {fault}.')
    return chosen


def _fault(device: torch.device) -> str:
    """Why nothing can be computed on a device, and what to pass."""
    if device.type == "cpu":
        return ""
    if device.type == "meta":
        return 'which holds shapes and no numbers; pass device="cpu" or "cuda"'
    if device.type == "cuda" and not torch.cuda.is_available():
        return 'but this machine has no CUDA device that torch can use; pass device="cpu"'
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        return f'but this machine has {count} CUDA devices, counted from 0; pass device="cuda"'
    try:
        torch.empty(0, device=device)
    except (RuntimeError, NotImplementedError, AssertionError):
        return 'which this machine or this build of torch lacks; pass device="cpu"'
    return ""
