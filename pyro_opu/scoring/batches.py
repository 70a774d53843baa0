"""Batches of rows as data engines have them: dicts of arrays, data frames, Arrow tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_opu.checks import ArgumentError, ArgumentTypeError, all_finite
from pyro_opu.inputs import Form
from pyro_opu.inputs.columns import is_table, unmasked
from pyro_opu.scoring.answers import Source

__all__ = ["columns_of", "inputs_of", "named_inputs", "seen", "with_columns"]

_KINDS = "a dict of arrays, a pandas DataFrame, or a RecordBatch or Table of Arrow"


def is_arrow_column(values: Any) -> bool:
    """Whether it is of Arrow, as a column is."""
    return type(values).__module__.partition(".")[0] == "pyarrow"


def is_arrow(batch: Any) -> bool:
    """Whether it is a table or a batch of Arrow."""
    return is_arrow_column(batch) and hasattr(batch, "schema")


def columns_of(batch: Any, own: str = "batch") -> dict[str, Any]:
    """The columns of a batch by name; ``own`` is what errors call it.

    Raises:
        TypeError: no batch.
        ValueError: a name that is there twice; columns of different lengths.
    """
    if isinstance(batch, Mapping):
        found = {str(name): values for name, values in batch.items()}
        sizes = {name: _length(f"{own}[{name!r}]", values) for name, values in found.items()}
        if len(set(sizes.values())) > 1:
            raise ArgumentError(f"`{own}` must have columns of one length; got {sizes}.")
        return found
    if not is_arrow(batch) and not is_table(batch):
        raise ArgumentTypeError(f"`{own}` must be {_KINDS}; got {type(batch).__name__}.")
    names = [str(name) for name in (batch.schema.names if is_arrow(batch) else batch.columns)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ArgumentError(f"`{own}` must have columns of different names; twice are {twice}.")
    values = batch.columns if is_arrow(batch) else (batch[name] for name in batch.columns)
    return dict(zip(names, values, strict=True))


def _length(own: str, values: Any) -> int:
    """Rows of a column."""
    try:
        return len(values)
    except TypeError:
        found = type(values).__name__
        raise ArgumentTypeError(
            f"`{own}` must be a column (N,) or (N, ...); got {found}."
        ) from None


def with_columns(batch: Any, answers: Mapping[str, Tensor]) -> Any:
    """The batch with further columns, of the same kind."""
    found = {name: np.ascontiguousarray(values.numpy()) for name, values in answers.items()}
    if isinstance(batch, Mapping):
        return {**batch, **found}
    if not is_arrow(batch):
        return batch.assign(**found)
    import pyarrow

    schema, arrays = batch.schema, [pyarrow.array(values) for values in found.values()]
    for name, values in zip(found, arrays, strict=True):
        schema = schema.append(pyarrow.field(name, values.type))
    return type(batch).from_arrays([*batch.columns, *arrays], schema=schema)


def named_inputs(form: Form) -> list[str]:
    """Names of the columns that are inputs, where they have some: none of one matrix."""
    columns = [column for part in form.parts for column in part.source]
    if columns:
        return [column.name for column in columns if column.kind != "missing"]
    if len(form.parts) < 2:
        return []
    return [
        f"{part.name}_{number}" if part.shape else part.name
        for part in form.parts
        for number in range(part.columns)
    ]


def inputs_of(
    source: Source,
    columns: Mapping[str, Any],
    chosen: Sequence[str] | None,
    name: str = "batch",
    first: int = 0,
) -> Tensor:
    """The inputs among named columns, in one tensor.

    Args:
        source: What takes them.
        columns: By name.
        chosen: The columns of a matrix, in order; by default all.
        name: What errors call the table.
        first: The number of its first row, for them.

    Raises:
        TypeError: a column that holds no numbers.
        ValueError: columns that are not there, are too many, or hold numbers that are not finite.
    """
    names = named_inputs(source.form) if chosen is None else list(chosen)
    if missing := [each for each in names if each not in columns]:
        raise ArgumentError(
            f"`{name}` must have the columns {names}, the inputs by name; it has "
            f"{_some(columns)}, and lacks {_some(missing)}. Rename them."
        )
    if any(part.source for part in source.form.parts):
        own = f"{name}[{first}:]" if first else name
        return seen(source, source.form.pack(_table(source.form, columns), own), own)
    given = {each: columns[each] for each in names or columns}
    arrays = {each: _numbers(f"{name}[{each!r}]", values) for each, values in given.items()}
    widths = {each: prod(array.shape[1:]) for each, array in arrays.items()}
    wanted = prod(source.input_shape)
    if sum(widths.values()) != wanted:
        raise ArgumentError(
            f"`columns` must name {wanted} numbers of a row, the student's inputs "
            f"{tuple(source.input_shape)}; {_some(widths)} have {sum(widths.values())}. Name the "
            "inputs, in order."
        )
    by_column = np.concatenate([array.reshape(len(array), -1).T for array in arrays.values()])
    x = torch.from_numpy(by_column).mT.contiguous()  # thrice as fast as row by row
    if not all_finite(x):
        row, place = (~x.isfinite()).nonzero()[0].tolist()
        column = [each for each, width in widths.items() for _ in range(width)][place]
        raise ArgumentError(
            f"`{name}` must hold finite numbers; row {first + row} has {x[row, place]:g} in the "
            f"column {column!r}. Fill it in, or leave the row out."
        )
    return seen(source, x.reshape(-1, *source.input_shape), name)


def seen(source: Source, x: Tensor, name: str) -> Tensor:
    """Inputs in one tensor, refused where a student has not seen an index in them."""
    taught = getattr(source, "num_draws", None) is None  # draws know what no row has shown
    return source.form.check_seen(x, name) if taught else x


def _table(form: Form, columns: Mapping[str, Any]) -> Any:
    """The columns of a table as the form was given them first."""
    import pandas

    frame = pandas.DataFrame(
        {
            name: _series(columns[name]) if is_arrow_column(columns[name]) else columns[name]
            for name in named_inputs(form)
        }
    )
    if form.kind == "plain":
        return frame
    values = {
        part.key: frame[[column.name for column in part.source]]
        if part.shape
        else frame[part.source[0].name]
        for part in form.parts
    }
    if form.kind == "dict":
        return values
    return tuple(values.values()) if form.kind == "tuple" else next(iter(values.values()))


def _series(values: Any) -> Any:
    """A column of Arrow in pandas, decimals as floating numbers."""
    decimal = str(values.type).startswith("decimal")
    return (values.cast("float64") if decimal else values).to_pandas()


def _numbers(own: str, values: Any) -> NDArray[Any]:
    """A column as floating numbers ``(N, ...)``: whole ones in float64."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values if values.dtype == torch.float32 else values.double()).numpy()
    if is_arrow_column(values):
        size = getattr(values.type, "list_size", None)  # of lists of one length
        if size and not values.null_count:
            values = np.asarray(getattr(values, "combine_chunks", lambda: values)().flatten())
            values = values.reshape(-1, size)
        else:
            values = _series(values).to_numpy()
    try:
        array = np.asarray(unmasked(values))
        if array.dtype == object and len(array) and np.ndim(array[0]):
            array = np.stack(list(array))
    except ValueError as error:
        raise ArgumentError(
            f"`{own}` must hold as many numbers in every row; it holds lists of different lengths, "
            "or misses some. Fill them up, or leave the rows out."
        ) from error
    kinds = {type(value) for value in array.flat} if array.dtype == object else {array.dtype}
    texts = not kinds.isdisjoint((str, bytes))
    try:
        if texts or array.dtype.kind not in "biufO":
            raise TypeError(array.dtype)
        return array.astype(np.float32 if array.dtype == np.float32 else np.float64, copy=False)
    except (TypeError, ValueError) as error:
        others = sorted(getattr(kind, "__name__", str(kind)) for kind in kinds)
        raise ArgumentTypeError(
            f"`{own}` must hold numbers; it holds {'text' if texts else ', '.join(others)}. "
            "Convert it, or name the inputs with `columns`."
        ) from error


def _some(names: Mapping[str, Any] | Sequence[str]) -> str:
    shown = list(names)
    return f"{shown[:5]}" if len(shown) <= 5 else f"{shown[:5]} and {len(shown) - 5} more"
