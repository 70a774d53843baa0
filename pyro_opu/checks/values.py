"""Validators of single values: numbers, names, seeds, functions, paths.

Each takes the argument's name and value, and returns the value. The message names the argument in
backticks, what was expected and what came; the sentence ``advice`` ends it and says what to do.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import numpy as np

from pyro_opu.checks.errors import ArgumentError, ArgumentTypeError

T = TypeVar("T")
Name = TypeVar("Name", bound=str)
#: Seeds that torch's generators take.
MIN_SEED, MAX_SEED = -(2**63), 2**64 - 1


def positive_int(name: str, value: object, least: int = 1, advice: str = "") -> int:
    """An integer of at least ``least``, not a float or bool.

    Example:
        >>> positive_int("num_steps", 2.5)
        Traceback (most recent call last):
        pyro_opu.checks.errors.ArgumentError: `num_steps` must be a positive integer; got 2.5.
    """
    if _is_integer(value) and value >= least:
        return int(value)
    kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
    raise ArgumentError(_message(name, kind, value, advice))


def sizes(name: str, value: object, advice: str = "", least: int = 1) -> tuple[int, ...]:
    """At least ``least`` positive integers, such as a shape or the widths of layers."""
    if not is_sequence(value):
        raise ArgumentTypeError(_message(name, "a tuple of positive integers", value, advice))
    if len(value) < least or not all(_is_integer(v) and v > 0 for v in value):
        kind = "a tuple of " + (f"at least {least} " if least > 1 else "") + "positive integers"
        raise ArgumentError(_message(name, kind, value, advice))
    return tuple(int(v) for v in value)


def in_range(
    name: str,
    value: object,
    low: float = -math.inf,
    high: float = math.inf,
    ends: str = "[]",
    advice: str = "",
) -> float:
    """A finite number between two limits; ``ends`` is "[]", "(]", "[)" or "()"."""
    if _is_number(value) and math.isfinite(value):
        above = value > low or (ends[0] == "[" and value == low)
        if above and (value < high or (ends[1] == "]" and value == high)):
            return float(value)
    if high < math.inf:
        kind = f"a number in {ends[0]}{low:g}, {high:g}{ends[1]}"
    elif low > -math.inf:
        kind = f"a finite number {'of at least' if ends[0] == '[' else 'above'} {low:g}"
    else:
        kind = "a finite number"
    raise ArgumentError(_message(name, kind, value, advice))


def positive_float(name: str, value: object, advice: str = "") -> float:
    """A positive finite number."""
    if _is_number(value) and 0 < value < math.inf:
        return float(value)
    raise ArgumentError(_message(name, "a positive finite number", value, advice))


def check_bool(name: str, value: object) -> bool:
    """True or False, not something truthy such as "no"."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise ArgumentTypeError(_message(name, "True or False", value))


def check_seed(value: object, name: str = "seed") -> int | None:
    """A seed of torch's generators, or None."""
    if value is None:
        return None
    if _is_integer(value) and MIN_SEED <= value <= MAX_SEED:
        return int(value)
    kind = "an integer from -2^63 to 2^64 - 1, or None"
    raise ArgumentError(_message(name, kind, value, "Pass for example seed=0."))


def one_of(name: str, value: object, options: Collection[Name], advice: str = "") -> Name:
    """One of several names."""
    text = isinstance(value, str)
    for option in options if text else ():
        if option == value:
            return option
    kind = ArgumentError if text else ArgumentTypeError
    raise kind(_message(name, f"one of {sorted(options)}", value, advice))


def instance_of(
    name: str, value: object, kind: type[T] | tuple[type, ...], expected: str, advice: str = ""
) -> T:
    """An object of a class, or of one of several, described by ``expected``."""
    if isinstance(value, kind):
        return value  # type: ignore[return-value]
    found = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
    raise ArgumentTypeError(f"`{name}` must be {expected}; got {found}.{advice and ' ' + advice}")


def check_mapping(name: str, value: object, form: str, advice: str = "") -> Mapping[Any, Any]:
    """A dict such as "name -> inputs"; None stands for an empty one."""
    given: Any = {} if value is None else value
    return instance_of(name, given, Mapping, f"a dict {form}", advice)  # type: ignore[type-abstract]


def check_callable(name: str, value: object, form: str) -> Callable[..., Any]:
    """A callable; ``form`` shows how it is called, such as ``x -> Dirichlet``."""
    if callable(value):
        return value
    raise ArgumentTypeError(_message(name, f"a callable {form}", value))


def check_path(name: str, path: object) -> Path:
    """The path of a file, which need not exist."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if isinstance(text, str):
        if "\0" in text:
            raise ArgumentError(_message(name, "a path without NUL characters", text))
        return Path(text)
    raise ArgumentTypeError(_message(name, "the path of a file", path))


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether it is a sequence, and no text."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, (bool, np.bool_))


def _message(name: str, expected: str, value: object, advice: str = "") -> str:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"an object of type {type(value).__name__}"
    return f"`{name}` must be {expected}; got {shown}.{advice and ' ' + advice}"
