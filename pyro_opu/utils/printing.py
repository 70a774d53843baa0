"""Parts of one-line reprs: names of callables, averages of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

__all__ = ["averages", "name_of"]


def name_of(thing: Any) -> str:
    """The name of a function, or of an object's class.

    Example:
        >>> name_of(sorted), name_of(lambda x: x), name_of(Tensor(1))
        ('sorted', '<lambda>', 'Tensor')
    """
    return str(getattr(thing, "__name__", type(thing).__name__))


def averages(values: Mapping[str, Tensor]) -> str:
    """The mean of every tensor by name, to four digits.

    Example:
        >>> averages({"total": Tensor([0.25, 0.75]), "variance": Tensor([1e-5])})
        'total 0.5, variance 1e-05'
    """
    return ", ".join(
        f"{name} {v.detach().double().mean().item():.4g}" for name, v in values.items()
    )
