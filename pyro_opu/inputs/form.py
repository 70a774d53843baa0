"""Inputs as one floating tensor and their form, in which the model and the user have them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.checks import ArgumentError, ArgumentTypeError, check_inputs
from pyro_opu.inputs.columns import (
    as_tensor,
    is_table,
)
from pyro_opu.inputs.given import KINDS, Kind, kind_of, leaves, own_name, written
from pyro_opu.inputs.parts import Part, check_names, check_rows_of, ordered

__all__ = ["PLAIN", "Columns", "Form", "Unpacked"]


@dataclass(frozen=True)
class Form:
    """What inputs with N rows are to a user and to the model, and how they are one tensor.

    Everything between a user's call and the model or the student works on that tensor: transfer
    policies, pools, judging, checkpoints. One floating tensor ``(N, ...)`` is taken as it is, which
    is the form ``PLAIN``; any other is a ``Columns``.
    """

    kind: Kind = "plain"
    parts: tuple[Part, ...] = ()

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of the inputs seen first, where they stand in one tensor of columns."""
        return None

    @property
    def indices(self) -> list[tuple[int, tuple[int, ...]]]:
        """Columns that hold an index, and the values seen there."""
        return []

    @property
    def index_columns(self) -> list[int]:
        """Columns that hold an index."""
        return [column for column, _ in self.indices]

    def pack(
        self,
        x: object,
        name: str = "x",
        *,
        check_seen: bool = False,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """One tensor of checked inputs, which may be one already, or :class:`~.reading.Inputs`.

        Raises:
            TypeError, ValueError: not the parts, shapes or kinds of numbers that were seen first;
                rows that differ in number; numbers that are not finite, in ``dtype`` too; an index
                that was not seen, if ``check_seen``.
        """
        found = check_inputs(self._read(x, name), name, dtype=dtype)
        return self.check_seen(found, name) if check_seen else found

    def _read(self, x: object, name: str) -> Any:
        """An array, a table of numbers or inputs as a tensor."""
        if _are_inputs(x):
            return self.of_form(x, name)
        return self.parts[0].tensor(name, x) if self.parts else as_tensor(x)

    def of_form(self, inputs: Any, name: str) -> Tensor:
        """The tensor of inputs that must have this form, but for the indices that were seen."""
        if inputs.form.known() != self.known():
            raise ArgumentError(
                f"`{name}` must be inputs of one form, {self}; got {inputs.form}. Make them of the "
                "first ones, inputs.like(table), so that names have the same numbers."
            )
        tensor: Tensor = inputs.tensor
        return tensor

    def known(self) -> Form:
        """The form without what depends on the rows: the indices that were seen."""
        parts = (replace(p, values=None if p.values is None else ()) for p in self.parts)
        return replace(self, parts=tuple(parts))

    def declared(self) -> Form:
        """The form, where the user knows how names are numbered."""
        parts = (
            replace(part, source=tuple(replace(each, implied=False) for each in part.source))
            for part in self.parts
        )
        return replace(self, parts=tuple(parts)) if self.implied else self

    @property
    def blanks(self) -> list[tuple[int, int, float]]:
        """Columns whose value may be missing, the column that says so, and what stands there."""
        start, places, found = 0, {}, []
        for part in self.parts:
            places[part.name], start = start, start + part.columns
        for part in self.parts:
            if len(part.source) == 1 and part.source[0].kind == "missing":
                value = next(p for p in self.parts if p.key == part.key)
                fill = value.source[0].fill
                found.append((places[value.name], places[part.name], 0.0 if fill is None else fill))
        return found

    @property
    def implied(self) -> list[str]:
        """Columns whose names have been numbered by what the first table happened to hold."""
        return [each.name for part in self.parts for each in part.source if each.implied]

    def table(self, packed: Tensor) -> Any:
        """The data frame that it was, of pandas; ``None`` where it was none."""
        if not self.parts or not all(part.source for part in self.parts):
            return None
        from pandas import DataFrame

        found: dict[str, Any] = {}
        numbers = packed.detach().cpu().flatten(1).double().numpy().T
        columns = [column for part in self.parts for column in part.source]
        for column, row in zip(columns, numbers, strict=True):
            if column.kind != "missing":
                found[column.name] = column.values(row)
        frame = DataFrame(found)
        for value, gone, _ in self.blanks:
            frame[columns[value].name] = frame[columns[value].name].mask(numbers[gone] > 0.5)
        return frame

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether a row of the one tensor may have this shape."""
        return not self.parts or tuple(shape) == self.parts[0].shape

    def check_seen(self, packed: Tensor, name: str = "x") -> Tensor:
        """The one tensor, refused where an index in it was not seen."""
        return packed

    def seeing(self, values: Iterable[Iterable[float]]) -> Form:
        """The same form, where these values were seen too, by the columns of :attr:`indices`."""
        return self

    def cast(self, packed: Tensor) -> Tensor:
        """The one tensor in the dtype of the inputs seen first."""
        return packed

    def join(self, values: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """``parts`` in order as one tensor, unchecked."""
        return values[0]

    def named_parts(self, packed: Tensor) -> dict[str, Tensor]:
        """The inputs by name."""
        return {"x": packed}

    def shifted(self, packed: Tensor, by: Tensor) -> Tensor:
        """With a number added to each number; an index stays."""
        return packed + by

    def example(self, shape: Sequence[int]) -> Tensor:
        """Two inputs of this shape: zeros, and indices that were seen."""
        return torch.zeros(2, *shape)

    def unpack(self, packed: Tensor) -> Any:
        """The inputs in the user's form."""
        return packed

    def call(self, packed: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of the model: a tuple by position, a dict by name, one tensor first."""
        return (packed,), {}

    def of_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None) -> Any:
        """The inputs among the arguments of a call like the model's, the first of which has a name.

        Several may be given as one argument, too.
        """
        if args:
            return args[0]
        if name in kwargs:
            return kwargs[name]
        raise ArgumentTypeError(
            "`x`, the input, must be the first positional argument"
            + (f" or the keyword '{name}'" if name else "")
            + f"; got keywords {sorted(kwargs)}. For a model called otherwise distill "
            "as_teacher(source, inputs=lambda *args, **kwargs: ...), which picks the input."
        )

    def named(self, names: Sequence[str]) -> Form:
        """The same inputs by position, whose names in a call are known now."""
        return self

    def describe(self) -> dict[str, Any]:
        """As plain values, for a file."""
        return {"kind": self.kind, "parts": [part.describe() for part in self.parts]}

    @staticmethod
    def from_config(config: dict[str, Any]) -> Form:
        """From :meth:`describe`.

        Raises:
            KeyError, TypeError, ValueError: not what it writes.
        """
        kind, parts = config["kind"], tuple(map(Part.from_config, config["parts"]))
        names = {part.name for part in parts}
        if kind not in KINDS or len(names) < len(parts):
            raise ValueError(f"{kind!r:.50} of {len(parts)} inputs is no form")
        if kind == "plain" and (not parts or (len(parts) == 1 and parts[0].source)):
            return Form(kind, parts) if parts else PLAIN
        if kind == "plain" or not parts or (kind == "tensor" and len(parts) > 1):
            raise ValueError(f"{kind!r} has another number of parts than {len(parts)}")
        form = Columns(kind, parts)
        masks = [p.key for p in parts if p.source and p.source[0].kind == "missing"]
        if not set(masks) <= {p.key for p in parts if p.source and p.source[0].fill is not None}:
            raise ValueError("a column that says what is missing has no value beside it")
        return form

    @property
    def advice(self) -> str:
        """What to do where a model does not take inputs of this form."""
        return ""

    def __str__(self) -> str:
        return "one tensor"


#: One floating tensor ``(N, ...)``, taken as it is.
PLAIN = Form()


@dataclass(frozen=True)
class Columns(Form):
    """Several inputs side by side in one floating tensor ``(N, D)``.

    Indices are whole numbers in columns of their own.

    Attributes:
        kind: What the user gives: one tensor, a tuple or a dict.
        parts: In order.
    """

    @property
    def width(self) -> int:
        """D."""
        return sum(part.columns for part in self.parts)

    def fits(self, shape: Sequence[int]) -> bool:
        return tuple(shape) == (self.width,)

    @property
    def dtype(self) -> torch.dtype:
        floating = (getattr(torch, part.dtype) for part in self.parts if part.values is None)
        return _exact_dtype(
            floating, max((v for p in self.parts for v in p.values or ()), default=0)
        )

    @property
    def indices(self) -> list[tuple[int, tuple[int, ...]]]:
        found, start = [], 0
        for part in self.parts:
            if part.values is not None:
                found += [(column, part.values) for column in range(start, start + part.columns)]
            start += part.columns
        return found

    def _read(self, x: object, name: str) -> Any:
        if _are_inputs(x):
            x = self.of_form(x, name)
        packed = isinstance(x, Tensor) and x.is_floating_point() and self.fits(x.shape[1:])
        return x if packed else self._packed(x, name)

    def _packed(self, x: object, name: str) -> Tensor:
        values = self._in_order(x, name)
        rows = len(values[0])
        columns: list[Tensor] = []
        for index, (part, value) in enumerate(zip(self.parts, values, strict=True)):
            own = self._own_name(name, index)
            check_rows_of(own, value, rows)
            part.check(own, value)
            columns.append(value.reshape(rows, part.columns))
        return self.join(columns, _packed_dtype(columns))

    def check_seen(self, packed: Tensor, name: str = "x") -> Tensor:
        for index, (part, columns) in enumerate(self._split(packed)):
            part.check_seen(self._own_name(name, index), columns)
        return packed

    def seeing(self, values: Iterable[Iterable[float]]) -> Form:
        columns = iter(values)
        parts = (
            part
            if part.values is None
            else replace(part, values=ordered(chain(part.values, *islice(columns, part.columns))))
            for part in self.parts
        )
        return replace(self, parts=tuple(parts))

    def cast(self, packed: Tensor) -> Tensor:
        return packed.to(self.dtype)

    def join(self, values: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        parts = zip(self.parts, values, strict=True)
        return torch.cat([value.reshape(-1, part.columns).to(dtype) for part, value in parts], 1)

    def named_parts(self, packed: Tensor) -> dict[str, Tensor]:
        return {part.name: part.read(columns) for part, columns in self._split(packed)}

    def shifted(self, packed: Tensor, by: Tensor) -> Tensor:
        held = [column for column, _ in self.indices]
        return packed + by.index_fill(1, torch.tensor(held, dtype=torch.long), 0.0)

    def example(self, shape: Sequence[int] = ()) -> Tensor:
        row = [
            part.values[0] if part.values else 0 for part in self.parts for _ in range(part.columns)
        ]
        return torch.tensor([row, row], dtype=torch.float32)

    def unpack(self, packed: Tensor) -> Any:
        return self._formed(self.named_parts(packed))

    def call(self, packed: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        values = self.unpack(packed)
        if isinstance(values, dict):
            return (), values
        return (values if isinstance(values, tuple) else (values,)), {}

    def of_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None) -> Any:
        if self.kind == "tensor":
            return super().of_call(args, kwargs, name)
        whole = (tuple, list) if self.kind == "tuple" else Mapping
        if args and (isinstance(args[0], whole) or is_table(args[0]) or _are_inputs(args[0])):
            return args[0]
        names = [part.name for part in self.parts]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        missing = [name for name in names if name not in given]
        if missing:
            raise TypeError(
                f"the inputs must be {self}, in one argument, by position or by name; "
                f"missing are {missing}."
            )
        return self._formed({name: given[name] for name in names})

    def named(self, names: Sequence[str]) -> Form:
        if self.kind == "dict" or len(names) < len(self.parts):
            return self
        parts = (replace(part, name=name) for part, name in zip(self.parts, names, strict=False))
        return replace(self, parts=tuple(parts))

    def _formed(self, values: Mapping[str, object]) -> Any:
        """Parts by name, in order, in the user's form."""
        if self.kind == "dict":
            return values
        return next(iter(values.values())) if self.kind == "tensor" else tuple(values.values())

    def _split(self, packed: Tensor) -> Iterator[tuple[Part, Tensor]]:
        columns = packed.split([part.columns for part in self.parts], 1)
        return zip(self.parts, columns, strict=True)

    def _own_name(self, name: str, index: int) -> str:
        return own_name(name, index if self.kind == "tuple" else self.parts[index].name, self.kind)

    def _in_order(self, x: object, name: str) -> list[Tensor]:
        given, kind = leaves(x, name), kind_of(x)
        by_part = [part.name for part in self.parts]
        wanted = list(dict.fromkeys(part.key for part in self.parts))
        if is_table(x) and self.kind == "dict":
            check_names(name, wanted, list(given))
        elif all(isinstance(value, Tensor) for value in given.values()) and len(given) > 1:
            wanted = by_part  # as the model is given them
        if kind != self.kind or (
            sorted(given) != sorted(wanted) if kind == "dict" else len(given) != len(wanted)
        ):
            found = {key: tuple(value.shape[1:]) for key, value in given.items()}
            raise ArgumentError(
                f"`{name}` must be {self}; got {written(found, kind)}. Pass inputs of that form."
            )
        if kind != "dict":
            given = dict(zip(wanted, given.values(), strict=True))
        return [
            part.tensor(self._own_name(name, index), given.get(part.name, given.get(part.key)))
            for index, part in enumerate(self.parts)
        ]

    @property
    def advice(self) -> str:
        return (
            f"It was given {self}. Numbers that are whole are taken for indices: .float() "
            "makes them numbers; x[:, None] makes a column of a tensor (N,). Every index, of a new "
            "group too, needs an entry in the model."
        )

    def __str__(self) -> str:
        if all(part.source for part in self.parts) and self.kind == "dict":
            return f"a table with the columns {list(dict.fromkeys(p.key for p in self.parts))}"
        return written({part.name: part.shape for part in self.parts}, self.kind)


def _packed_dtype(columns: list[Tensor]) -> torch.dtype:
    """The widest floating dtype, in which every index is exact."""
    floating = [each.dtype for each in columns if each.is_floating_point()]
    most = (int(c.max()) for c in columns if not c.is_floating_point() and c.numel())
    return _exact_dtype(floating, max(most, default=0))


def _exact_dtype(floating: Iterable[torch.dtype], largest: int) -> torch.dtype:
    """The widest of these and float32, or float64 for an index that float32 would round."""
    widest = reduce(torch.promote_types, floating, torch.float32)
    return torch.float64 if largest >= 2**24 else widest


def _are_inputs(x: object) -> bool:
    """Whether they have a form."""
    return isinstance(getattr(x, "form", None), Form)


class Unpacked(nn.Module):
    """A module that takes several inputs, as one that takes them in one tensor ``(N, D)``."""

    def __init__(self, module: nn.Module, form: Form) -> None:
        super().__init__()
        self.module, self.form = module, form

    def forward(self, x: Tensor) -> Any:
        """What the module says of inputs ``(N, D)``."""
        args, kwargs = self.form.call(x)
        return self.module(*args, **kwargs)
