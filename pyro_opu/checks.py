"""What an argument must be: one validator per kind, used once where the argument enters.

A validator returns what it has checked, so that it can stand in an assignment. Messages name the
argument in backticks, what was expected and what came; ``advice`` adds what to do.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_opu.inputs import check_inputs

__all__ = [
    "check_bool",
    "check_callable",
    "check_device",
    "check_inputs",
    "check_path",
    "check_log_probs",
    "check_probs",
    "check_seed",
    "check_tensor",
    "in_range",
    "one_of",
    "positive_float",
    "positive_int",
    "sizes",
]

#: Seeds that torch's generators take.
LEAST_SEED, MOST_SEED = -(2**63), 2**64 - 1


def positive_int(name: str, value: Any, least: int = 1, advice: str = "") -> int:
    """A whole number of at least ``least``; no float, no bool.

    Args:
        name: The argument's name in the message.
        value: What was passed.
        least: The smallest allowed.
        advice: A sentence that says what to do.

    Returns:
        The number, as a Python int.

    Raises:
        ValueError: anything else.

    Example:
        >>> positive_int("num_steps", 2.5)
        Traceback (most recent call last):
        ValueError: `num_steps` must be a positive integer; got 2.5.
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if whole and value >= least:
        return int(value)
    kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
    raise ValueError(_message(name, kind, value, advice))


def sizes(name: str, value: Any, advice: str = "", least: int = 1) -> tuple[int, ...]:
    """Several positive integers, such as a shape or the widths of layers.

    Args:
        name: The argument's name in the message.
        value: What was passed.
        advice: A sentence that says what to do.
        least: How many there must be.

    Returns:
        The numbers, as a tuple.

    Raises:
        TypeError: not a sequence.
        ValueError: an entry that is not a positive integer, or none.
    """
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(_message(name, "a tuple of positive integers", value, advice))
    whole = [isinstance(v, Integral) and not isinstance(v, bool) and int(v) > 0 for v in value]
    if len(whole) < least or not all(whole):
        kind = "a tuple of " + (f"at least {least} " if least > 1 else "") + "positive integers"
        raise ValueError(_message(name, kind, value, advice))
    return tuple(int(v) for v in value)


def in_range(
    name: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    ends: str = "[]",
    advice: str = "",
) -> float:
    """A finite number between two limits.

    Args:
        name: The argument's name in the message.
        value: What was passed.
        low: The lower limit.
        high: The upper limit.
        ends: Which limits are allowed themselves: "[]", "(]", "[)" or "()".
        advice: A sentence that says what to do.

    Returns:
        The number, as a Python float.

    Raises:
        ValueError: outside, NaN, infinite, or not a number.

    Example:
        >>> in_range("p", 1, 0, 1, "[)")
        Traceback (most recent call last):
        ValueError: `p` must be a number in [0, 1); got 1.
    """
    if _is_number(value) and math.isfinite(value):
        above = value > low or (ends[0] == "[" and value == low)
        if above and (value < high or (ends[1] == "]" and value == high)):
            return float(value)
    if high < math.inf:
        kind = f"a number in {ends[0]}{low:g}, {high:g}{ends[1]}"
    elif low > -math.inf:
        bound = f"of at least {low:g}" if ends[0] == "[" else f"above {low:g}"
        kind = f"a finite number {bound}"
    else:
        kind = "a finite number"
    raise ValueError(_message(name, kind, value, advice))


def positive_float(name: str, value: Any, advice: str = "") -> float:
    """A positive finite number.

    Args:
        name: The argument's name in the message.
        value: What was passed.
        advice: A sentence that says what to do.

    Returns:
        The number, as a Python float.

    Raises:
        ValueError: anything else.
    """
    if _is_number(value) and 0 < value < math.inf:
        return float(value)
    raise ValueError(_message(name, "a positive finite number", value, advice))


def check_bool(name: str, value: Any) -> bool:
    """True or False, and nothing that merely counts as such, like "no".

    Args:
        name: The argument's name in the message.
        value: What was passed.

    Returns:
        The value.

    Raises:
        TypeError: anything else.
    """
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise TypeError(_message(name, "True or False", value))


def check_seed(value: Any, name: str = "seed") -> int | None:
    """A seed of torch's generators, or ``None`` for none.

    Args:
        value: What was passed.
        name: The argument's name in the message.

    Returns:
        The seed, as a Python int.

    Raises:
        ValueError: anything else.
    """
    if value is None:
        return None
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if whole and LEAST_SEED <= value <= MOST_SEED:
        return int(value)
    kind = "an integer from -2^63 to 2^64 - 1, or None"
    raise ValueError(_message(name, kind, value, "Pass for example seed=0."))


def one_of(name: str, value: Any, options: Collection[str], advice: str = "") -> str:
    """One of several names.

    Args:
        name: The argument's name in the message.
        value: What was passed.
        options: The names.
        advice: A sentence that says what to do.

    Returns:
        The name.

    Raises:
        TypeError: ``value`` is not a string.
        ValueError: it is none of the names.
    """
    if isinstance(value, str) and value in options:
        return value
    kind = ValueError if isinstance(value, str) else TypeError
    raise kind(_message(name, f"one of {sorted(options)}", value, advice))


def check_callable(name: str, value: Any, form: str) -> Callable[..., Any]:
    """A function, or an object that is called like one.

    Args:
        name: The argument's name in the message.
        value: What was passed.
        form: The call in short, such as ``x -> Dirichlet``.

    Returns:
        The function.

    Raises:
        TypeError: anything else.
    """
    if callable(value):
        return value
    raise TypeError(_message(name, f"a callable {form}", value))


def check_path(name: str, path: Any) -> Path:
    """The path of a file, whether it exists or not.

    Args:
        name: The argument's name in the message.
        path: What was passed.

    Returns:
        The path.

    Raises:
        TypeError: neither a string nor a path.
    """
    if isinstance(path, (str, os.PathLike)):
        return Path(path)
    raise TypeError(_message(name, "the path of a file", path))


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


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, (bool, np.bool_))


def _message(name: str, expected: str, value: Any, advice: str = "") -> str:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"an object of type {type(value).__name__}"
    return f"`{name}` must be {expected}; got {shown}.{advice and ' ' + advice}"
