"""What a user gives as inputs: tensors, arrays, tables, or several of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

import numpy as np
from torch import Tensor

from pyro_opu.checks import ArgumentTypeError, check_tensor
from pyro_opu.inputs.columns import is_column, is_table, series_of


class Arrays(Protocol):
    """What NumPy reads as an array: an array, a data frame or series."""

    def __array__(self) -> np.ndarray: ...


#: Inputs as a user gives them: a tensor, an array, a data frame or series, or several of them by
#: position or by name.
Structured = Tensor | Arrays | Sequence[Tensor | Arrays] | Mapping[str, Tensor | Arrays]
Kind = Literal["plain", "tensor", "tuple", "dict"]
KINDS = get_args(Kind)


def leaves(x: object, name: str) -> dict[str, Any]:
    """Tensors, arrays and columns by keyword, or by position."""
    if _is_one(x):
        return {"x": x}
    if is_table(x):
        return series_of(x.to_pandas() if hasattr(x, "to_pandas") else x, name)
    pairs: Iterable[tuple[Any, Any]]
    if isinstance(x, Mapping):
        pairs = x.items()
    elif isinstance(x, (tuple, list)) and (not x or _is_one(x[0]) or is_table(x[0])):
        pairs = enumerate(x)
    else:
        kind = type(x).__name__
        raise ArgumentTypeError(
            f"`{name}` must be a torch.Tensor, an array or a data frame, or a tuple or dict of "
            f"them; got {kind}. Convert it with torch.as_tensor({name}, dtype=torch.float32)."
        )
    given = {str(key): value for key, value in pairs}
    for key, value in given.items():
        if not (is_column(value) or is_table(value)):
            check_tensor(f"{name}[{int(key) if isinstance(x, (tuple, list)) else key!r}]", value)
    return given


def _is_one(x: object) -> bool:
    return isinstance(x, Tensor) or is_column(x)


def kind_of(x: object) -> Kind:
    if _is_one(x):
        return "tensor"
    return "dict" if isinstance(x, Mapping) or is_table(x) else "tuple"


def own_name(name: str, key: int | str, kind: Kind) -> str:
    return name if kind == "tensor" else f"{name}[{key!r}]"


def written(shapes: dict[str, tuple[int, ...]], kind: Kind) -> str:
    """Shapes of inputs in words."""
    text = {k: f"(N, {', '.join(map(str, v))})" if v else "(N,)" for k, v in shapes.items()}
    if kind == "tensor":
        return f"a tensor {next(iter(text.values()))}"
    if kind == "tuple":
        return f"a tuple of tensors {', '.join(text.values())}"
    return f"a dict of tensors {', '.join(f'{name} {shape}' for name, shape in text.items())}"
