"""Several inputs side by side in one floating tensor, and the way back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from itertools import chain, islice
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from pyro_opu.checks import check_inputs, check_tensor
from pyro_opu.packing.parts import Part, check_rows_of, ordered

__all__ = ["Packing", "Structured", "Unpacked", "packed", "packing_of"]

#: Inputs as a user gives them: one tensor, or several by position or by name.
Structured = Tensor | tuple[Tensor, ...] | list[Tensor] | dict[str, Tensor]
Form = Literal["tensor", "tuple", "dict"]
FORMS = get_args(Form)


@dataclass(frozen=True)
class Packing:
    """How several inputs with N rows each stand side by side in one floating tensor ``(N, D)``.

    Everything between a user's call and the model or the student works on that tensor: transfer
    policies, pools, judging, checkpoints. Indices are whole numbers in columns of their own.

    Attributes:
        form: What the user gives: one tensor, a tuple or a dict.
        parts: In order.
    """

    form: Form
    parts: tuple[Part, ...]

    @property
    def columns(self) -> int:
        """D."""
        return sum(part.columns for part in self.parts)

    @property
    def dtype(self) -> torch.dtype:
        """That of the inputs seen first, packed."""
        floating = (getattr(torch, part.dtype) for part in self.parts if part.values is None)
        return _exact_dtype(
            floating, max((v for p in self.parts for v in p.values or ()), default=0)
        )

    @property
    def indices(self) -> list[tuple[int, tuple[int, ...]]]:
        """Columns that hold an index, and the values seen there."""
        found, start = [], 0
        for part in self.parts:
            if part.values is not None:
                found += [(column, part.values) for column in range(start, start + part.columns)]
            start += part.columns
        return found

    def pack(self, x: Any, name: str = "x", *, check_seen: bool = True) -> Tensor:
        """One tensor ``(N, D)`` of checked inputs; indices that were not seen are refused if asked.

        Raises:
            TypeError, ValueError: not the parts, shapes or kinds of numbers that were seen first;
                an index that was not; rows that differ in number; numbers that are not finite.
        """
        values = self._in_order(x, name)
        rows = len(values[0])
        columns: list[Tensor] = []
        for index, (part, value) in enumerate(zip(self.parts, values, strict=True)):
            own = self._own_name(name, index)
            check_rows_of(own, value, rows)
            part.check(own, value)
            columns.append(value.reshape(rows, part.columns))
        packed = self.join(columns, _packed_dtype(columns))
        return self.check_seen(packed, name) if check_seen else packed

    def packed(self, x: Any, name: str = "x", *, check_seen: bool = False) -> Tensor:
        """:meth:`pack`, of inputs that may be packed already."""
        if isinstance(x, Tensor) and x.is_floating_point() and x.shape[1:] == (self.columns,):
            x = check_inputs(x, name)
            return self.check_seen(x, name) if check_seen else x
        return self.pack(x, name, check_seen=check_seen)

    def check_seen(self, packed: Tensor, name: str = "x") -> Tensor:
        """Packed inputs ``(N, D)``, refused where an index among them was not seen."""
        for index, (part, columns) in enumerate(self._split(packed)):
            part.check_seen(self._own_name(name, index), columns)
        return packed

    def seeing(self, values: Iterable[Iterable[float]]) -> Packing:
        """The same form, where these values were seen too, by the columns of :attr:`indices`."""
        columns = iter(values)
        parts = (
            part
            if part.values is None
            else replace(part, values=ordered(chain(part.values, *islice(columns, part.columns))))
            for part in self.parts
        )
        return replace(self, parts=tuple(parts))

    def join(self, values: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Parts in order as one tensor, unchecked."""
        parts = zip(self.parts, values, strict=True)
        return torch.cat([value.reshape(-1, part.columns).to(dtype) for part, value in parts], 1)

    def parts_of(self, packed: Tensor) -> list[Tensor]:
        """The parts in order, from ``(N, D)``."""
        return [part.read(columns) for part, columns in self._split(packed)]

    def named_parts(self, packed: Tensor) -> dict[str, Tensor]:
        """The parts by name, from ``(N, D)``."""
        names = [part.name for part in self.parts]
        return dict(zip(names, self.parts_of(packed), strict=True))

    def example(self) -> Tensor:
        """Two packed inputs: zeros, and indices that were seen."""
        row = [
            part.values[0] if part.values else 0 for part in self.parts for _ in range(part.columns)
        ]
        return torch.tensor([row, row], dtype=torch.float32)

    def unpack(self, packed: Tensor) -> Any:
        """The inputs in the user's form, from ``(N, D)``."""
        values = self.parts_of(packed)
        if self.form == "dict":
            return {part.name: value for part, value in zip(self.parts, values, strict=True)}
        return values[0] if self.form == "tensor" else tuple(values)

    def call(self, packed: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of the model: a tuple by position, a dict by name, one tensor first."""
        values = self.unpack(packed)
        if isinstance(values, dict):
            return (), values
        return (values if isinstance(values, tuple) else (values,)), {}

    def of_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The inputs among the arguments of a call like the model's, or given as one argument."""
        names = [part.name for part in self.parts]
        if self.form == "tuple" and args and isinstance(args[0], (tuple, list)):
            return args[0]
        if self.form == "dict" and args and isinstance(args[0], Mapping):
            return args[0]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        missing = [name for name in names if name not in given]
        if missing:
            raise TypeError(
                f"the inputs must be {self._text()}, in one argument, by position or by name; "
                f"missing are {missing}."
            )
        values = [given[name] for name in names]
        if self.form == "dict":
            return dict(zip(names, values, strict=True))
        return values[0] if self.form == "tensor" else tuple(values)

    def named(self, names: Sequence[str]) -> Packing:
        """The same inputs by position, whose names in a call are known now."""
        if self.form == "dict" or len(names) < len(self.parts):
            return self
        parts = (replace(part, name=name) for part, name in zip(self.parts, names, strict=False))
        return replace(self, parts=tuple(parts))

    def _split(self, packed: Tensor) -> Iterator[tuple[Part, Tensor]]:
        columns = packed.split([part.columns for part in self.parts], 1)
        return zip(self.parts, columns, strict=True)

    def _own_name(self, name: str, index: int) -> str:
        return _own_name(name, index if self.form == "tuple" else self.parts[index].name, self.form)

    def _in_order(self, x: Any, name: str) -> list[Tensor]:
        given = _by_name(x, name)
        wanted = [part.name for part in self.parts]
        form = _form(x)
        if form != self.form or (
            sorted(given) != sorted(wanted) if form == "dict" else len(given) != len(wanted)
        ):
            raise ValueError(
                f"`{name}` must be {self._text()}; got {_described(given, form)}. Pass the inputs "
                "that the student was made for."
            )
        return [given[key] for key in wanted] if form == "dict" else list(given.values())

    def describe(self) -> dict[str, Any]:
        """As plain values, for a file."""
        return {"form": self.form, "parts": [asdict(part) for part in self.parts]}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Packing:
        """From :meth:`describe`.

        Raises:
            KeyError, TypeError, ValueError: not what it writes.
        """
        form, parts = config["form"], tuple(map(Part.from_config, config["parts"]))
        names = {part.name for part in parts}
        if form not in FORMS or not parts or len(names) < len(parts):
            raise ValueError(f"{form!r:.50} of {len(parts)} inputs is no form")
        if form == "tensor" and len(parts) > 1:
            raise ValueError("one tensor has one part")
        return cls(form, parts)

    @property
    def advice(self) -> str:
        """What to do where a model does not take inputs of this form."""
        return (
            f"It was given {self._text()}. Numbers that are whole are taken for indices: .float() "
            "makes them numbers; x[:, None] makes a column of a tensor (N,). Every index, of a new "
            "group too, needs an entry in the model."
        )

    def _text(self) -> str:
        shapes = {part.name: part.shape for part in self.parts}
        return _written(shapes, self.form)


def packing_of(x: Any, name: str = "x") -> Packing | None:
    """The packing of inputs like these; ``None`` of one floating tensor ``(N, ...)``, taken as is.

    Raises:
        TypeError: neither a tensor nor a tuple, list or dict of them; an index below zero, or in
            fewer than 32 bits.
        ValueError: no tensor; rows that differ in number; numbers that are not finite.
    """
    if isinstance(x, Tensor) and x.is_floating_point() and x.ndim != 1:
        return None
    form, given = _form(x), _by_name(x, name)
    if not given:
        raise ValueError(f"`{name}` must hold at least one tensor; got none. Pass the inputs.")
    rows = len(next(iter(given.values())))
    parts = []
    for key, value in given.items():
        own = _own_name(name, int(key) if form == "tuple" else key, form)
        check_rows_of(own, value, rows)
        parts.append(Part.of(key, own, value))
    return Packing(form, tuple(parts))


def packed(x: Any, name: str = "x") -> tuple[Tensor, Packing | None]:
    """Inputs as one tensor, and how they were packed; one floating tensor stays as it is."""
    packing = packing_of(x, name)
    return (x, None) if packing is None else (packing.pack(x, name), packing)


def _by_name(x: Any, name: str) -> dict[str, Tensor]:
    """Tensors by keyword, or by position."""
    if isinstance(x, Tensor):
        return {"x": x}
    pairs: Iterable[tuple[Any, Any]]
    if isinstance(x, Mapping):
        pairs = x.items()
    elif isinstance(x, (tuple, list)) and (not x or isinstance(x[0], Tensor)):
        pairs = enumerate(x)
    else:
        kind = type(x).__name__
        raise TypeError(
            f"`{name}` must be a torch.Tensor, or a tuple or dict of them; got {kind}. Convert it "
            f"with torch.as_tensor({name}, dtype=torch.float32)."
        )
    return {str(key): check_tensor(f"{name}[{key!r}]", value) for key, value in pairs}


def _form(x: Any) -> Form:
    if isinstance(x, Tensor):
        return "tensor"
    return "dict" if isinstance(x, Mapping) else "tuple"


def _own_name(name: str, key: int | str, form: Form) -> str:
    return name if form == "tensor" else f"{name}[{key!r}]"


def _packed_dtype(columns: list[Tensor]) -> torch.dtype:
    """The widest floating dtype, in which every index is exact."""
    floating = [each.dtype for each in columns if each.is_floating_point()]
    most = (int(c.max()) for c in columns if not c.is_floating_point() and c.numel())
    return _exact_dtype(floating, max(most, default=0))


def _exact_dtype(floating: Iterable[torch.dtype], largest: int) -> torch.dtype:
    """The widest of these and float32, or float64 for an index that float32 would round."""
    widest = reduce(torch.promote_types, floating, torch.float32)
    return torch.float64 if largest >= 2**24 else widest


def _described(given: dict[str, Tensor], form: Form) -> str:
    return _written({name: tuple(value.shape[1:]) for name, value in given.items()}, form)


def _written(shapes: dict[str, tuple[int, ...]], form: Form) -> str:
    """Shapes of inputs in words."""
    text = {k: f"(N, {', '.join(map(str, v))})" if v else "(N,)" for k, v in shapes.items()}
    if form == "tensor":
        return f"a tensor {next(iter(text.values()))}"
    if form == "tuple":
        return f"a tuple of tensors {', '.join(text.values())}"
    return f"a dict of tensors {', '.join(f'{name} {shape}' for name, shape in text.items())}"


class Unpacked(nn.Module):
    """A module that takes several inputs, as one that takes them packed ``(N, D)``."""

    def __init__(self, module: nn.Module, packing: Packing) -> None:
        super().__init__()
        self.module, self.packing = module, packing

    def forward(self, x: Tensor) -> Any:
        """What the module says of packed inputs ``(N, D)``."""
        args, kwargs = self.packing.call(x)
        return self.module(*args, **kwargs)
