"""Columns of tables: how numbers, names and dates become numbers, and the way back."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_opu.checks import ArgumentError, ArgumentTypeError

__all__ = ["Column", "as_tensor", "is_column", "is_table", "series_of"]

Kind = Literal["number", "category", "date", "missing"]
Name = str | int | float | bool
#: Share of a column's deviation that rounding to float32 may change.
ROUNDING = 1e-4
_DAY, _EPOCH = np.timedelta64(1, "D"), np.datetime64("1970-01-01", "us")


@dataclass(frozen=True)
class Column:
    """A column of a table, and what its values are as numbers.

    Attributes:
        name: The column's name.
        kind: "number"; "category", a place in ``names``; "date", days since 1970 in float64, of
            UTC where there are time zones; or "missing", whether the value is.
        names: The names of a category, in the order of their numbers.
        fill: What stands for a missing value; ``None`` where none may be missing.
        other: The name that unknown ones are read as; ``None`` where they are refused.
        implied: Whether the names are those that the first table happened to hold.
    """

    name: str
    kind: Kind
    names: tuple[Name, ...] = ()
    fill: float | None = None
    other: Name | None = None
    implied: bool = False

    @classmethod
    def of(cls, name: str, own: str, values: object, missing: bool, other: Name | None) -> Column:
        """The column that holds these values; ``own`` is what errors call it."""
        array, names = _array(values, own)
        gone = _missing(array)
        known = array[~gone]
        kind = "category" if names is not None else _kind(known, own)
        truth = names is None and {type(each) for each in known.tolist()} == {bool}
        implied = names is None and kind == "category" and not truth
        if kind == "category":
            names = sorted(set(known.tolist())) if names is None else names
            names = [False, True] if truth else names
            bad = [each for each in names if not isinstance(each, (str, int, float, bool))]
            if bad:
                raise ArgumentTypeError(
                    f"`{own}` must have names that are text or numbers; got {bad[0]!r:.50}, a "
                    f"{type(bad[0]).__name__}. Convert the column with .astype(str)."
                )
            if other is not None and other not in names:
                raise ArgumentError(
                    f"`other` must be a name that `{own}` holds, so that a student is taught there;"
                    f" got {other!r}. Give it to rows first: frame[{name!r}].where(frame[{name!r}]"
                    f".isin(common), {other!r})."
                )
        elif other is not None:
            raise ArgumentError(f"`other` must name columns of names; `{own}` holds a {kind}.")
        found = cls(name, kind, tuple(names or ()), None, other, implied)
        if not missing:
            return found
        if not len(known):
            raise ArgumentError(f"`{own}` must hold some values; all are missing. Leave it out.")
        numbers = found.numbers(known, own)
        usual = np.bincount(numbers.astype(np.int64)).argmax() if names else numbers.mean()
        return cls(name, kind, found.names, float(usual), other, implied)

    def numbers(self, values: object, own: str) -> NDArray[np.float64]:
        """The values ``(N,)`` as numbers.

        Raises:
            TypeError: values of another kind.
            ValueError: missing values in a column without, or an unknown name.
        """
        array, _ = _array(values, own)
        gone = _missing(array)
        if self.kind == "missing":
            return gone.astype(np.float64)
        if gone.any() and self.fill is None:
            raise ArgumentError(
                f"`{own}` must hold no missing values; {int(gone.sum())} of {len(gone)} are "
                f"(first: row {int(gone.argmax())}). Declare it, Inputs.of(x, missing="
                f"({self.name!r},)), and the model is given a value and a mask; or drop these rows."
            )
        found = np.full(len(array), np.nan if self.fill is None else self.fill)
        known = array[~gone]
        if self.kind == "category":
            found[~gone] = self._places(known.tolist(), own)
        elif len(known) and (kind := _kind(known, own)) != self.kind:
            raise ArgumentTypeError(
                f"`{own}` must hold a {self.kind}, as it did first; got a {kind}. "
                "Convert the column."
            )
        elif self.kind == "date":
            found[~gone] = (known.astype("datetime64[us]") - _EPOCH) / _DAY
        else:
            found[~gone] = known.astype(np.float64)
        return found

    def _places(self, values: list[Any], own: str) -> list[int]:
        place = {name: index for index, name in enumerate(self.names)}
        if self.other is not None:
            return [place.get(each, place[self.other]) for each in values]
        unknown = sorted({str(each) for each in values if each not in place})
        if unknown:
            raise ArgumentError(
                f"`{own}` must hold names that are known, {_some(self.names)}; got "
                f"{_some(unknown)}. Name them otherwise, make the first table with rows of them, "
                f"or declare what they are read as, Inputs.of(x, other={{{self.name!r}: ...}})."
            )
        return [place[each] for each in values]

    def values(self, numbers: NDArray[np.generic]) -> NDArray[Any]:
        """The column that these numbers ``(N,)`` stand for."""
        if self.kind == "category":
            names = np.empty(len(self.names), dtype=object)
            names[:] = self.names
            same = len({type(each) for each in self.names}) == 1
            plain = same and not isinstance(self.names[0], str)
            return (np.array(self.names) if plain else names)[numbers.astype(np.int64)]
        if self.kind == "date":
            return _EPOCH + (numbers.astype(np.float64) * 86_400e6).round().astype(
                "timedelta64[us]"
            )
        return numbers.astype(np.float64)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Column:
        """From its plain values in a file.

        Raises:
            KeyError, TypeError, ValueError: no values of a column.
        """
        found = cls(**{**config, "names": tuple(config["names"])})
        number = found.fill is None or type(found.fill) is float
        texts = type(found.name) is str and type(found.implied) is bool
        names = all(type(each) in (str, int, float, bool) for each in found.names)
        inside = found.other is None or found.other in found.names
        inside = inside and (found.kind == "category") == bool(found.names)
        if found.kind not in get_args(Kind) or not (number and texts and names and inside):
            raise ValueError(f"{config!r:.80} is no column")
        return found


def is_table(x: object) -> bool:
    """Whether it is a data frame, of pandas or another library."""
    return not isinstance(x, (Tensor, Mapping)) and hasattr(x, "columns") and hasattr(x, "dtypes")


def is_column(x: object) -> bool:
    """Whether it is an array or a series, and no tensor."""
    array = hasattr(x, "__array__") and hasattr(x, "dtype") and not isinstance(x, Tensor)
    return array and getattr(x, "ndim", 1) > 0


def series_of(table: Any, name: str) -> dict[str, Any]:
    """The columns of a data frame by name."""
    names = [str(each) for each in table.columns]
    twice = sorted({each for each in names if names.count(each) > 1})
    if twice:
        raise ArgumentError(
            f"`{name}` must have columns of different names; {twice} are there twice."
        )
    return {str(each): table[each] for each in table.columns}


def as_tensor(x: Any) -> Any:
    """An array of numbers as a tensor, floating ones in float32 where no digits are lost."""
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "iufb":
        return x
    x = unmasked(x)
    known = x.dtype.newbyteorder("=") if x.dtype.itemsize <= 8 else np.float64  # torch's
    found = torch.from_numpy(np.ascontiguousarray(x, dtype=known))
    return rounded(found) if found.dtype == torch.float64 else found


def rounded(x: Tensor) -> Tensor:
    """Float64 in torch's default dtype, unless columns then lose digits of how they vary."""
    narrow = x.to(torch.get_default_dtype())
    off = (narrow.double() - x).abs().reshape(len(x), -1).amax(0)
    kept = off <= ROUNDING * x.reshape(len(x), -1).std(0, correction=0)
    return narrow if bool((kept | (off == 0) | ~x.isfinite().all()).all()) else x


