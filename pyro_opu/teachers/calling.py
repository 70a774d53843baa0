"""How a Pyro model is called with an input: the inverse of picking the input from a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Model = Callable[..., Any]
#: ``x -> (args, kwargs)`` of the call that asks about the inputs ``x``.
Call = Callable[[Tensor], tuple[tuple[Any, ...], dict[str, Any]]]


def first_argument(x: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """``model(x)``."""
    return (x,), {}


def bound(model: Model, call: Call) -> Model:
    """The model as a function of the inputs alone."""

    def run(x: Tensor) -> Any:
        args, kwargs = call(x)
        return model(*args, **kwargs)

    return run


def parameters_of(model: Model) -> dict[str, inspect.Parameter]:
    """The model's parameters that can be given by name; none where Python cannot tell."""
    function = model.forward if isinstance(model, nn.Module) else model
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: each for name, each in parameters.items() if each.kind in named}


def call_of(inputs: Callable[..., Any] | None, model: Model) -> Call:
    """The call whose input ``inputs`` picks; ``model(x)`` where that does more, or is None.

    ``inputs`` is tried on a marker in the place of every parameter of the model. Of the others,
    those without a default are given ``None``.
    """
    if inputs is None:
        return first_argument
    parameters = parameters_of(model)
    markers = {name: object() for name in parameters}
    in_order = tuple(markers.values())
    tries: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((), markers)]
    tries += [(in_order[:count], {}) for count in range(len(in_order), 0, -1)]
    for args, kwargs in tries:
        try:
            picked = inputs(*args, **kwargs)
        except Exception:  # noqa: BLE001 - a picker may do with its arguments what it likes
            continue
        for name, marker in markers.items():
            if picked is marker:
                return _call_with(parameters, name)
    return first_argument


def _call_with(parameters: dict[str, inspect.Parameter], chosen: str) -> Call:
    empty = inspect.Parameter.empty
    needed = {name: None for name, each in parameters.items() if each.default is empty}
    return lambda x: ((), {**needed, chosen: x})
