"""What an evaluation costs: operations that take time, and the widest tensor that it stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_COUNTING: ContextVar[bool] = ContextVar("counting operations", default=False)


@contextmanager
def counted() -> Iterator[None]:
    """Inside, :func:`metered` counts operations too, for which torch loads slowly."""
    token = _COUNTING.set(True)
    try:
        yield
    finally:
        _COUNTING.reset(token)


@dataclass
class Meter:
    """Entries that every operation stored, in order, and their operations if counted.

    A view stores none, however large it looks: an axis may be repeated without being held.
    """

    sizes: list[int] = field(default_factory=list)
    operations: int | None = None


@contextmanager
def metered() -> Iterator[Meter]:
    """The meter of what is computed inside."""
    meter = Meter()
    with ExitStack() as stack:
        counter = stack.enter_context(_counter()) if _COUNTING.get() else None
        stack.enter_context(_Sizes(meter.sizes))
        yield meter
    if counter is not None:
        meter.operations = int(counter.get_total_flops())


@dataclass(frozen=True)
class Cost:
    """What one draw costs at one input of a shape.

    Attributes:
        shape: The input's shape.
        width: Entries of the widest tensor.
        alone: Entries of the widest tensor where one draw is evaluated by itself.
        together: Whether it is that of one draw among many.
        operations: Floating-point operations, per input of eight; ``None``: not counted. Where
            draws are evaluated ``together``, those of one draw more.
        of_two: Those at two inputs.
    """

    shape: torch.Size
    width: int
    operations: int | None
    of_two: int | None = None
    alone: int = 1
    together: bool = False

    @classmethod
    def of(cls, shape: torch.Size, two: Meter, three: Meter, outputs: int) -> Cost:
        """From what grew between two rows and three."""
        if len(two.sizes) == len(three.sizes):
            grown = max(b - a for a, b in zip(two.sizes, three.sizes, strict=True))
        else:
            grown = max(three.sizes) // 3
        operations = None
        if two.operations is not None and three.operations is not None:
            operations = (two.operations + 6 * (three.operations - two.operations)) // 8
        width = max(outputs, grown)
        return cls(shape, width, operations, two.operations, width)

    def under(self, draws: int, two: Meter, three: Meter) -> Cost:
        """What one draw more costs where many are evaluated together, and its share of memory.

        What does not depend on the draw, such as features of a posterior over the last layer, is
        then computed once for all of them. Fused operations of one draw are counted only here.

        Args:
            draws: How many, at least 2.
            two: Meter of all evaluations at two inputs.
            three: And at three.
        """
        # Three may end in a comparison with the loop.
        grown = max(b - a for a, b in zip(two.sizes, three.sizes, strict=False))
        width = min(self.width, max(1, -(-grown // draws)))
        operations = self.operations
        if operations is not None and self.of_two and two.operations is not None:
            more = max(0, two.operations - self.of_two)
            operations = -(-more * operations // ((draws - 1) * self.of_two))
        return replace(self, width=width, operations=operations, together=True)

    def serves(self, shape: torch.Size) -> bool:
        """Whether this is the cost at inputs of a shape, with operations if they are counted."""
        return self.shape == shape and (self.operations is not None or not _COUNTING.get())


class _Sizes(TorchDispatchMode):
    """Notes the most entries that a tensor which is made has in memory of its own."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.sizes = sizes

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        there = {_memory(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        sizes = (leaf.numel() for leaf in made if _memory(leaf) not in there)
        self.sizes.append(max(sizes, default=0))
        return result


def _memory(tensor: Tensor) -> Any:
    """What is the same for two tensors where one is a view of the other."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # sparse, or another tensor without storage
        return id(tensor)


def _counter() -> Any:
    """Counter of operations, where each entry of a matrix or vector takes many.

    torch counts products and convolutions; solutions of triangular systems (n^2 for each right-hand
    side) and Cholesky factors (n^3 / 3), most of what a Gaussian process costs, are counted here.
    What takes one operation per number, such as an activation, counts nothing.
    """
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    def product(matrix: torch.Size, *_: object, **__: object) -> int:
        return 2 * prod(matrix)

    def triangular(
        matrix: torch.Size, rest: torch.Size, *, out_shape: Sequence[int], **_: object
    ) -> int:
        return int(matrix[-1] * prod(out_shape))

    def from_factor(
        rest: object, factor: torch.Size, *_: object, out_shape: Sequence[int], **__: object
    ) -> int:
        return int(2 * factor[-1] * prod(out_shape))

    def cholesky(matrix: torch.Size, *_: object, **__: object) -> int:
        return prod(matrix) * matrix[-1] // 3

    aten = torch.ops.aten
    more = {
        aten.mv: product,
        aten.dot: product,
        aten.linalg_solve_triangular: triangular,
        aten.cholesky_solve: from_factor,
        aten.linalg_cholesky_ex: cholesky,
    }
    return FlopCounterMode(display=False, custom_mapping=more)
