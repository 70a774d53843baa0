"""Inputs of what a user gives: their one tensor and their form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from pyro_opu.checks import ArgumentError
from pyro_opu.inputs.columns import Column, as_tensor, is_column, is_table, rounded, series_of
from pyro_opu.inputs.form import PLAIN, Columns, Form
from pyro_opu.inputs.given import Structured, kind_of, leaves, own_name
from pyro_opu.inputs.parts import Part, check_rows_of, ordered

__all__ = ["InputLike", "Inputs", "call_with", "form_of", "inputs_of"]


@dataclass(frozen=True)
class Inputs:
    """Inputs with N rows as one tensor, and their form.

    Whatever takes inputs makes them by itself; made by :meth:`of` they say more of a table, and
    give its columns as the model takes them.

    Args:
        tensor: The inputs in one tensor, ``(N, ...)``.
        form: What they are to the user and the model.

    Example:
        >>> import pandas
        >>> from pyro_opu import Inputs
        >>> table = pandas.DataFrame({"age": [61.0, None, 47.0], "ward": ["A", "B", "A"]})
        >>> inputs = Inputs.of(table, missing=("age",))
        >>> {name: value.tolist() for name, value in inputs.kwargs.items()}
        {'age': [61.0, 54.0, 47.0], 'age_missing': [False, True, False], 'ward': [0, 1, 0]}
        >>> inputs.like(table[:1]).kwargs["ward"]
        tensor([0])
    """

    tensor: Tensor
    form: Form

    @classmethod
    def of(
        cls,
        x: InputLike,
        *,
        missing: Sequence[str] = (),
        other: Mapping[str, object] | None = None,
        name: str = "x",
    ) -> Inputs:
        """Read a tensor, an array, a data frame or series, or a tuple or dict of these.

        A data frame of numbers alone is a matrix ``(N, D)``, any other a dict of its columns, so
        that the model is given each by its name: numbers in torch's default dtype, or in float64
        where digits would be lost; categories, truth values and text as int64 places in their
        names, which are kept and saved; dates as days since 1970 in float64.

        Args:
            x: The inputs. Categories are numbered in their order, text alphabetically.
            missing: Columns that may have missing values. The model is given the value, at missing
                ones the mean or the commonest name, and ``{name}_missing``, a truth value.
            other: By column, one of its names, as which unknown ones are read from now on.
            name: What errors call the inputs.

        Raises:
            TypeError: inputs of another kind; values that are neither numbers, names nor dates.
            ValueError: values that are missing in a column that was not declared; rows that differ
                in number; numbers that are not finite.
        """
        if isinstance(x, Inputs):
            return x
        form = form_of(x, name, missing, dict(other or {}))
        return cls(form.pack(x, name), form.declared())

    def like(self, x: InputLike, name: str = "x") -> Inputs:
        """Other inputs of the same form, whose names have the same numbers."""
        packed = self.form.pack(x, name)
        seen = [packed[:, column].unique().tolist() for column in self.form.index_columns]
        return Inputs(packed, self.form.known().seeing(seen))

    @property
    def args(self) -> tuple[Any, ...]:
        """What the model is given by position."""
        return self.form.call(self.tensor)[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """What the model is given by name."""
        return self.form.call(self.tensor)[1]

    def __len__(self) -> int:
        return len(self.tensor)


#: What is taken wherever ``x`` is.
InputLike = Inputs | Structured


def inputs_of(x: InputLike, *sources: object, name: str = "x") -> Inputs:
    """What a user gives as inputs, in the form that a student or teacher among the sources has."""
    forms = (getattr(each, "form", None) for each in sources)
    known = [form for form in forms if isinstance(form, Form) and form.parts]
    if isinstance(x, Inputs) and not known:
        return x
    form = known[0] if known else form_of(x, name)
    return Inputs(form.pack(x, name), form)


def call_with(args: tuple[Any, ...], kwargs: Mapping[str, object]) -> tuple[Any, dict[str, Any]]:
    """Arguments of a call of the model, arrays as tensors and a table as what the model takes."""
    if len(args) == 1 and (isinstance(args[0], Inputs) or is_table(args[0])):
        inputs = inputs_of(args[0])
        if inputs.form.implied:
            raise ArgumentError(
                f"`x` must say how the text in its columns {inputs.form.implied} is numbered. Pass "
                "inputs.like(x), of inputs = Inputs.of(table) with the table of the model."
            )
        return inputs.args, {**inputs.kwargs, **kwargs}
    named = {name: as_tensor(value) for name, value in kwargs.items()}
    return tuple(as_tensor(value) for value in args), named


def form_of(
    x: object,
    name: str = "x",
    missing: Sequence[str] = (),
    other: Mapping[str, object] | None = None,
) -> Form:
    """The form of inputs like these, see :meth:`pyro_opu.Inputs.of`.

    Raises:
        TypeError: no tensor, array or table; an index below zero, or in fewer than 32 bits.
        ValueError: no tensor; rows that differ in number; numbers that are not finite.
    """
    if isinstance(x, Tensor) and x.is_floating_point() and x.ndim != 1:
        return PLAIN
    if isinstance(x, Inputs):
        return x.form
    kind, given, other = kind_of(x), leaves(x, name), other or {}
    if not given:
        raise ArgumentError(f"`{name}` must hold at least one tensor; got none. Pass the inputs.")
    for argument, names in (("missing", missing), ("other", other)):
        wrong = [each for each in names if not is_column(given.get(each))]
        if isinstance(names, str) or wrong:
            raise ArgumentError(
                f"`{argument}` must name columns of `{name}`, {list(given)}; got {names!r:.60}."
            )
    if is_table(x) and not missing and not other:
        columns = [Column.of(k, f"{name}[{k!r}]", v, False, None) for k, v in given.items()]
        if all(column.kind == "number" for column in columns):
            return Form("plain", (_part("x", name, columns, x),))
    rows = len(next(iter(given.values())))
    parts = []
    for key, value in given.items():
        own = own_name(name, int(key) if kind == "tuple" else key, kind)
        parts += _parts(key, own, value, rows, key in missing, other.get(key))
    if kind == "tensor" and not parts[0].source and parts[0].values is None and parts[0].shape:
        return PLAIN
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise ArgumentError(
            f"`{name}` must have inputs of different names; got {names}. Rename one."
        )
    return Columns(kind, tuple(parts))


def _parts(key: str, own: str, value: Any, rows: int, missing: bool, other: Any) -> list[Part]:
    """What is given under a key: an input, or a value and whether it is missing."""
    if is_table(value):
        table = series_of(value, own)
        columns = [Column.of(k, f"{own}[{k!r}]", v, False, None) for k, v in table.items()]
        if not all(column.kind == "number" for column in columns):
            raise ArgumentError(
                f"`{own}` must hold numbers alone, as a table beside other inputs is a matrix; got "
                f"{[each.name for each in columns if each.kind != 'number']}. Give these by "
                "themselves."
            )
        part = _part(key, own, columns, value)
        check_rows_of(own, part.tensor(own, value), rows)
        return [part]
    tensor = as_tensor(value)
    if isinstance(tensor, Tensor) and not missing:
        check_rows_of(own, tensor, rows)
        return [Part.of(key, own, tensor)]
    found = [_part(key, own, [Column.of(key, own, value, missing, other)], value)]
    if missing:
        found.append(_part(f"{key}_missing", own, [Column(key, "missing")], value))
    check_rows_of(own, found[0].tensor(own, value), rows)
    return found


def _part(key: str, own: str, columns: list[Column], value: object) -> Part:
    """The part that columns make, in the dtype that their values need."""
    kind, shape = columns[0].kind, (len(columns),) if is_table(value) else ()
    part = Part(key, shape, "float64", None, tuple(columns))
    found = part.tensor(own, value)
    if kind in ("category", "missing"):
        values = ordered(found.unique().tolist())
        return replace(part, dtype="bool" if kind == "missing" else "int64", values=values)
    narrow = found if kind == "date" else rounded(found)
    return replace(part, dtype=str(narrow.dtype).removeprefix("torch."))
