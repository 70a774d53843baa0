"""Operations of a recorded program in another order or number, with the same result to rounding.

An index is taken after what follows from the draws alone, and a logarithm and its exponential
cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import fx

aten = torch.ops.aten
#: Operations that change nothing where they keep the sizes.
VIEWS = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.expand.default,
    aten.reshape.default,
    aten.detach.default,
    aten.alias.default,
    aten.lift_fresh_copy.default,
    aten.clone.default,
}
#: Views, in any order, of all numbers of what they are given.
WHOLE = (VIEWS - {aten.lift_fresh_copy.default, aten.clone.default}) | {
    *(aten.permute.default, aten.transpose.int, aten.unsqueeze.default),
    *(getattr(aten.squeeze, kind) for kind in ("default", "dim", "dims")),
}
#: Operations on each number alone.
POINTWISE = {
    getattr(aten, name).default
    for name in (
        *("sigmoid", "exp", "log", "log1p", "neg", "tanh", "relu", "sqrt", "square", "abs"),
        *("clamp", "clamp_min", "clamp_max", "softplus", "reciprocal", "expm1", "sin", "cos"),
    )
} | {
    getattr(getattr(aten, name), kind)
    for name in ("add", "sub", "mul", "div", "pow")
    for kind in ("Tensor", "Tensor_Scalar", "Scalar")
    if hasattr(getattr(aten, name), kind)
}


class Ends(NamedTuple):
    """Between which numbers all of a node's are that are no NaN, which ``of`` has too."""

    low: float
    high: float
    of: fx.Node


_CLIPS = {aten.clamp_min.default: max, aten.clamp_max.default: min}
_NOT_NEGATIVE = {
    getattr(aten, name).default for name in ("exp", "softplus", "relu", "abs", "square", "sqrt")
}


def simplify(program: fx.GraphModule, fixed: set[fx.Node]) -> None:
    """Rewrite a program in place.

    Args:
        program: A graph of aten operations, with "sizes" and "dtype" in the meta of its nodes.
        fixed: What follows from draws and constants alone.
    """
    graph = program.graph
    for node in list(graph.nodes):
        if node.op == "call_function":
            for rewrite in (_normalised, _cancelled, _gathered_late):
                found = rewrite(node, fixed)
                if found is not None:
                    node.replace_all_uses_with(found)
                    break
    graph.eliminate_dead_code()


def new_node(
    before: fx.Node, target: Any, args: tuple[Any, ...], like: fx.Node, **meta: Any
) -> fx.Node:
    """An operation before another, with the meta of a third."""
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, args)
    node.meta = {**like.meta, **meta}
    return node


def _normalised(node: fx.Node, fixed: set[fx.Node]) -> fx.Node | None:
    """Probabilities over their sum are themselves."""
    if node.target is not aten.div.Tensor:
        return None
    probs, total = args(node)
    is_sum = isinstance(total, fx.Node) and total.target is aten.sum.dim_IntList
    kept = is_sum and len(args(total)) > 2 and args(total)[2] is True and not total.kwargs
    return probs if kept and args(total)[0] is probs and sums_to_one(total) else None


def sums_to_one(total: fx.Node) -> bool:
    """Whether a sum is that of a softmax over its axis."""
    probs, dims = args(total)[0], args(total)[1]
    known = len(dims) == 1 and "sizes" in probs.meta
    return known and _softmax_along(probs, dims[0] % len(probs.meta["sizes"]))


def _softmax_along(probs: fx.Node, axis: int) -> bool:
    """Whether a node is a softmax along an axis, or the transpose of one."""
    while probs.target is aten.transpose.int:
        axes = len(probs.meta["sizes"])
        one, two = (each % axes for each in args(probs)[1:])
        axis = {one: two, two: one}.get(axis, axis)
        probs = args(probs)[0]
    soft = probs.target is aten._softmax.default
    return soft and bool(axis == args(probs)[1] % len(probs.meta["sizes"]))


def _cancelled(node: fx.Node, fixed: set[fx.Node]) -> fx.Node | None:
    """The exponential of a logarithm of what is known not to be negative."""
    if node.target is not aten.exp.default:
        return None
    return _exp(node, args(node)[0])


