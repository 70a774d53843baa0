"""A recorded program with its draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pyro_opu.programs.agreement import close
from pyro_opu.programs.algebra import (
    after,
    args,
    is_random,
    is_view,
    new_node,
    output,
    width,
)
from pyro_opu.programs.needless import apart, together
from pyro_opu.programs.quick import by_lines, compiled, is_quicker_in_line
from pyro_opu.programs.recorded import VALID, Recorded, Size, sized
from pyro_opu.programs.recorder import NotValid
from pyro_opu.programs.vmap import Draws

#: Numbers that are kept of a draw, in multiples of those in it, where they follow from it alone.
KEPT = 4
#: Rows up to which products are quicker where the numbers of a draw that are added lie in line.
FEW_ROWS = 4
aten = torch.ops.aten
#: Operations whose numbers are what lies in memory.
_UNSET = {
    aten.empty,
    aten.empty_like,
    aten.empty_permuted,
    aten.empty_strided,
    aten.new_empty,
    aten.new_empty_strided,
}


class Bound:
    """A recorded program with its draws: what follows from them alone is computed once.

    What follows from the inputs alone is computed once for all blocks of draws.

    Args:
        recorded: The program.
        draws: Its draws.
        fresh: Whether every call brings draws of its own, of which these are some.

    Raises:
        NotValid: what is asked of the draws, or of constants, does not hold.

    Attributes:
        names: Names of outputs.
        values: What follows from the draws alone, as ``late`` takes it.
        trunk: What follows from the inputs alone.
        late: All that is left.
    """

    def __init__(self, recorded: Recorded, draws: Draws, fresh: bool = False) -> None:
        self.recorded = recorded
        self.num_draws = len(next(iter(draws.values())))
        self.names, program = list(recorded.names), recorded.program
        if VALID in self.names:
            program, self.names = _asked_once(recorded, {} if fresh else draws)
        cuts = _cuts(program, draws)
        taken = dict(zip((n.name for n in _given(program)[2:]), draws, strict=False))
        if fresh:
            cuts = {name: cut for name, cut in cuts.items() if cut is None or name in taken}
        early, self.trunk, self.late = _split(program, len(draws), cuts)
        with torch.no_grad():
            run = _Compared(early, cuts, draws)
            self.values: list[Tensor] = list(run.run(self.num_draws, 0, *draws.values()))
            if any(node.name in run.wrong for node in output(early)):
                cuts = {name: cut for name, cut in cuts.items() if name not in run.wrong}
                early, self.trunk, self.late = _split(program, len(draws), cuts)
                self.values = list(early(self.num_draws, 0, *draws.values()))
        self._cuts = [cuts[node.name] for node in output(early)]
        self._taken = [taken.get(node.name, "") for node in output(early)]
        self._own = _made_anew(self.late)
        self._begin = compiled(self.trunk)
        self._end = _End(self.late, self.values)
        self._end_of_few: _End | None = self._end if fresh else None

    def values_of(self, index: Tensor) -> list[Tensor]:
        """The values under some of the draws."""
        pairs = zip(self.values, self._cuts, strict=True)
        return [value if cut is None else cut.some(value, index) for value, cut in pairs]

    def _end_at(self, rows: int) -> _End:
        """What is left, with the values as they should lie for so many rows."""
        if rows > FEW_ROWS:
            return self._end
        if self._end_of_few is None:
            few, lie = _in_line(self.late, self._cuts, self.values)
            pairs = zip(self.values, lie, strict=True)
            self._end_of_few = _End(few, [way(value) for value, way in pairs])
        return self._end_of_few

    def _under(self, values: Sequence[Tensor], start: int, stop: int) -> list[Tensor]:
        """The values under a block of the draws."""
        pairs = zip(values, self._cuts, strict=True)
        return [value if cut is None else cut.block(value, start, stop) for value, cut in pairs]

    def _of_fresh(self, draws: Draws) -> list[Tensor]:
        """The values under other draws."""
        three = zip(self.values, self._cuts, self._taken, strict=True)
        return [value if cut is None else draws[name] for value, cut, name in three]

    def width(self, rows: int) -> int:
        """Numbers in the widest tensor that a draw makes of so many rows in a call."""
        return width(self.late, rows)

    def only(self, name: str) -> fx.GraphModule:
        """``late`` without what is needed for other outputs than this."""
        return _part(self.late, _given(self.late), [self._output(name)], set())

    def _output(self, name: str) -> fx.Node:
        return output(self.late)[self.names.index(name)]

    def __call__(self, inputs: Sequence[Tensor], block: slice = slice(None)) -> Draws:
        """What the program gives under a block of the draws."""
        return self.at(inputs)(block)

    def at(
        self, inputs: Sequence[Tensor], names: Sequence[str] | None = None
    ) -> Callable[..., Draws]:
        """What the program gives at these inputs, of these names, by the block of draws.

        Fresh draws are given beside the block.
        """
        rows = self.recorded.of_rows(inputs)
        trunk = self._begin(rows, *inputs)
        wanted = tuple(self.names if names is None else names)
        end = self._end_at(rows)
        if (made := end.runs.get(wanted)) is None:
            places = [self.names.index(name) for name in wanted]
            shared = [
                name for name, place in zip(wanted, places, strict=True) if not self._own[place]
            ]
            made = end.runs[wanted] = compiled(end.program, places), shared
        run, shared = made

        def under(block: slice, draws: Draws | None = None) -> Draws:
            start, stop, _ = block.indices(self.num_draws)
            if draws is not None:
                start, stop, values = 0, len(next(iter(draws.values()))), self._of_fresh(draws)
            elif stop - start == self.num_draws:
                values = end.values
            else:
                values = self._under(end.values, start, stop)
            found = dict(
                zip(wanted, run(stop - start, rows, *values, *trunk, *inputs), strict=True)
            )
            for name in shared:
                found[name] = found[name].clone(memory_format=torch.contiguous_format)
            return found

        return under


class _End:
    """A program, the values that it is given, and its functions by the names that they give."""

    def __init__(self, program: fx.GraphModule, values: list[Tensor]) -> None:
        self.program, self.values = program, values
        self.runs: dict[tuple[str, ...], tuple[Callable[..., list[Tensor]], list[str]]] = {}


@dataclass(frozen=True)
class _Cut:
    """Where draws lie in a value: along an axis, so many numbers of each, draw after draw."""

    axis: int
    each: int

    def block(self, value: Tensor, start: int, stop: int) -> Tensor:
        return value.narrow(self.axis, start * self.each, (stop - start) * self.each)

    def some(self, value: Tensor, index: Tensor) -> Tensor:
        apart = value.unflatten(self.axis, (-1, self.each))
        found = apart.index_select(self.axis, index.to(value.device))
        return found.flatten(self.axis, self.axis + 1)


class _Compared(fx.Interpreter):
    """Runs what follows from draws, and compares each value with that of a few of them alone.

    Attributes:
        wrong: Names of values that do not lie draw after draw where their cuts say.
    """

    def __init__(
        self, early: fx.GraphModule, cuts: Mapping[str, _Cut | None], draws: Draws
    ) -> None:
        super().__init__(early)
        self.wrong: set[str] = set()
        self._alone: dict[str, tuple[_Cut | None, Tensor]] = {}
        size = len(next(iter(draws.values())))
        self._start, self._stop = 1, min(3, size)
        if self._start < self._stop:
            few = fx.Interpreter(early, garbage_collect_values=False)
            some = [value[self._start : self._stop] for value in draws.values()]
            few.run(self._stop - self._start, 0, *some)
            for node, value in few.env.items():
                if node.name in cuts:
                    self._alone[node.name] = cuts[node.name], value

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.name in self._alone:
            cut, own = self._alone[n.name]
            found = value if cut is None else cut.block(value, self._start, self._stop)
            if found.shape != own.shape or not close(found, own):
                self.wrong.add(n.name)
        return value


def _cuts(program: fx.GraphModule, draws: Draws) -> dict[str, _Cut | None]:
    """By name of all that may be kept: where draws lie in it, ``None`` where it is of all."""
    nodes = list(program.graph.nodes)
    number, taken = nodes[0], nodes[2 : 2 + len(draws)]
    of_draws = after(program, lambda node: node is number or node in taken)
    per_draw = sum(value[0].numel() for value in draws.values())
    found: dict[str, _Cut | None] = {}
    unset: set[fx.Node] = set()
    for node in nodes:
        sizes = node.meta.get("sizes", ())
        axes = [axis for axis, size in enumerate(sizes) if size.draws or size.both]
        if _is_unset(node) or (is_view(node) and node.args[0] in unset):
            unset.add(node)  # what lies in memory by chance equals nothing
        elif node in taken:
            found[node.name] = _Cut(0, 1)
        elif node not in of_draws:
            if "sizes" in node.meta or node.op == "get_attr":
                found[node.name] = None
        elif len(axes) == 1 and sizes[axes[0]] == Size(0, sizes[axes[0]].draws, 0, 0):
            if math.prod(size.at(1, 0) for size in sizes) <= KEPT * per_draw + 64:
                found[node.name] = _Cut(axes[0], sizes[axes[0]].draws)
    return found


def _asked_once(recorded: Recorded, draws: Draws) -> tuple[fx.GraphModule, list[str]]:
    """The program without what is asked of these draws and of constants, which is asked here."""
    program, names = recorded.program, [name for name in recorded.names if name != VALID]
    given, ends = _given(program), dict(zip(recorded.names, output(program), strict=True))
    others = {given[1], *given[2 + len(draws) :], *([] if draws else given[:1])}
    late = after(program, lambda node: node in others or is_random(node))
    asked = apart(ends[VALID])
    left = [each for each in asked if each in late]
    early = _part(program, given[: 2 + len(draws)], [a for a in asked if a not in late], late)
    size = len(next(iter(draws.values()))) if draws else 0
    with torch.no_grad():
        if not all(bool(each) for each in early(size, 0, *draws.values())):
            raise NotValid
    made = _part(program, given, [*(ends[name] for name in names), *left], set())
    last = next(node for node in made.graph.nodes if node.op == "output")
    found, left = output(made)[: len(names)], output(made)[len(names) :]
    if left:
        names, found = [*names, VALID], [*found, together(last, left)]
    last.args = (found,)
    made.recompile()
    return made, names


def _is_unset(node: fx.Node) -> bool:
    """Whether a node is memory into which nothing is written, which differs from call to call."""
    return getattr(node.target, "overloadpacket", None) in _UNSET


def _split(
    program: fx.GraphModule, draws: int, keeps: Collection[str]
) -> tuple[fx.GraphModule, fx.GraphModule, fx.GraphModule]:
    """What follows from so many tensors of draws alone, from the inputs alone, and the rest.

    The rest is given the nodes of these names, of those that follow from the draws.
    """
    nodes = list(program.graph.nodes)
    numbers, taken = nodes[:2], nodes[2 : 2 + draws]
    given = _given(program)[2 + draws :]
    of_draws = after(program, lambda node: node is numbers[0] or node in taken)
    of_inputs = after(program, lambda node: node in given or node is numbers[1] or is_random(node))
    late = set(of_inputs)
    kept: list[fx.Node] = []
    for node in reversed(nodes):
        if node.op == "output":
            late.add(node)
        elif node not in late and node not in numbers and any(user in late for user in node.users):
            kept.append(node) if node.name in keeps else late.add(node)
    kept.reverse()
    varying = of_draws | after(program, is_random)
    fixed = {n for n in late - varying if n.op == "call_function" and "sizes" in n.meta}
    ends = [n for n in nodes if n in fixed and any(user not in fixed for user in n.users)]
    early = _part(program, [*numbers, *taken], kept, of_inputs)
    trunk = _part(program, [numbers[1], *given], ends, varying)
    given_late = [*numbers, *kept, *ends, *given]
    rest = _part(program, given_late, output(program), set(nodes) - late)
    return early, trunk, rest


def _in_line(
    late: fx.GraphModule, cuts: Sequence[_Cut | None], values: Sequence[Tensor]
) -> tuple[fx.GraphModule, list[Callable[[Tensor], Tensor]]]:
    """The program with its products by matrices of the draws the other way round, and these so too.

    Numbers of a draw that are added are then read one after another. For one row that takes a third
    of the time on one processor and twice the time on another, so each product is timed both ways.
    """
    few = _part(late, _given(late), output(late), set())
    lie: list[Callable[[Tensor], Tensor]] = []
    for node, cut, value in zip(_given(few)[2:], cuts, values, strict=False):
        (user, *more) = node.users or (node,)
        lie.append(_as_it_lies)
        if more or user.target is not aten.bmm.default or cut is None or cut.axis:
            continue
        left, right = args(user)
        if left is not right and not is_quicker_in_line(value, left is node):
            continue
        if left is node and right is not node:
            lie[-1], user.target = _contiguous, by_lines
        elif right is node and left is not node:
            lie[-1] = _turned
            turned = new_node(user, aten.transpose.int, (left, 1, 2), left, sizes=_swapped(left))
            product = new_node(user, by_lines, (node, turned), user, sizes=_swapped(user))
            back = new_node(user, aten.transpose.int, (product, 1, 2), user)
            user.replace_all_uses_with(back)
            few.graph.erase_node(user)
            node.meta["sizes"] = _swapped(node)
    return few, lie


def _swapped(node: fx.Node) -> tuple[Any, ...]:
    """The sizes of the matrices of a node, transposed."""
    one, two, three = node.meta["sizes"]
    return one, three, two


def _as_it_lies(value: Tensor) -> Tensor:
    return value


def _contiguous(value: Tensor) -> Tensor:
    return value if value.is_cuda else value.contiguous()


def _turned(value: Tensor) -> Tensor:
    return value.mT if value.is_cuda else value.mT.contiguous()


def _made_anew(program: fx.GraphModule) -> list[bool]:
    """Whether each value that a program gives is a tensor of its own, not a view of others."""
    found, seen = [], set()
    for node in output(program):
        base: Any = node
        expanded = False
        while is_view(base):
            expanded |= base.target is torch.ops.aten.expand.default
            base = base.args[0]
        found.append(base.op == "call_function" and not expanded and base not in seen)
        seen.add(base)
    return found


def _given(program: fx.GraphModule) -> list[fx.Node]:
    return [node for node in program.graph.nodes if node.op == "placeholder"]


def _part(
    program: fx.GraphModule, given: list[fx.Node], wanted: list[fx.Node], without: set[fx.Node]
) -> fx.GraphModule:
    """The operations from these nodes to those, as a program of its own."""
    graph, made = fx.Graph(), {}
    for node in given:
        made[node] = graph.placeholder(node.name)
        made[node].meta = dict(node.meta)
    for node in program.graph.nodes:
        is_size = node.target is sized and all(each in made for each in node.all_input_nodes)
        computed = node not in without and node.op in ("call_function", "get_attr")
        if node not in made and (is_size or computed):
            made[node] = graph.node_copy(node, lambda each: made[each])
    graph.output([made[node] for node in wanted])
    graph.eliminate_dead_code()
    return fx.GraphModule(program, graph)


def put(found: Draws, block: slice, values: Draws, size: int) -> None:
    """Lay values of a block of draws among those of all ``size``."""
    for name, value in values.items():
        if name not in found:
            found[name] = value.new_empty((size, *value.shape[1:]))
        found[name][block] = value
