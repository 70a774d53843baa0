"""Networks under masks that all rows share, without their dropped units."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map

from pyro_opu.teachers.shared import Call, Function, SharedMasks

__all__ = ["Thinned"]

#: Functions of one number each, which may be computed for some units of a layer alone.
_POINTWISE = {
    *(F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.gelu, F.silu, F.mish, F.softplus),
    *(F.hardtanh, F.hardswish, F.tanh, F.sigmoid),
    *(torch.relu, torch.tanh, torch.sigmoid, Tensor.relu, Tensor.tanh, Tensor.sigmoid),
}
#: Methods that ask for no number of a layer, unless they give a tensor, as the property `T` does.
_SHAPES = {"dim", "ndimension", "size", "numel", "__len__", "__get__"}

Columns = Tensor | None


@dataclass(frozen=True)
class _Layer:
    """A layer's units ``(N, F)``, of which only those are computed that are read.

    Attributes:
        stands_for: What the network is given in its place, of its shape and without memory.
        units: The units of these columns, all for ``None``.
        kept: The columns that are not zero; ``None`` is all.
    """

    stands_for: Tensor
    units: Callable[[Columns], Tensor]
    kept: Columns = None

    def whole(self) -> Tensor:
        """All units, with zeros where they were dropped."""
        units = self.units(self.kept)
        if self.kept is None:
            return units
        whole = units.new_zeros(self.stands_for.shape)
        whole[:, self.kept] = units
        return whole


class Thinned(SharedMasks):
    """Runs a network under the masks of one draw after another, and leaves out dropped units.

    Under one draw's masks the dropped units of a layer are zero: the layer before need not compute
    them, and the one after need not read them. With a rate of one half a product between two such
    layers takes a quarter of its operations. What comes before the first dropout is computed once,
    changes in place too, and given to later draws: part by part within :meth:`skipping`, else call
    by call. Anything but products, functions of
    one number and dropout is given whole layers.

    Args:
        fixed: The inputs and weights, the same for all draws.
    """

    def __init__(self, fixed: Iterable[Tensor]) -> None:
        super().__init__()
        self._fixed = {id(tensor): tensor for tensor in fixed}
        self._results: dict[Hashable, tuple[Any, list[Tensor]]] = {}
        self._changes: dict[int, int] = {}  # of this draw, in place
        # Calls before the first mask, of the first draw: what they gave, and the changes by then.
        self._calls: list[tuple[Function, Any, dict[int, int]]] = []
        self._place: int | None = 0  # among them; None after a mask
        self._known = False
        # Parts that ended before the first mask, by where they began: where they ended, and what
        # they gave, with the changes by then.
        self._ended: dict[tuple[Function, int], tuple[int, Any, dict[int, int]]] = {}
        self._turned: dict[int, Tensor] = {}
        self._layers: dict[int, _Layer] = {}

    @contextmanager
    def skipping(self, network: nn.Module) -> Iterator[None]:
        """Inside, parts that end before the first mask run under the first draw alone."""
        parts = [part for part in network.modules() if "forward" not in vars(part)]
        parts = [part for part in parts if not isinstance(part, torch.jit.ScriptModule)]
        for part in parts:
            vars(part)["forward"] = partial(self._part, part.forward)
        try:
            yield
        finally:
            for part in parts:
                del vars(part)["forward"]

    def _part(self, forward: Function, *args: object, **kwargs: object) -> Any:
        begun = self._place
        if begun is not None and self._known and (forward, begun) in self._ended:
            self._place, given, self._changes = self._ended[forward, begun]
            return given
        given = forward(*args, **kwargs)
        if not (begun is None or self._known or begun == self._place):
            plain = given if isinstance(given, tuple) else (given,)
            if all(isinstance(each, Tensor) for each in plain):  # nobody adds to them
                self._ended[forward, begun] = len(self._calls), given, self._changes
        return given

    def run(
        self, network: Callable[[Tensor], Tensor], x: Tensor, given: Callable[[Call], Tensor]
    ) -> Tensor:
        """What the network answers where its random calls are given what they draw."""
        self.given = given
        self._layers.clear()
        self._changes, self._place = {}, 0
        with self:
            answer = network(x)
        layer = self._layers.get(id(answer))
        return answer if layer is None else layer.whole()

    def _other(self, func: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        place = self._place
        if place is None:
            return self._apart(func, args, kwargs)
        if not self._known:
            self._calls.append((func, self._apart(func, args, kwargs), self._changes))
        elif place == len(self._calls) or self._calls[place][0] != func:
            self._place = None
            return self._apart(func, args, kwargs)
        self._place = place + 1
        _, result, self._changes = self._calls[place]
        return result

    def _apart(self, func: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        flat = not kwargs and not any(isinstance(arg, (list, tuple, dict)) for arg in args)
        leaves = args if flat else tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if not any(id(tensor) in self._layers for tensor in tensors):
            return self._once(func, args, kwargs, tensors)
        if args and id(args[0]) in self._layers:
            if func in _POINTWISE and len(tensors) == 1:
                return self._pointwise(func, *args, **kwargs)
            if func is F.linear:
                return self._linear(*args, **kwargs)
        if getattr(func, "__name__", "") in _SHAPES:
            found = func(*args, **kwargs)
            if not isinstance(found, Tensor):
                return found

        return func(*tree_map(self._whole, args), **tree_map(self._whole, kwargs))

    def _whole(self, value: object) -> Any:
        layer = self._layers.get(id(value))
        return value if layer is None else layer.whole()

    def _sampled(
        self, name: str, func: Function, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Any:
        if name != "_dropout":
            args, kwargs = tree_map(self._whole, args), tree_map(self._whole, kwargs)
        return super()._sampled(name, func, args, kwargs)

    def _draw(self, law: str, shape: Iterable[int], like: Tensor, p: float = 0.0) -> Tensor:
        self._place, self._known = None, True
        return super()._draw(law, shape, like, p)

    def _masked(self, x: Tensor, keep: Tensor, p: float, alpha: bool) -> Tensor:
        before = self._layers.get(id(x))
        if x.ndim != 2 or keep.shape != (1, x.shape[1]) or alpha or p == 1:
            return super()._masked(x if before is None else before.whole(), keep, p, alpha)
        units = self._columns_of(x) if before is None else before.units
        kept = keep[0].nonzero().squeeze(1)
        if before is not None and before.kept is not None:
            kept = before.kept[keep[0][before.kept]]
        return self._later(x, lambda columns: units(columns) / (1 - p), kept)

    def _columns_of(self, x: Tensor) -> Callable[[Columns], Tensor]:
        """The units of a layer that is there; its columns are rows of a copy, which is quick."""
        turned = self._turned.get(id(x))
        if turned is None:
            turned = x.mT.contiguous()
            if id(x) in self._fixed:
                self._turned[id(x)] = turned
        return lambda columns: x if columns is None else turned.index_select(0, columns).mT

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        layer = self._layers[id(x)]
        read = layer.units(layer.kept)

        def units(columns: Columns) -> Tensor:
            rows, own = weight, bias
            if columns is not None:
                rows = weight.index_select(0, columns)
                own = None if bias is None else bias[columns]
            if layer.kept is not None:
                rows = rows.index_select(1, layer.kept)
            return F.linear(read, rows, own)

        return self._later(x.new_empty(()).expand(len(x), len(weight)), units)

    def _pointwise(self, func: Function, x: Tensor, *args: object, **kwargs: object) -> Any:
        layer = self._layers[id(x)]
        if layer.kept is not None:  # zero need not stay zero
            return func(layer.whole(), *args, **kwargs)
        return self._later(x, lambda columns: func(layer.units(columns), *args, **kwargs))

    def _later(self, like: Tensor, units: Callable[[Columns], Tensor], kept: Columns = None) -> Any:
        stands_for = like.new_empty(()).expand(like.shape)
        self._layers[id(stands_for)] = _Layer(stands_for, units, kept)
        return stands_for

    def _once(
        self,
        func: Function,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        tensors: list[Tensor],
    ) -> Any:
        """Call the function, or give what it gave before where it is the same for all draws."""
        if not tensors or not all(id(tensor) in self._fixed for tensor in tensors):
            return func(*args, **kwargs)
        key = func, str([self._named(leaf) for leaf in tree_leaves((args, kwargs))])
        if key not in self._results:
            before = [tensor._version for tensor in tensors]
            result = func(*args, **kwargs)
            if isinstance(result, Tensor):
                self._fixed[id(result)] = result
            changed = [t for t, was in zip(tensors, before, strict=True) if t._version != was]
            if not isinstance(result, Tensor) and not changed:
                return result
            self._results[key] = result, changed
        result, changed = self._results[key]
        more = {id(tensor): self._changes.get(id(tensor), 0) + 1 for tensor in changed}
        self._changes = {**self._changes, **more} if more else self._changes
        return result

    def _named(self, value: object) -> Any:
        """A tensor by what it is and how often this draw has changed it in place."""
        return (id(value), self._changes.get(id(value), 0)) if isinstance(value, Tensor) else value
