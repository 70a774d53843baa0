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


def arguments(name: str, call: Callable[..., Any], wrong: Mapping[str, tuple[Any, ...]]) -> None:
    """Enter a call with each of these positional arguments."""
    calls(name, {what: partial(call, *args) for what, args in wrong.items()})


def values(name: str, call: Callable[..., Any], /, **wrong: Any) -> None:
    """Enter a call for each wrong value of each argument: a list, or a dict name -> value."""
    for argument, found in wrong.items():
        if not isinstance(found, Mapping):
            found = {f"={value!r}"[:45]: value for value in found}
        named = {f"{argument} {what}".replace(" =", "="): value for what, value in found.items()}
        calls(name, {what: partial(call, **{argument: v}) for what, v in named.items()})


def without(found: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A table less some of its rows."""
    return {name: value for name, value in found.items() if name not in names}
