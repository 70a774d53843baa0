"""The table of bad calls: id -> call. Three ways to enter lines, each of which names a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

#: "function: what is wrong" -> the call.
CASES: dict[str, Callable[[], Any]] = {}


def calls(name: str, wrong: Mapping[str, Callable[[], Any]]) -> None:
    """Enter calls of a function by what is wrong with them."""
    for what, call in wrong.items():
        key = f"{name}: {what}"
        assert key not in CASES, f"{key} is in the table already"
        CASES[key] = call


def arguments(*call: Any) -> None:
    """Enter calls by their positional arguments: ``arguments([name,] function, wrong)``."""
    name, function, wrong = named(*call)
    calls(name, {what: partial(function, *args) for what, args in wrong.items()})


def values(*call: Any, **wrong: Any) -> None:
    """Enter a call for each wrong value of each argument, a list of them or a dict of names.

    The call is ``values([name,] function, *args, argument=values)``, its arguments are right.
    """
    name, function, *args = named(*call)
    for argument, found in wrong.items():
        if not isinstance(found, Mapping):
            found = {f"{argument}={value!r}"[:60]: value for value in found}
        else:
            found = {f"{argument} {what}": value for what, value in found.items()}
        calls(name, {w: partial(function, *args, **{argument: v}) for w, v in found.items()})


def named(*call: Any) -> tuple[Any, ...]:
    """The call, after the name of its function where it has none of its own."""
    if isinstance(call[0], str):
        return call
    function = call[0].func if isinstance(call[0], partial) else call[0]
    return (function.__qualname__, *call)


def without(found: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A table less some of its rows."""
    return {name: value for name, value in found.items() if name not in names}
