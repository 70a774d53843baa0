"""Validators of tensors and devices."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyro_opu.checks.values import _message

__all__ = [
    "check_device",
    "check_log_probs",
    "check_probs",
    "check_tensor",
    "rows_off_simplex",
    "simplex_tolerance",
]


def check_tensor(name: str, x: Any, shape: str = "", advice: str = "") -> Tensor:
    """A tensor, not a list or an array.

    Args:
        name: The argument's name in the message.
        x: What was passed.
        shape: The expected shape in words, such as "(N, C)"; it is not checked here.
        advice: What to do, where it is not torch.as_tensor.

    Returns:
        The tensor.

    Raises:
        TypeError: anything else.

    Example:
        >>> check_tensor("probs", [[0.5, 0.5]], "(N, C)")
        Traceback (most recent call last):
        TypeError: `probs` must be a torch.Tensor of shape (N, C); got list. Convert it with \
torch.as_tensor(probs).
    """
    if isinstance(x, Tensor):
        return x
    form = f" of shape {shape}" if shape else ""
    raise TypeError(
        f"`{name}` must be a torch.Tensor{form}; got {type(x).__name__}. "
        + (advice or f"Convert it with torch.as_tensor({name}).")
    )


def check_probs(name: str, p: Any, shape: str = "(..., C)") -> Tensor:
    """Probabilities over the last axis: finite, nonnegative, rows that sum to one.

    Rows may be off by 1e-3, or by 4 units of rounding of a coarser dtype (0.031 in bfloat16).

    Args:
        name: The argument's name in the message.
        p: What was passed.
        shape: The expected shape in words.

    Returns:
        The tensor.

    Raises:
        TypeError: ``p`` is not a floating tensor.
        ValueError: it is empty, or its rows are not probabilities.

    Example:
        >>> check_probs("probs", torch.tensor([[0.5, 0.2]]))
        Traceback (most recent call last):
        ValueError: `probs` must hold probabilities over its last axis, rows that are >= 0 and sum \
to 1; got a smallest entry 0.2 and a sum off by 0.3. Apply softmax(-1), or divide by sum(-1).
    """
    check_tensor(name, p, shape)
    if not p.is_floating_point():
        raise TypeError(
            f"`{name}` must have a floating dtype; got {p.dtype}. Convert it with {name}.float()."
        )
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
    """Logarithms of probabilities over the last axis; minus infinity is a probability of zero.

    Args:
        name: The argument's name in the message.
        log_p: What was passed.
        shape: The expected shape in words.

    Returns:
        The tensor.

    Raises:
        TypeError: ``log_p`` is not a tensor.
        ValueError: it is empty, not floating, or its rows are not log-probabilities.

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
    """How far from one a row of probabilities of this dtype may sum.

    Args:
        dtype: A floating dtype.

    Returns:
        1e-3, or 4 units of rounding where those are coarser.
    """
    return max(1e-3, 4 * torch.finfo(dtype).eps)


def rows_off_simplex(p: Tensor) -> tuple[float, float]:
    """The smallest entry, and how far at most a row sums from one; NaN where there is one.

    Args:
        p: Rows ``(..., C)``.

    Returns:
        Both numbers.
    """
    wide = torch.promote_types(p.dtype, torch.float32)
    return float(p.min()), float((p.sum(-1, dtype=wide) - 1).abs().max())


def check_device(device: torch.device | str | None, name: str = "device") -> torch.device:
    """A device of this machine that holds numbers; the CPU by default.

    Args:
        device: What was passed.
        name: The argument's name in the message.

    Returns:
        The device.

    Raises:
        TypeError: neither a device nor a string.
        ValueError: no device of torch's, one that this machine lacks, or "meta".
    """
    if device is not None and not isinstance(device, (str, torch.device)):
        raise TypeError(_message(name, 'such as "cpu" or "cuda"', device))
    try:
        chosen = torch.device("cpu" if device is None else device)
    except RuntimeError as error:
        raise ValueError(_message(name, 'such as "cpu" or "cuda"', device)) from error
    if chosen.type == "cpu":
        return chosen
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f'`{name}` is "{chosen}", but this machine has no CUDA device that torch can use; '
            'pass device="cpu".'
        )
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f'`{name}` is "{chosen}", but this machine has {torch.cuda.device_count()} CUDA '
            'devices, counted from 0; pass device="cuda".'
        )
    if chosen.type == "meta":
        raise ValueError(
            f'`{name}` is "meta", which holds shapes and no numbers; pass device="cpu" or "cuda".'
        )
    try:
        torch.empty(0, device=chosen)
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        raise ValueError(
            f'`{name}` is "{chosen}", which this machine or this build of torch lacks; pass '
            'device="cpu".'
        ) from error
    return chosen
