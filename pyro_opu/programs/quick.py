"""A recorded program as one Python function, in which tensors are written over when they are done.

What is on the way to an operation costs more than it at one row, and new memory more than most
operations at a thousand.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pyro_opu.programs.algebra import args, between, output, picks_rows
from pyro_opu.programs.pace import TIMES
from pyro_opu.programs.vmap_rewrites import LONG_ROW

aten = torch.ops.aten
#: Rows from which columns are quicker than rows, and numbers from which other ways are: of log1p,
#: and, of what is left, of a sum.
FEW_ROWS, FEW_NUMBERS = 8, 2**12
_OUT = ("add", "sub", "mul", "div", "sigmoid", "exp", "log", "log1p", "neg", "tanh", "sqrt")
#: Operations on each number that torch writes into a tensor that is given as ``out``.
_INTO: dict[Any, Callable[..., Tensor]] = {
    overload: getattr(torch, name)
    for name in (*_OUT, "square", "abs", "clamp", "clamp_min", "clamp_max", "reciprocal", "expm1")
    for overload in (
        getattr(getattr(aten, name), kind, None) for kind in ("default", "Tensor", "Scalar")
    )
    if overload is not None
}
#: Operations that write into a part of their first argument.
_PARTS: dict[Any, Callable[..., Tensor]] = {
    aten.select_scatter.default: lambda x, part, dim, index: _put(x, x.select(dim, index), part),
    aten.slice_scatter.default: lambda x, part, *where: _put(x, aten.slice.Tensor(x, *where), part),
}
_ADDED = (aten.add.Tensor, aten.mul.Tensor)
#: The same by a shorter way.
_DIRECT: dict[Any, Callable[..., Any]] = {
    **_INTO,
    aten.relu.default: torch.relu,
    aten.mm.default: torch.mm,
    aten.bmm.default: torch.bmm,
    aten.addmm.default: torch.addmm,
    aten.permute.default: torch.permute,
    aten.transpose.int: torch.transpose,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.reshape.default: torch.reshape,
    aten.sum.default: torch.sum,
    aten.eq.Tensor: torch.eq,
}


def by_lines(matrices: Tensor, columns: Tensor) -> Tensor:
    """A product ``(S, I, K) @ (S, K, N)`` of matrices that lie line by line, for few columns.

    Strides of an axis of one number decide which kernel torch takes: one is 7 times the other.
    """
    rows = columns.mT.contiguous()
    return torch.bmm(matrices, rows.view(-1).view(rows.shape).mT)


def is_quicker_in_line(value: Tensor, first: bool) -> bool:
    """Whether :func:`by_lines` is the quicker product of matrices of the draws with one row."""
    if value.is_cuda:
        return True
    matrices = value if first else value.mT
    lines, column = matrices.contiguous(), value.new_ones(len(value), matrices.shape[2], 1)
    ways: tuple[Callable[[], Tensor], ...] = (
        lambda: by_lines(lines, column),
        lambda: torch.bmm(value, column) if first else torch.bmm(column.mT, value),
    )
    least = [math.inf, math.inf]
    for _ in range(TIMES + 1):  # the first call of anything is slow
        for place, way in enumerate(ways):
            begun = time.perf_counter()
            way()
            least[place] = min(least[place], time.perf_counter() - begun)
    return least[0] < least[1]


#: Operations whose result is memory of its own.
_FRESH = {
    *_INTO,
    *_PARTS,
    aten.relu.default,
    aten.mm.default,
    aten.bmm.default,
    aten.addmm.default,
} | {
    aten.index.Tensor,
    aten.baddbmm.default,
    by_lines,
    aten.convolution.default,
    aten.sum.dim_IntList,
    aten.rsub.Scalar,
    aten._softmax.default,
}
#: Views in which no number lies twice.
_SAME_MEMORY = {aten.permute.default, aten.transpose.int, aten.reshape.default} | {
    getattr(aten.squeeze, kind) for kind in ("default", "dim", "dims")
}
_SAME_MEMORY |= {aten.unsqueeze.default, aten.slice.Tensor, aten.select.int}


def compiled(graph: fx.GraphModule, wanted: Sequence[int] | None = None) -> Callable[..., Any]:
    """The graph's function ``(*tensors) -> list``, of these of its outputs alone.

    It is to be called without gradients; no tensor that it is given is written into.
    """
    ends = output(graph)
    ends = ends if wanted is None else [ends[i] for i in wanted]
    needed, uses = _uses(graph, ends)
    scope: dict[str, Any] = {}
    lines, given = [], []
    for number, node in enumerate(graph.graph.nodes):
        if node.op == "placeholder":
            given.append(node.name)
        if node not in needed or node.op in ("placeholder", "output"):
            continue
        if node.op == "get_attr":
            scope[node.name] = getattr(graph, node.target)
            continue
        name, target, keywords = f"f{number}", _function(node), dict(node.kwargs)
        place = _written_over(node, uses, ends)
        arguments: Any = args(node)
        if place is not None and target is torch.relu:
            target = torch.relu_
        elif place is not None and node.target in _PARTS:
            target = _PARTS[node.target]
        elif place is not None and target in _INTO.values():
            keywords["out"] = place
        scope[name] = target
        shown = [_shown(each) for each in arguments]
        shown += [f"{key}={_shown(each)}" for key, each in keywords.items()]
        lines.append(f"{node.name} = {name}({', '.join(shown)})")
        done = [each.name for each in needed[node] if each.op == "call_function"]
        lines += [f"{' = '.join(done)} = None"] if done else []
    body = "".join(f"    {line}\n" for line in lines)
    back = ", ".join(each.name for each in ends)
    source = f"def run({', '.join(given)}):\n{body}    return [{back}]\n"
    scope |= {"device": torch.device, "inf": float("inf"), "nan": float("nan"), "torch": torch}
    exec(compile(source, "<recorded>", "exec"), scope)  # noqa: S102 - of names and numbers above
    made: Callable[..., Any] = scope["run"]
    return made


def _uses(
    graph: fx.GraphModule, ends: Sequence[fx.Node]
) -> tuple[dict[fx.Node, list[fx.Node]], dict[fx.Node, int]]:
    """By node that is needed: which nodes are needed no longer after it; and how often each is."""
    needed: dict[fx.Node, list[fx.Node]] = {node: [] for node in ends}
    uses = dict.fromkeys(ends, 1)
    seen = set(ends)
    for node in reversed(graph.graph.nodes):
        if node.op == "output" or node not in needed:
            continue
        for each in dict.fromkeys(node.all_input_nodes):
            needed.setdefault(each, [])
            uses[each] = uses.get(each, 0) + 1
            if each not in seen:
                seen.add(each)
                needed[node].append(each)
    return needed, uses


def _shown(value: Any) -> str:
    """An argument as it is written in Python."""
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, list | tuple):
        inside = ", ".join(map(_shown, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside},)"
    if isinstance(value, torch.device):
        return f"device({str(value)!r})"
    return repr(value)


def _written_over(
    node: fx.Node, uses: dict[fx.Node, int], ends: Sequence[fx.Node]
) -> fx.Node | None:
    """An argument of an operation in whose memory its result can be."""
    if node.target not in {*_INTO, *_PARTS, aten.relu.default}:
        return None
    for given in args(node)[: 2 if node.target in _ADDED else 1]:
        same = isinstance(given, fx.Node) and all(
            given.meta.get(key) == node.meta.get(key) for key in ("sizes", "dtype")
        )
        if (
            same
            and node.meta.get("dtype")
            and args(node).count(given) == 1
            and _is_done(given, uses)
        ):
            return given
    return None


def _is_done(node: fx.Node, uses: dict[fx.Node, int]) -> bool:
    """Whether memory is used for the last time, by the one user of a node."""
    while uses[node] == 1 and node.target in _SAME_MEMORY:
        node = args(node)[0]
    return uses[node] == 1 and node.target in _FRESH


# Quicker functions -------------------------------------------------------------------------------


def _function(node: fx.Node) -> Callable[..., Any]:
    target: Any = node.target
    if picks_rows(node):
        return _picked
    if node.target in (aten._softmax.default, aten._log_softmax.default):
        return _by_columns(node.target)
    if node.target is aten.stack.default and len(args(node)) > 1:
        return _beside
    if node.target is aten.sum.dim_IntList and len(args(node)) == 2 and not node.kwargs:
        return _summed
    if node.target is aten.log1p.default and between(args(node)[0], -1.0, 0.0):
        return _log1p
    return _DIRECT.get(target, target) if len(args(node)) < 3 else target


def _picked(x: Tensor, indices: list[Any]) -> Tensor:
    if not x.is_cuda:
        try:
            return torch.index_select(x, len(indices) - 1, indices[-1])
        except (IndexError, RuntimeError):  # one below zero, which counts from the end
            pass
    found: Tensor = aten.index.Tensor(x, indices)
    return found


def _by_columns(target: Any) -> Callable[[Tensor, int, bool], Tensor]:
    def soft(x: Tensor, dim: int, half: bool) -> Tensor:
        last = x.dim() > 1 and dim in (-1, x.dim() - 1) and x.shape[-1] < LONG_ROW
        if last and not x.is_cuda and x.shape[-2] >= FEW_ROWS:
            found: Tensor = target(x.mT, x.dim() - 2, half).mT
        else:
            found = target(x, dim, half)
        return found

    return soft


def _put(x: Tensor, place: Tensor, part: Tensor) -> Tensor:
    """The tensor, with a part written to a place in it."""
    place.copy_(part)
    return x


def _beside(tensors: list[Tensor], dim: int) -> Tensor:
    """A stack whose tensors lie one after another in memory."""
    return torch.stack(tensors).movedim(0, dim)


def _summed(x: Tensor, dims: list[int]) -> Tensor:
    """A sum of short rows as a product with ones."""
    size = x.shape[-1] if x.dim() > 1 else LONG_ROW
    short = size < LONG_ROW and x.numel() >= FEW_NUMBERS * size and dims in ([-1], [x.dim() - 1])
    if short and not x.is_cuda and x.dtype in (torch.float32, torch.float64) and x.is_contiguous():
        return torch.mv(x.view(-1, size), x.new_ones(size)).view(x.shape[:-1])
    return x.sum(dims)


def _log1p(u: Tensor) -> Tensor:
    """log(1 + u) of u in [-1, 0] by the vectorized logarithm, where there are many.

    References:
        Goldberg (1991), What every computer scientist should know about floating-point
        arithmetic, theorem 4.
    """
    if u.is_cuda or u.numel() < FEW_NUMBERS:
        return torch.log1p(u)
    one = u + 1.0
    below = one - 1.0
    found = one.log_().mul_(u).div_(below)
    return torch.where(below == 0, u, found)
