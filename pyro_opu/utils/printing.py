"""Printed forms of one line: names of callables, and averages in the place of long tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

__all__ = ["averages", "name_of"]


def name_of(thing: Any) -> str:
    """What a callable is called: a function by its name, an object by its class.

    Example:
        >>> name_of(sorted), name_of(lambda x: x), name_of(Tensor(1))
        ('sorted', '<lambda>', 'Tensor')
    """
    return str(getattr(thing, "__name__", type(thing).__name__))


def averages(values: Mapping[str, Tensor]) -> str:
    """Mean of every tensor by name, four digits each.

    Example:
        >>> averages({"total": Tensor([0.25, 0.75]), "variance": Tensor([1e-5])})
        'total 0.5, variance 1e-05'
    """
    return ", ".join(
        f"{name} {v.detach().double().mean().item():.4g}" for name, v in values.items()
    )