def _exp(before: fx.Node, log: fx.Node) -> fx.Node | None:
    if log.target is aten.stack.default:
        each = [_exp(before, one) for one in args(log)[0]]
        return new_node(before, log.target, (each, *args(log)[1:]), log) if all(each) else None
    if log.target is aten.transpose.int:
        below = _exp(before, args(log)[0])
        return below and new_node(before, log.target, (below, *args(log)[1:]), log)
    if log.target is aten.log.default:
        found: fx.Node = args(log)[0]
        return found if between(found, 0.0, math.inf) else None
    if log.target is aten.log1p.default:
        below = args(log)[0]
        if not between(below, -1.0, math.inf):
            return None
        if below.target is aten.neg.default:
            return new_node(before, aten.rsub.Scalar, (args(below)[0], 1), log)
        return new_node(before, aten.add.Scalar, (below, 1), log)
    if log.target is aten._log_softmax.default:
        return new_node(before, aten._softmax.default, args(log), log)
    return None


def _gathered_late(node: fx.Node, fixed: set[fx.Node]) -> fx.Node | None:
    """``f(a[index], b)`` is ``f(a, b)[index]`` where b is one number for all that is indexed.

    What follows from the draws alone is then computed once.
    """
    given, picks = args(node), [each for each in node.all_input_nodes if picks_rows(each)]
    if (
        node.target not in POINTWISE
        or node.kwargs
        or not picks
        or not isinstance(given[0], fx.Node)
    ):
        return None
    axis, (source, index) = len(args(picks[0])[1]) - 1, args(picks[0])
    sizes: tuple[Any, ...] = source.meta["sizes"]
    if node.meta["sizes"] != (
        *sizes[:axis],
        *node.meta["sizes"][axis : axis + 1],
        *sizes[axis + 1 :],
    ):
        return None
    early = []
    for each in given:
        if isinstance(each, fx.Node) and each in picks:
            each, other = args(each)
            if other != index or each not in fixed:
                return None
        elif isinstance(each, fx.Node):
            own = each.meta.get("sizes", sizes)
            place = axis - len(sizes) + len(own)
            if each not in fixed or (place >= 0 and own[place] != (1, 0, 0, 0)):
                return None
        early.append(each)
    made = new_node(node, node.target, tuple(early), node, sizes=sizes)
    fixed.add(made)
    return new_node(node, aten.index.Tensor, (made, index), node)


def picks_rows(node: fx.Node) -> bool:
    """Whether rows are picked along one axis, by an index of one axis."""
    if node.target is not aten.index.Tensor or "sizes" not in args(node)[0].meta:
        return False
    *before, index = args(node)[1]
    if index is None or any(each is not None for each in before):
        return False
    return index.meta.get("dtype") is torch.int64 and len(index.meta["sizes"]) == 1


def is_simplex(probs: fx.Node) -> bool:
    """Whether rows are known to sum to one, or to be NaN: a softmax, or 1 - p and p."""
    probs = _unclipped(probs)
    axis = len(probs.meta.get("sizes", ())) - 1
    if probs.target is aten.stack.default and len(args(probs)[0]) == 2:
        rest, one = args(probs)[0]
        apart = rest.target is aten.rsub.Scalar and args(rest)[1:] == (1,)
        same = apart and _unclipped(args(rest)[0]) is _unclipped(one)
        return same and args(probs)[1] in (-1, axis) and between(one, 0.0, 1.0)
    return _softmax_along(probs, axis)


def _unclipped(node: fx.Node) -> fx.Node:
    """Probabilities before they were kept from being 0 and 1."""
    while node.target in _CLIPS and not 1e-6 < args(node)[1] < 1 - 1e-6:
        node = args(node)[0]
    return node


def args(node: fx.Node) -> tuple[Any, ...]:
    """What an operation is given."""
    return node.args


def between(node: fx.Node, low: float, high: float) -> bool:
    """Whether all numbers of a node are known to be there, or NaN."""
    ends = ends_of(node)
    return ends is not None and low <= ends.low and ends.high <= high


def whole_of(node: fx.Node) -> fx.Node:
    """What a view has all numbers of."""
    while node.target in WHOLE:
        node = args(node)[0]
    return node


