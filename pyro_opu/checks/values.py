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

__all__ = [
    "check_bool",
    "check_callable",
    "check_path",
    "check_seed",
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


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, (bool, np.bool_))


def _message(name: str, expected: str, value: Any, advice: str = "") -> str:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"an object of type {type(value).__name__}"
    return f"`{name}` must be {expected}; got {shown}.{advice and ' ' + advice}"
