"""The form of a call: by what it is known, besides the numbers in its tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from pyro_opu.programs.asked import validates

T = TypeVar("T")
#: Forms of which the programs are kept.
MOST_FORMS = 32
#: What stays as it is, besides numbers: any other object may hold what changes.
_LASTING = str | bytes | Enum | torch.dtype | torch.device | type
_LASTING |= FunctionType | BuiltinFunctionType | None


def rows_of(tensors: Sequence[Tensor]) -> int:
    """As many as the first tensor has that has rows, 0 if there is none."""
    for x in tensors:
        if x.dim():
            return x.shape[0]
    return 0


class Call:
    """The arguments of a call, as their tensors and the rest.

    Attributes:
        tensors: All tensors among the arguments, in order.
        rows: N, by :func:`rows_of`.
    """

    def __init__(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        self._leaves: list[Any]
        self._spec: Any
        self._leaves, self._spec = [*args, *kwargs.values()], (len(args), tuple(kwargs))
        self.tensors = [leaf for leaf in self._leaves if isinstance(leaf, Tensor)]
        others = len(self.tensors) < len(self._leaves)
        if others and any(isinstance(leaf, tuple | list | dict) for leaf in self._leaves):
            self._leaves, self._spec = tree_flatten((args, kwargs))
            self.tensors = [leaf for leaf in self._leaves if isinstance(leaf, Tensor)]
        self.rows = rows_of(self.tensors)

    def given(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with other tensors in the place of these."""
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        if isinstance(self._spec, tuple):
            count, names = self._spec
            return tuple(leaves[:count]), dict(zip(names, leaves[count:], strict=True))
        given: tuple[tuple[Any, ...], dict[str, Any]] = tree_unflatten(leaves, self._spec)
        return given

    def form(self) -> Hashable:
        """What calls have in common that differ in numbers and rows; ``None``: they have none."""
        state = torch.get_default_dtype(), *map(_autocast, ("cpu", "cuda")), validates()
        spec = self._spec if isinstance(self._spec, tuple) else repr(self._spec)
        leaves = [*map(self._leaf, self._leaves)]
        return None if None in leaves else (spec, state, *leaves)

    def _leaf(self, leaf: object) -> Hashable:
        """What is fixed of an argument, ``None`` where nothing is known to be."""
        if isinstance(leaf, Tensor):
            shape = leaf.shape
            if shape and shape[0] == self.rows:
                return len(shape), shape[1:], leaf.dtype, leaf.device
            return len(shape), shape, leaf.dtype, leaf.device
        if isinstance(leaf, int | float | complex | np.generic):
            return type(leaf), repr(leaf)  # which tells 0.0 from -0.0
        return (type(leaf), leaf) if isinstance(leaf, _LASTING) else None


def _autocast(device: str) -> torch.dtype | None:
    """The dtype to which operations on a device cast what they are given."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


class Forms(Generic[T]):
    """What is kept for forms of calls, or for a form and its number of rows; the latest ones."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, T] = OrderedDict()

    def __getitem__(self, key: Hashable) -> T | None:
        return self._kept.get(key)

    def __setitem__(self, key: Hashable, value: T) -> None:
        self._kept[key] = value
        while len(self._kept) > MOST_FORMS:
            self._kept.popitem(last=False)