def unmasked(x: Any) -> Any:
    """An array with NaN at its masked entries, which are missing values."""
    return x.astype(float).filled(np.nan) if np.ma.is_masked(x) else x


def _array(values: Any, own: str) -> tuple[NDArray[Any], list[Any] | None]:
    """Values as an array, and the names that a categorical column has."""
    dtype = values.dtype
    names = None
    if type(dtype).__name__ == "CategoricalDtype" and hasattr(dtype, "categories"):
        names, values = dtype.categories.tolist(), values.astype(object)
    elif getattr(dtype, "tz", None) is not None:
        values = values.dt.tz_convert(None)
    array = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(unmasked(values))
    if array.ndim != 1:
        raise ArgumentError(
            f"`{own}` must hold numbers, or be a column (N,) of names or dates; got {array.dtype} "
            f"of shape {array.shape}. Write {own}.astype(float) if they are numbers; if not, pass "
            "a data frame or a dict of its columns."
        )
    if array.dtype.kind == "O":  # as numbers, dates or truth values, where all are
        gone = _missing(array)
        numbers = np.array(array[~gone].tolist()) if not gone.all() else np.zeros(0)
        if numbers.dtype.kind in "iuf":
            whole = np.full(len(array), np.nan)
            whole[~gone] = numbers
            return whole, names
        if not gone.all() and all(isinstance(each, datetime.date) for each in array[~gone]):
            known = [None if each else value for each, value in zip(gone, array, strict=True)]
            return np.array(known, dtype="datetime64[us]"), names
    return array, names


def _missing(array: NDArray[np.generic]) -> NDArray[np.bool_]:
    if array.dtype.kind == "f":
        return np.isnan(array)
    if array.dtype.kind == "M":
        return np.isnat(array)
    if array.dtype.kind == "O":
        return np.array([_is_missing(each) for each in array], dtype=np.bool_)
    return np.zeros(len(array), dtype=np.bool_)


def _is_missing(value: object) -> bool:
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (isinstance(value, float) and value != value)
    )


def _kind(known: NDArray[np.generic], own: str) -> Kind:
    """What values none of which is missing are."""
    letter = known.dtype.kind
    if letter in "iuf":
        return "number"
    if letter == "M":
        return "date"
    texts = letter in "bUT" or {type(each) for each in known} in ({str}, {bool}, set())
    if not texts:
        found = sorted({type(each).__name__ for each in known}) if letter == "O" else [known.dtype]
        raise ArgumentTypeError(
            f"`{own}` must hold numbers, truth values, text or dates; got {_some(found)}. Convert "
            "the column: of durations take .dt.total_seconds(), of mixed values .astype(str)."
        )
    return "category"


def _some(names: Any) -> str:
    text = ", ".join(f"{each!r}" if isinstance(each, str) else str(each) for each in names[:5])
    return text + (", ..." if len(names) > 5 else "")
