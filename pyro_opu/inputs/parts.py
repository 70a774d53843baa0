"""One of several inputs: its name, shape and dtype, and the values of an index."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_opu.checks import (
    ArgumentError,
    ArgumentTypeError,
    check_inputs,
    check_row_shape,
    is_traced,
)
from pyro_opu.inputs.columns import Column, as_tensor, is_table, series_of

__all__ = ["Part", "check_names"]

#: Dtypes of numbers and of indices, as files name them.
NUMBERS = ("float64", "float32", "float16", "bfloat16")
INDICES = ("int64", "int32", "bool")


@dataclass(frozen=True)
class Part:
    """One of several inputs, ``(N, *shape)``.

    Attributes:
        name: Its keyword, or its position in words.
        shape: The shape of one row; ``()`` for a tensor ``(N,)``.
        dtype: Name of the dtype.
        values: The values seen, in order, of an integer or boolean part, which is an index;
            ``None`` of a floating one.
        source: The columns of a table that it is made of, one for each of its numbers; none where
            it is a tensor.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    values: tuple[int, ...] | None = None
    source: tuple[Column, ...] = ()

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
    def key(self) -> str:
        """What a user calls it, the name of its column or its own."""
        return self.source[0].name if self.source and not self.shape else self.name

    def tensor(self, own: str, given: object) -> Tensor:
        """The part ``(N, *shape)`` of what a user gives, in float64 where it is of a table."""
        if isinstance(given, Tensor) or not self.source:
            return as_tensor(given)
        if not self.shape:
            return torch.from_numpy(self.source[0].numbers(given, own)).to(self._whole)
        if not is_table(given):
            return as_tensor(np.asarray(given))
        table, wanted = series_of(given, own), [column.name for column in self.source]
        check_names(own, wanted, list(table))
        columns = [each.numbers(table[each.name], f"{own}[{each.name!r}]") for each in self.source]
        return torch.from_numpy(np.stack(columns, 1)).to(getattr(torch, self.dtype))

    @property
    def _whole(self) -> torch.dtype:
        """Its dtype."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def columns(self) -> int:
        """Columns that a row of it takes."""
        return prod(self.shape)

    def check(self, own: str, value: Tensor) -> None:
        """Refuse a tensor of another shape or kind, or with an index below zero."""
        check_row_shape(own, value, self.shape, "Reshape it.")
        if self.values is None:
            if not value.is_floating_point():
                raise ArgumentTypeError(
                    f"`{own}` must be floating, as it was first; got {value.dtype}. Convert it "
                    "with .float()."
                )
        elif value.is_floating_point():
            raise ArgumentTypeError(
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
            names = dict(enumerate(self.source[0].names)) if self.source else {}
            found = columns[~known].unique()[:5].tolist()
            new = ", ".join(
                f"{value:g}" if value not in names else repr(names[int(value)]) for value in found
            )
            raise ArgumentError(
                f"`{own}` must hold indices that the student has seen; got [{new}]. Distil with "
                "rows of them among `x`: the teacher must be able to answer there."
            )

    def read(self, columns: Tensor) -> Tensor:
        """The part ``(N, *shape)``, in its own dtype, from its columns ``(N, columns)``."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return columns.to(dtype).reshape(columns.shape[0], *self.shape)

    def describe(self) -> dict[str, Any]:
        """As plain values, for a file."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Part:
        """From its plain values in a file.

        Raises:
            ValueError: no values of a part.
        """
        name, shape, dtype, values = (config[k] for k in ("name", "shape", "dtype", "values"))
        source = tuple(map(Column.from_config, config["source"]))
        whole = [*shape, *(values or [0])]
        sizes_and_values = all(type(each) is int and 0 <= each < 2**53 for each in whole)
        known = NUMBERS if values is None else INDICES
        if type(name) is not str or not sizes_and_values or dtype not in known:
            raise ValueError(f"{config!r:.80} is no input")
        if values is not None and ordered(values) != tuple(values):
            raise ValueError(f"the indices of {name!r:.50} are not in order")
        found = cls(name, tuple(shape), dtype, None if values is None else tuple(values), source)
        if source and len(source) != found.columns:
            raise ValueError(f"{name!r:.50} has another number of columns")
        return found


def check_names(own: str, wanted: list[str], given: list[str]) -> None:
    """Refuse a table that lacks columns, or has others."""
    lacking, more = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
    if lacking or more:
        found = f"it lacks {lacking}" if lacking else f"it has {more} too"
        raise ArgumentError(
            f"`{own}` must be a table with the columns {wanted}, in any order; {found}. Pass the "
            f"columns that the first one had, such as {own}[{wanted[:2]}]."
        )


def ordered(values: Iterable[float]) -> tuple[int, ...]:
    """Different whole numbers in order."""
    return tuple(sorted({int(value) for value in values}))


def check_rows_of(own: str, value: Tensor, rows: int) -> None:
    """Refuse a tensor with another number of rows, or whose numbers are not finite and real."""
    if value.ndim == 0 or len(value) != rows:
        raise ArgumentError(
            f"`{own}` must have as many rows as the other inputs, {rows}; got shape "
            f"{tuple(value.shape)}. Repeat it, or pass what is the same for all rows in the model."
        )
    if value.is_floating_point():
        check_inputs(value, own, features=False)
    elif value.is_complex():
        raise ArgumentTypeError(
            f"`{own}` must have a floating dtype; got {value.dtype}. Pass real numbers."
        )


def _no_index(own: str, value: Tensor) -> TypeError:
    least = int(value.min()) if value.numel() and value.dtype.is_signed else 0
    found = f"{value.dtype}, with {least}" if least < 0 else str(value.dtype)
    return ArgumentTypeError(
        f"`{own}` must have a floating dtype; got {found}. Convert numbers, such as pixels, "
        f"with {own}.float(), of an array {own}.astype(float); an index is int64, from zero."
    )
