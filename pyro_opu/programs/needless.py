"""What is asked of numbers in a recorded program, without what cannot be otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import getitem
from typing import Any

import torch
from torch import fx

from pyro_opu.programs.algebra import (
    POINTWISE,
    VIEWS,
    Ends,
    args,
    base_of,
    ends_of,
    filled_with,
    is_view,
    new_node,
    output,
    sums_to_one,
    whole_of,
)

aten = torch.ops.aten
_HOLDS: dict[Any, Callable[[Ends, float], bool]] = {
    aten.ge.Scalar: lambda ends, c: ends.low >= c,
    aten.gt.Scalar: lambda ends, c: ends.low > c,
    aten.le.Scalar: lambda ends, c: ends.high <= c,
    aten.lt.Scalar: lambda ends, c: ends.high < c,
}
_EXTREMES = {aten.aminmax.default, aten.amin.default, aten.amax.default}

#: Operations that give NaN wherever one of the numbers that they are given is NaN.
_PASSES_NAN = (POINTWISE - {aten.pow.Tensor_Scalar, aten.pow.Scalar}) | {
    *VIEWS,
    *(getattr(aten, name).default for name in ("mm", "bmm", "addmm", "baddbmm", "stack", "cat")),
    *(getattr(aten, name).default for name in ("permute", "unsqueeze", "_softmax", "_log_softmax")),
    *(aten.transpose.int, aten.rsub.Scalar, aten.sum.default, aten.sum.dim_IntList),
}
_ALL = {aten.all.default, aten.all.dim, aten.all.dims}
_BOTH = {aten.bitwise_and.Tensor, aten.logical_and.default}


def _asked_of(valid: fx.Node) -> list[fx.Node]:
    """What must hold everywhere for this to hold everywhere, each once."""
    if valid.target in _ALL or is_view(valid):
        return _asked_of(args(valid)[0])
    if valid.target in _BOTH or valid.target is aten.stack.default:
        each = args(valid)[0] if valid.target is aten.stack.default else args(valid)
        return list(dict.fromkeys(one for node in each for one in _asked_of(node)))
    return [valid]


def leave_out(program: fx.GraphModule, place: int, fixed: set[fx.Node]) -> None:
    """Ask of numbers that can only fail by being NaN whether they are, once, and of others once.

    Args:
        program: It is rewritten in place.
        place: Which of its outputs is whether all holds that is asked.
        fixed: What follows from draws and constants alone.
    """
    valid = output(program)[place]
    numbers: dict[fx.Node, None] = {}  # in order, each once
    others: dict[Any, fx.Node] = {}
    for asked in _asked_of(valid):
        of = _only_nan(asked)
        if of is None:
            others[asked.target, _seen_by(asked), *args(asked)[1:]] = asked
        elif math.isnan(filled_with(of)) and of.meta["dtype"].is_floating_point:
            numbers[of] = None
    implied = _upstream([*numbers, *map(_seen_by, others.values())])
    ends: tuple[list[fx.Node], list[fx.Node]] = [], []
    for of in numbers:
        if of not in implied:
            ends[of in fixed].append(of)
    found = [_are_numbers(valid, group) for group in ends if group]
    found += [e if e.meta.get("sizes") == () else _all(valid, e) for e in others.values()]
    if found:  # else it holds always
        valid.replace_all_uses_with(together(valid, found))
    program.graph.eliminate_dead_code()


def together(before: fx.Node, asked: Sequence[fx.Node]) -> fx.Node:
    """Whether all of these hold, which are numbers."""
    if len(asked) == 1:
        return asked[0]
    stack = new_node(before, aten.stack.default, (list(asked),), asked[0])
    del stack.meta["sizes"]
    return _all(before, stack)


def apart(valid: fx.Node) -> list[fx.Node]:
    """What :func:`together` has put together."""
    stack = args(valid)[0] if valid.target is aten.all.default else valid
    return list(args(stack)[0]) if stack.target is aten.stack.default else [valid]


def _all(before: fx.Node, of: fx.Node) -> fx.Node:
    return new_node(before, aten.all.default, (of,), of, sizes=(), dtype=torch.bool)


def _upstream(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """What is no NaN, because what follows from it is none."""
    found: set[fx.Node] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        if node.target in _PASSES_NAN:
            new = {each for one in node.all_input_nodes for each in (one, whole_of(one))} - found
            found |= new
            left += new
    return found


def _are_numbers(before: fx.Node, of: Sequence[fx.Node]) -> fx.Node:
    """Whether no number of these is NaN."""
    total: fx.Node | None = None
    for each in of:
        own = new_node(before, aten.sum.default, (each,), each, sizes=())
        total = own if total is None else new_node(before, aten.add.Tensor, (total, own), own)
    assert total is not None
    return new_node(before, aten.eq.Tensor, (total, total), total, dtype=torch.bool)


def _seen_by(asked: fx.Node) -> fx.Node:
    """Numbers that a comparison, or one of their extremes, looks at."""
    seen: fx.Node = args(asked)[0]
    if seen.target is getitem:
        seen = args(seen)[0]
    whole = seen.target in _EXTREMES and len(args(seen)) == 1 and not seen.kwargs
    return whole_of(args(seen)[0] if whole else seen)


def _only_nan(asked: fx.Node) -> fx.Node | None:
    """Numbers of which this holds, unless one of them is NaN."""
    if asked.target is aten.eq.Tensor and args(asked)[0] is args(asked)[1]:
        total = args(asked)[0]
        return base_of(args(total)[0] if total.target is aten.sum.default else total)
    if asked.target is aten.lt.Scalar and (probs := _normalised_by(args(asked)[0])) is not None:
        return probs
    holds = _HOLDS.get(asked.target)
    ends = None if holds is None else ends_of(_seen_by(asked))
    known = holds is not None and ends is not None and holds(ends, args(asked)[1])
    return ends.of if known and ends else None


def _normalised_by(error: fx.Node) -> fx.Node | None:
    """Probabilities that were divided by their sum, of ``|sum - 1|``."""
    total = args(error)[0] if error.target is aten.abs.default else None
    if total is None or total.target is not aten.sub.Tensor or args(total)[1] != 1:
        return None
    if (total := args(total)[0]).target is not aten.sum.dim_IntList:
        return None
    probs = args(total)[0]
    if sums_to_one(total):
        return base_of(probs)
    if probs.target is not aten.div.Tensor or not isinstance(whole := args(probs)[1], fx.Node):
        return None
    same = args(whole)[:2] == (args(probs)[0], args(total)[1])
    return base_of(probs) if same and whole.target is aten.sum.dim_IntList else None
