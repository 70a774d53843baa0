"""Parts of one-line reprs: names of callables, averages of tensors."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def name_of(thing: object) -> str:
    """The name of a function, or of an object's class.

    Example:
        >>> name_of(sorted), name_of(lambda x: x), name_of(Tensor(1))
        ('sorted', '<lambda>', 'Tensor')
    """
    return str(getattr(thing, "__name__", type(thing).__name__))


def averages(values: Mapping[str, Tensor]) -> str:
    """The mean of every tensor by name, to four digits."""
    means = {name: value.detach().double().mean().item() for name, value in values.items()}
    return ", ".join(f"{name} {mean:.4g}" for name, mean in means.items())
