"""Whether the rows of a recorded program say nothing of one another, so that blocks of them do.

An operation is known here by what it does to the one axis along which rows lie; a program with any
other operation on rows, or with a sum over them, runs at all rows at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import getitem
from typing import Any

import torch
from torch import fx

from pyro_opu.programs.algebra import args, is_random, output
from pyro_opu.programs.recorded import VALID, Recorded, Size, sized

aten = torch.ops.aten
ROWS = Size(0, 0, 1, 0)


def _overloads(*names: str) -> set[Any]:
    found = [getattr(aten, name) for name in names]
    return {getattr(each, kind) for each in found for kind in each.overloads()}


#: Operations on each number that torch does not call so.
_EACH = _overloads(
    *("rand_like", "randn_like", "zeros_like", "ones_like", "full_like", "empty_like", "bernoulli"),
    *("poisson", "binomial", "_standard_gamma", "clone", "copy", "detach", "alias", "fill"),
    *("lift_fresh_copy", "_to_copy", "where"),
)
#: Operations that make rows of what has none.
_MADE = _overloads(
    *("zeros", "ones", "full", "empty", "rand", "randn", "expand"),
    *("new_zeros", "new_ones", "new_full", "new_empty"),
)
_PRODUCTS = _overloads("mm", "bmm", "addmm", "baddbmm", "mv", "addmv")
#: Operations along axes that are their second argument.
_ALONG = _overloads("amax", "amin", "logsumexp", "_softmax", "_log_softmax", "cumsum") | {
    *(aten.sum.dim_IntList, aten.mean.dim, aten.any.dim, aten.all.dim, aten.prod.dim_int),
    *(aten.max.dim, aten.min.dim),
}
#: Views in which rows keep their order.
_VIEWS = _overloads("select", "slice", "transpose", "t", "permute", "unsqueeze", "squeeze")


class _Together(Exception):
    """Rows that are not known to be apart."""


def row_axes(recorded: Recorded) -> dict[str, int | None] | None:
    """The axis of rows in each output, ``None`` in one without; or nothing where rows may mix."""
    ends = dict(zip(recorded.names, output(recorded.program), strict=True))
    ends.pop(VALID, None)  # of all rows: it holds if it holds in every block
    needed = set(ends.values())
    for node in reversed(recorded.program.graph.nodes):
        if node in needed and node.op != "output":
            needed.update(node.all_input_nodes)
    try:
        for node in recorded.program.graph.nodes:
            if node in needed and node.op == "call_function":
                _check(node)
            elif node in needed and _axis(node):
                return None  # rows of an input are its first axis
        return {name: _axis(node) for name, node in ends.items()}
    except _Together:
        return None


def _axis(node: fx.Node) -> int | None:
    """Where rows lie in a tensor."""
    sizes: Sequence[Size] = node.meta.get("sizes", ())
    axes = [axis for axis, size in enumerate(sizes) if size.rows or size.both]
    if len(axes) > 1 or any(sizes[axis] != ROWS for axis in axes):
        raise _Together
    return axes[0] if axes else None


def _check(node: fx.Node) -> None:
    """Raise an error where a row of what an operation gives may follow from another row."""
    if "sizes" not in node.meta:
        return  # a number, or several tensors of which each is looked at
    source = args(node)[0] if node.target is getitem else node
    given = {each: axis for each in source.all_input_nodes if (axis := _axis(each)) is not None}
    counted = [each for each in source.all_input_nodes if _counts_rows(each)]
    axis = _axis(node)
    if axis is None:
        apart = not (given or counted or is_random(source))  # what is one for all rows
    elif any(each in (*args(source), *source.kwargs.values()) for each in counted):
        apart = False  # a number, and no size
    elif not given:
        apart = source.target in _MADE
    else:
        apart = _keeps(source, given, axis, node)
    if not apart:
        raise _Together


def _counts_rows(node: fx.Node) -> bool:
    """Whether it is a whole number that depends on how many rows there are."""
    return node.target is sized and any(args(node)[0][2:])


def _keeps(source: fx.Node, given: dict[fx.Node, int], axis: int, found: fx.Node) -> bool:
    """Whether each row of what is found, along this axis, follows from the same row of the rest."""
    target: Any = source.target
    first, *more = args(source)
    if target in _EACH or torch.Tag.pointwise in getattr(target, "tags", ()):
        return all(_dims(each) - own == _dims(found) - axis for each, own in given.items())
    if target in _PRODUCTS:
        matrices = [each for each in args(source)[-2:] if each in given]
        added = [each for each in given if each not in matrices]
        aligned = all(_dims(each) - given[each] == _dims(found) - axis for each in added)
        batches = _dims(found) == 3 and axis == 0 and not any(given[each] for each in matrices)
        return aligned and (len(matrices) < 2 or batches)
    if target is aten.index.Tensor:
        own, indices = given.get(first), more[0]
        return own is None or (len(given) == 1 and not any(indices[own : own + 1]))
    if target is aten.embedding.default:
        return given == {more[0]: axis}
    if target in (aten.cat.default, aten.stack.default):
        return all(each in given for each in first)
    if target in _MADE - {aten.expand.default}:
        return True  # of the same dtype and device, whatever its numbers
    if first not in given:
        return False
    own = given[first]
    if target in (aten.select_scatter.default, aten.slice_scatter.default):
        return own != more[1] % _dims(first)
    if len(given) > 1:
        return False
    if target is aten.reshape.default:
        return _before(first, own) == _before(found, axis)
    if target in _ALONG:
        dims = more[0] if isinstance(more[0], list | tuple) else [more[0]]
        return own not in [dim % _dims(first) for dim in dims]
    if target in (aten.split_with_sizes.default, aten.split.Tensor):
        return own != (more[1] if len(more) > 1 else 0) % _dims(first)
    return (
        target in _VIEWS
        or target is aten.expand.default
        or (target is aten.convolution.default and own == axis == 0)
    )


def _dims(node: fx.Node) -> int:
    return len(node.meta["sizes"])


def _before(node: fx.Node, axis: int) -> list[int]:
    """How many blocks of rows lie one after another, for two numbers of draws."""
    sizes = node.meta["sizes"][:axis]
    return [math.prod(size.at(draws, 0) for size in sizes) for draws in (3, 5)]
