"""Functions of NumPy arrays as functions of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from pyro_opu.checks import check_callable, positive_int

__all__ = ["ArrayFunction", "AnyFunction", "as_arrays"]

#: Rows that a function is asked at together.
ROWS = 1024


class ArrayFunction:
    """A function of NumPy arrays, called with tensors.

    :func:`~pyro_opu.as_teacher` and :func:`~pyro_opu.distill` find out by themselves that a
    function is one of arrays; this says it, and lets it run on several threads. Rows are asked at
    block by block, unless the function draws afresh: it is given ``num_draws``, or says two things
    of the same rows.

    Args:
        function: Arrays ``(N, ...)`` to draws ``(S, N, C)``, or of a real y to ``(loc, scale)``,
            ``(S, N)`` each; with a parameter ``num_draws`` where it draws afresh.
        rows: Rows of a block.
        threads: Blocks at once. It helps a function that spends its time in NumPy, Numba or other
            compiled code, which release Python's lock; it must be safe to call so.

    Example:
        >>> import numpy as np
        >>> from pyro_opu import as_teacher
        >>> weights = np.linspace(-1, 1, 50)[:, None]
        >>> def probs(x):
        ...     p = 1 / (1 + np.exp(-weights * x[:, 0]))
        ...     return np.stack([1 - p, p], -1)
        >>> as_teacher(ArrayFunction(probs, threads=2)).probs(torch.zeros(3, 1)).shape
        torch.Size([50, 3, 2])
    """

    def __init__(
        self, function: Callable[..., object], *, rows: int = ROWS, threads: int = 1
    ) -> None:
        self.function = check_callable("function", function, "arrays -> draws (S, N, C)")
        self.rows, self.threads = positive_int("rows", rows), positive_int("threads", threads)
        self._repeats: bool | None = None  # unknown before it is asked at many rows
        self.__wrapped__ = function

    def __call__(self, *args: object, **kwargs: object) -> Any:
        like = _first_tensor(args, kwargs)
        answer = self._answer(as_arrays(args), as_arrays(kwargs), len(like))
        return as_tensors(answer, like)

    def _answer(self, args: tuple[Any, ...], kwargs: Mapping[str, object], rows: int) -> Any:
        if rows <= self.rows or kwargs or not self._same_twice(args):
            return self.function(*args, **kwargs)
        parts = [
            tuple(each[start : start + self.rows] for each in args)
            for start in range(0, rows, self.rows)
        ]
        first = self.function(*parts[0])
        if not all(each.ndim > 1 and each.shape[1] == self.rows for each in outputs_of(first)[:1]):
            return first  # no draws at rows: the teacher says so
        rest: Iterable[Any] = map(self.function, *zip(*parts[1:], strict=True))
        if self.threads > 1:
            with ThreadPoolExecutor(self.threads) as pool:
                rest = list(pool.map(self.function, *zip(*parts[1:], strict=True)))
        answers = [np.broadcast_arrays(*outputs_of(each)) for each in (first, *rest)]
        whole = tuple(np.concatenate(each, 1) for each in zip(*answers, strict=True))
        return whole if isinstance(first, tuple) else whole[0]

    def _same_twice(self, args: tuple[Any, ...]) -> bool:
        if self._repeats is None:
            few = [each[:2] for each in args]
            pairs = zip(*(outputs_of(self.function(*few)) for _ in "ab"), strict=True)
            self._repeats = all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
        return self._repeats


class AnyFunction:
    """A function of tensors or of NumPy arrays; its first answer says which.

    It is one of arrays if it returns arrays when it is given tensors, as much of NumPy does, or if
    it fails then and returns arrays when it is given arrays. Whatever returns a tensor stays a
    function of tensors, and what fails both ways fails as it did with tensors.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function
        #: Whether that is known.
        self.known = self.of_arrays
        self.__wrapped__ = function

    @property
    def of_arrays(self) -> bool:
        """Whether it is known to be one of arrays."""
        return isinstance(self.function, ArrayFunction)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if self.known:
            return self.function(*args, **kwargs)
        arrays = ArrayFunction(self.function)
        try:
            values = self.function(*args, **kwargs)
        except Exception:
            try:
                values = arrays(*args, **kwargs)
            except Exception:  # noqa: BLE001 - the first error is of the function as it was called
                values = None
            if not all(isinstance(each, Tensor) for each in outputs_of(values)):
                raise
            self.function = arrays
        else:
            if all(isinstance(each, np.ndarray) for each in outputs_of(values)):
                values = as_tensors(values, _first_tensor(args, kwargs))
                self.function = arrays
        self.known = True
        return values


def as_arrays(values: object) -> Any:
    """The same with arrays in place of tensors."""
    return tree_map_only(Tensor, lambda value: value.detach().cpu().numpy(), values)


def as_tensors(values: object, like: Tensor) -> Any:
    """An array or a tuple of them as tensors beside ``like``, floating ones in its dtype."""

    def tensor(value: object) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        found = torch.from_numpy(np.ascontiguousarray(value)).to(like.device)
        dtype = like.dtype if like.is_floating_point() else torch.float32
        return found.to(dtype) if found.is_floating_point() else found

    return tuple(map(tensor, values)) if isinstance(values, tuple) else tensor(values)


def _first_tensor(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Tensor:
    """The first of the inputs, whose rows and dtype are those of the answer."""
    return next(each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor))


def outputs_of(values: object) -> tuple[Any, ...]:
    return values if isinstance(values, tuple) else (values,)
