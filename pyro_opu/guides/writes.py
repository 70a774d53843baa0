"""A recorded graph without operations that write into their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

__all__ = ["Unrecorded", "without_writes"]

aten = torch.ops.aten


class Unrecorded(Exception):
    """What a model computes cannot be written as a list of known operations."""


def without_writes(found: fx.GraphModule, *inputs: Tensor) -> fx.GraphModule:
    """The same computation, in which ``relu_`` is ``relu`` and every tensor is written once.

    What is written into is another tensor from then on; so is all that shares its memory: what it
    is a view of, with the written part put in its place, and other views of that.

    Args:
        found: A graph of operations of ``torch.ops.aten``.
        inputs: Its inputs, by which it is seen what shares memory.

    Raises:
        Unrecorded: it writes in a way that has no such form.
    """
    if not any(_is_write(node) for node in found.graph.nodes):
        return found
    run = fx.Interpreter(found, garbage_collect_values=False)
    run.run(*(each.clone() for each in inputs))
    graph = _Graph(run.env)
    for node in found.graph.nodes:
        graph.add(node)
    return fx.GraphModule(found, graph.new)


class _Graph:
    """A graph under construction.

    Attributes:
        values: What every node of the old graph gave; tensors are as they were left at the end.
        new: The new graph.
        now: What stands in it for a node of the old one.
        same: The node that another one is, since it writes into it.
        views: What a node shares its memory with, in order.
    """

    def __init__(self, values: Mapping[fx.Node, Any]) -> None:
        self.values, self.new = values, fx.Graph()
        self.now: dict[fx.Node, fx.Node] = {}
        self.same: dict[fx.Node, fx.Node] = {}
        self.views: dict[fx.Node, fx.Node] = {}

    def add(self, node: fx.Node) -> None:
        """Take over the next node of the old graph."""
        if _is_write(node):
            self._write(node)
            return
        self.now[node] = self._copied(node)
        if node.op == "call_function":
            mine = _memory(self.values[node])
            inputs = (self._first(each) for each in node.all_input_nodes)
            viewed = next((each for each in inputs if mine & _memory(self.values[each])), None)
            if viewed is not None:  # a part of what was split is a view of that
                self.views[node] = self.views[viewed] if node.target is getitem else viewed

    def _first(self, node: fx.Node) -> fx.Node:
        return self.same.get(node, node)

    def _copied(self, node: fx.Node) -> fx.Node:
        return self.new.node_copy(node, lambda each: self.now[self._first(each)])

    def _write(self, node: fx.Node) -> None:
        written = self.same[node] = self._first(node.all_input_nodes[0])
        new = self._copied(node)
        new.target = _out_of_place(node)
        self.now[written] = new
        changed = {written}
        while written in self.views:
            viewed = self.views[written]
            self.now[viewed] = self._put(written, viewed)
            changed.add(viewed)
            written = viewed
        for view, viewed in self.views.items():
            if viewed in changed and view not in changed:
                self.now[view] = self._copied(view)
                changed.add(view)

    def _put(self, view: fx.Node, viewed: fx.Node) -> fx.Node:
        """What a tensor is once a view of it is another."""
        part, whole = self.now[view], self.now[viewed]
        call, name, rest = self.new.call_function, _name(view), view.args[1:]
        if view.target is getitem:
            scatter, *place = self._place(view)
            return call(scatter, (whole, part, *place))
        if name in ("select", "slice", "diagonal"):
            scatter = getattr(aten, f"{name}_scatter").default
            return call(scatter, (whole, part, *rest), dict(view.kwargs))
        if name == "narrow":
            dim, first, length = (int(each) for each in rest)  # type: ignore[arg-type]
            return call(aten.slice_scatter.default, (whole, part, dim, first, first + length))
        if name in ("t", "numpy_T", "mT", "transpose"):
            return call(view.target, (part, *rest))  # type: ignore[arg-type]
        if name == "permute":
            order: Any = rest[0]
            return call(view.target, (part, [order.index(axis) for axis in range(len(order))]))  # type: ignore[arg-type]
        if self.values[view].numel() == self.values[viewed].numel():
            return call(aten.reshape.default, (part, list(self.values[viewed].shape)))
        raise Unrecorded(f"it writes into a view by {view.target}")

    def _place(self, part: fx.Node) -> tuple[Any, ...]:
        """How a part of what was split is put back: the operation, and its last arguments."""
        pieces: Any = part.args[0]
        index: Any = part.args[1]
        single = _name(pieces) == "unbind"
        if not single and _name(pieces) not in ("split", "split_with_sizes", "chunk"):
            raise Unrecorded(f"it writes into a view by {pieces.target}")
        rest = pieces.args[1 if single else 2 :]
        dim = rest[0] if rest else pieces.kwargs.get("dim", 0)
        if single:
            return aten.select_scatter.default, dim, index
        sizes = [each.shape[dim] for each in self.values[pieces]]
        start = sum(sizes[:index])
        return aten.slice_scatter.default, dim, start, start + sizes[index]


def _name(node: fx.Node) -> str:
    """Name of an operation, without its overload."""
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else str(schema.name).partition("::")[2]


def _is_write(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _out_of_place(node: fx.Node) -> Any:
    """The operation that gives what another one writes into its first argument."""
    target: Any = node.target
    name = _name(node)
    packet = getattr(aten, name[:-1], None) if name.endswith("_") else None
    if target.namespace != "aten" or packet is None:
        raise Unrecorded(f"it calls {target}")
    overload = target._overloadname
    if overload not in packet.overloads():
        raise Unrecorded(f"it calls {target}")
    return getattr(packet, overload)


def _memory(value: object) -> set[int]:
    """Where tensors lie."""
    tensors = (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
    return {each.untyped_storage().data_ptr() for each in tensors} - {0}