def base_of(node: fx.Node) -> fx.Node:
    """What a view is one of, or of a part."""
    while node.op == "call_function" and getattr(node.target, "is_view", False):
        node = args(node)[0]
    return node


def filled_with(node: fx.Node) -> float:
    """The number that all of a node's are, NaN where it is not known."""
    if node.target is aten.full.default:
        return float(args(node)[1])
    return 0.0 if node.target is aten.zeros.default else math.nan


def ends_of(node: fx.Node) -> Ends | None:
    node = base_of(node)
    if node.target in _CLIPS:
        own, at = ends_of(args(node)[0]) or Ends(-math.inf, math.inf, node), args(node)[1]
        clip = _CLIPS[node.target]
        return Ends(clip(own.low, at), clip(own.high, at), own.of)
    if node.target is aten.neg.default:
        ends = ends_of(args(node)[0])
        return ends and Ends(-ends.high, -ends.low, ends.of)
    if node.target in (aten.sigmoid.default, aten._softmax.default):
        return Ends(0.0, 1.0, node)
    if not math.isnan(value := filled_with(node)):
        return Ends(value, value, node)
    if node.target in _NOT_NEGATIVE:
        return Ends(0.0, math.inf, node)
    if node.target in (aten.add.Tensor, aten.add.Scalar) and not node.kwargs:
        ends, by = ends_of(args(node)[0]), args(node)[1]
        known = ends is not None and isinstance(by, int | float)
        return Ends(ends.low + by, ends.high + by, ends.of) if known and ends else None
    if node.target is aten.sum.dim_IntList and sums_to_one(node):
        return Ends(0.5, 2.0, base_of(args(node)[0]))
    return None


# Graphs ------------------------------------------------------------------------------------------


def without_views(program: fx.GraphModule) -> None:
    """Leave out views and copies to what is there."""
    graph = program.graph
    for node in list(graph.nodes):
        place = 1 if node.target is aten.copy.default else 0  # what is written, not what was there
        source = node.args[place] if node.op == "call_function" and node.args else None
        if isinstance(source, fx.Node) and _is_same(node, source):
            node.replace_all_uses_with(source)
            graph.erase_node(node)
        elif node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default  # what it is given may have other strides now
    graph.eliminate_dead_code()
    program.recompile()


def _is_same(node: fx.Node, source: fx.Node) -> bool:
    """Whether a node is its first argument."""
    known = "sizes" in node.meta and "sizes" in source.meta
    if not known or any(node.meta[key] != source.meta[key] for key in ("sizes", "dtype")):
        return False
    if node.target is aten.permute.default:
        dims: Any = node.args[1]
        return all(dim % len(dims) == i for i, dim in enumerate(dims))
    if node.target is aten.clone.default and any(map(_reads_memory, node.users)):
        return False
    copied = node.target is aten._to_copy.default and set(node.kwargs) <= {"dtype", "device"}
    return copied or node.target is aten.copy.default or node.target in VIEWS


def _reads_memory(node: fx.Node) -> bool:
    """Whether the kernel of another library reads numbers as they lie, whatever the strides."""
    return getattr(node.target, "__name__", "").startswith(("mkldnn", "mkl", "cudnn", "miopen"))


def is_view(node: fx.Node) -> bool:
    return node.target in VIEWS or bool(getattr(node.target, "is_view", False))


def is_random(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return node.op == "call_function" and torch.Tag.nondeterministic_seeded in tags


def after(program: fx.GraphModule, begins: Callable[[fx.Node], bool]) -> set[fx.Node]:
    """Nodes that depend on those where something begins, and these."""
    found: set[fx.Node] = set()
    for node in program.graph.nodes:
        if begins(node) or any(each in found for each in node.all_input_nodes):
            found.add(node)
    return found


def width(program: fx.GraphModule, rows: int) -> int:
    """Numbers in the widest tensor that a program makes of a draw and so many rows."""
    counts = [
        math.prod(size.at(1, rows) for size in node.meta["sizes"])
        for node in program.graph.nodes
        if node.op == "call_function" and "sizes" in node.meta and not is_view(node)
    ]
    return max(counts, default=1)


def output(program: fx.GraphModule) -> list[fx.Node]:
    return list(next(node for node in program.graph.nodes if node.op == "output").args[0])
