"""One of several inputs: its name, shape and dtype, and the values of an index."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from pyro_opu.checks import check_inputs, check_row_shape, is_traced

__all__ = ["Part"]

#: Dtypes of numbers and of indices, as files name them.
NUMBERS = ("float64", "float32", "float16", "bfloat16")
INDICES = ("int64", "int32", "bool")


@dataclass(frozen=True)
class Part:
    """One of several inputs, ``(N, *shape)``.

    Attributes:
        name: Its keyword, or its position in words.
        shape: Of one row; ``()`` for a tensor ``(N,)``.
        dtype: Name of the dtype.
        values: The values seen, in order, of an integer or boolean part, which is an index;
            ``None`` of a floating one.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    values: tuple[int, ...] | None = None

    @classmethod
    def of(cls, name: str, own: str, value: Tensor) -> Part:
        """The part that a checked tensor is; ``own`` is what errors call it."""
        dtype = str(value.dtype).removeprefix("torch.")
        values = None
        if not value.is_floating_point():
            if dtype not in INDICES or bool((value < 0).any()):
                raise _no_index(own, value)
            values = ordered(value.unique().tolist())
        return cls(name, tuple(value.shape[1:]), dtype, values)

    @property
    def columns(self) -> int:
        """Columns that a row of it takes."""
        return prod(self.shape)

    def check(self, own: str, value: Tensor) -> None:
        """Refuse a tensor of another shape or kind, or with an index below zero."""
        check_row_shape(own, value, self.shape, "Reshape it.")
        if self.values is None:
            if not value.is_floating_point():
                raise TypeError(
                    f"`{own}` must be floating, as it was first; got {value.dtype}. Convert it "
                    "with .float()."
                )
        elif value.is_floating_point():
            raise TypeError(
                f"`{own}` must be whole, an index as it was first; got {value.dtype}. Convert it "
                "with .long()."
            )
        elif not is_traced() and bool((value < 0).any()):
            raise _no_index(own, value)

    def check_seen(self, own: str, columns: Tensor) -> None:
        """Refuse packed columns ``(N, columns)`` with an index that was not seen."""
        if self.values is None or is_traced():
            return
        columns = columns.double()  # in which an index is exact
        known = torch.isin(columns, torch.tensor(self.values).to(columns))
        if not bool(known.all()):
            new = ", ".join(f"{value:g}" for value in columns[~known].unique()[:5].tolist())
            raise ValueError(
                f"`{own}` must hold indices that the student has seen; got [{new}]. Distil with "
                "rows of them among `x`: the teacher must be able to answer there."
            )

    def read(self, columns: Tensor) -> Tensor:
        """The part ``(N, *shape)``, in its own dtype, from its columns ``(N, columns)``."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return columns.to(dtype).reshape(columns.shape[0], *self.shape)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Part:
        """From its plain values in a file.

        Raises:
            ValueError: no values of a part.
        """
        name, shape, dtype, values = (config[k] for k in ("name", "shape", "dtype", "values"))
        whole = [*shape, *(values or [0])]
        sizes_and_values = all(type(each) is int and 0 <= each < 2**53 for each in whole)
        known = NUMBERS if values is None else INDICES
        if type(name) is not str or not sizes_and_values or dtype not in known:
            raise ValueError(f"{config!r:.80} is no input")
        if values is not None and ordered(values) != tuple(values):
            raise ValueError(f"the indices of {name!r:.50} are not in order")
        return cls(name, tuple(shape), dtype, None if values is None else tuple(values))


def ordered(values: Iterable[float]) -> tuple[int, ...]:
    """Different whole numbers in order."""
    return tuple(sorted({int(value) for value in values}))


def check_rows_of(own: str, value: Tensor, rows: int) -> None:
    """Refuse a tensor with another number of rows, or whose numbers are not finite and real."""
    if value.ndim == 0 or len(value) != rows:
        raise ValueError(
            f"`{own}` must have as many rows as the other inputs, {rows}; got shape "
            f"{tuple(value.shape)}. Repeat it, or pass what is the same for all rows in the model."
        )
    if value.is_floating_point():
        check_inputs(value, own, features=False)
    elif value.is_complex():
        raise TypeError(
            f"`{own}` must have a floating dtype; got {value.dtype}. Pass real numbers."
        )


def _no_index(own: str, value: Tensor) -> TypeError:
    least = int(value.min()) if value.numel() else 0
    found = f"{value.dtype}, with {least}" if least < 0 else str(value.dtype)
    return TypeError(
        f"`{own}` must have a floating dtype; got {found}. Convert numbers, such as pixels, "
        f"with {own}.float(); an index is int64, from zero."
    )
