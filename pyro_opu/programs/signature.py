"""How a Pyro model is called to ask about inputs: ``x -> (args, kwargs)``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pyro_opu.checks import ArgumentError, ArgumentTypeError

Model = Callable[..., object]
Arguments = tuple[tuple[object, ...], dict[str, object]]
#: ``x -> (args, kwargs)`` of the call that asks about the inputs ``x``.
Call = Callable[..., Arguments]
#: Positional arguments that ``inputs`` may pick from where the model's have no names.
MOST_UNNAMED = 6
#: Stands for all other names among those of a call's arguments.
ANY = "**"


def first_argument(x: Tensor) -> Arguments:
    """``model(x)``."""
    return (x,), {}


@dataclass(frozen=True)
class Picked:
    """The call whose argument of this name, or in this place, is the input."""

    argument: str | int

    def __call__(self, x: Tensor) -> Arguments:
        """Arguments that ask about ``x``; those before it by position are ``None``."""
        if isinstance(self.argument, str):
            return (), {self.argument: x}
        return (*[None] * self.argument, x), {}


@dataclass(frozen=True)
class Given:
    """The call that the user's ``arguments`` makes."""

    arguments: Callable[[Any], Any]

    def __call__(self, x: object) -> Arguments:
        """Arguments that ask about ``x``."""
        match self.arguments(x):
            case (tuple() | list()) as args, dict() as kwargs:
                return tuple(args), kwargs
            case other:
                raise ArgumentTypeError(
                    "`arguments` must return (args, kwargs), a tuple and a dict; got "
                    f"{type(other).__name__}. For model(x, 3) write lambda x: ((x, 3), {{}})."
                )


def function_of(model: Model | None) -> Any:
    """What is called, the ``forward`` of a module."""
    return model.forward if isinstance(model, nn.Module) else model


def parameters_of(model: Model) -> dict[str, inspect.Parameter]:
    """The model's parameters that can be given by name; none where Python cannot tell."""
    try:
        parameters = inspect.signature(function_of(model)).parameters
    except (TypeError, ValueError):
        return {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: each for name, each in parameters.items() if each.kind in named}


def names_of(model: Model) -> tuple[str, ...]:
    """Names of the model's arguments, and :data:`ANY` where it takes others, or may."""
    named = tuple(parameters_of(model))
    try:
        parameters = inspect.signature(function_of(model)).parameters.values()
    except (TypeError, ValueError):
        return (ANY,)
    return (*named, ANY) if any(p.kind is p.VAR_KEYWORD for p in parameters) else named


def call_of(
    inputs: Callable[..., object] | None,
    model: Model,
    arguments: Callable[..., object] | None = None,
) -> Call:
    """The call that ``arguments`` makes, or whose input ``inputs`` picks; else ``model(x)``.

    ``inputs`` is tried on a marker in the place of every parameter of the model.

    Raises:
        ValueError: ``inputs`` does more than pick, so that no way back is known.
    """
    if arguments is not None:
        return Given(arguments)
    if inputs is None:
        return first_argument
    names = list(parameters_of(model)) or range(MOST_UNNAMED)
    markers: dict[Any, object] = {name: object() for name in names}
    in_order = tuple(markers.values())
    named = {name: marker for name, marker in markers.items() if isinstance(name, str)}
    tries: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((), named)]
    tries += [(in_order[:count], {}) for count in range(len(in_order), 0, -1)]
    for args, kwargs in tries:
        try:
            picked = inputs(*args, **kwargs)
        except Exception:  # noqa: BLE001 - a picker may do with its arguments what it likes
            continue
        for name, marker in markers.items():
            if picked is marker:
                return Picked(name)
    raise ArgumentError(
        "`inputs` must return one of the model's arguments as it is, or the teacher cannot be "
        "asked about x in the same way. Beside one that does more pass the way back, arguments="
        "lambda x: (args, kwargs), such as lambda x: ((x[:, :3], x[:, 3].long()), {}); several "
        "inputs are a tuple or a dict as x, and need neither."
    )
