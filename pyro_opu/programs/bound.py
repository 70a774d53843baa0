"""A recorded program with its draws, and the blocks in which it runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pyro_opu.programs.agreement import close
from pyro_opu.programs.recorded import Recorded, Size, after, is_random, is_view, output, sized
from pyro_opu.programs.vmap import Draws

#: Numbers that are kept of a draw, in multiples of those in it, where they follow from it alone.
KEPT = 4
#: Numbers in the widest tensor of a block, of which the quickest is found.
TRIED, QUICK = (2**15, 2**17, 2**19), 2**17


class Bound:
    """A recorded program with its draws: what follows from them alone is computed once.

    What follows from the inputs alone is computed once for all blocks of draws.

    Attributes:
        values: What follows from the draws alone, as ``late`` takes it.
        trunk: What follows from the inputs alone.
        late: All that is left.
    """

    def __init__(self, recorded: Recorded, draws: Draws) -> None:
        self.recorded = recorded
        self.num_draws = len(next(iter(draws.values())))
        refused: set[str] = set()
        while True:
            early, self.trunk, self.late, self._cuts = _split(recorded.program, draws, refused)
            with torch.no_grad():
                self.values: list[Tensor] = list(early(self.num_draws, 0, *draws.values()))
            if not (wrong := self._not_in_order(early, draws)):
                break
            refused |= wrong
        self._own = _made_anew(self.late)

    def values_of(self, index: Tensor) -> list[Tensor]:
        """The values under some of the draws."""
        pairs = zip(self.values, self._cuts, strict=True)
        return [value if cut is None else cut.some(value, index) for value, cut in pairs]

    def _under(self, start: int, stop: int) -> list[Tensor]:
        """The values under a block of the draws."""
        pairs = zip(self.values, self._cuts, strict=True)
        return [value if cut is None else cut.block(value, start, stop) for value, cut in pairs]

    def _not_in_order(self, early: fx.GraphModule, draws: Draws) -> set[str]:
        """Values that are not laid out draw after draw along their axis, by a few draws of them."""
        start, stop = 1, min(3, self.num_draws)
        if stop <= start:
            return set()
        some = [value[start:stop] for value in draws.values()]
        with torch.no_grad():
            alone = early(stop - start, 0, *some)
        names = [node.name for node in output(early)]
        return {
            name
            for name, found, own in zip(names, self._under(start, stop), alone, strict=True)
            if found.shape != own.shape or not close(found, own)
        }

    def __call__(self, inputs: Sequence[Tensor], block: slice = slice(None)) -> Draws:
        """What the program gives under a block of the draws."""
        return self.at(inputs)(block)

    def at(self, inputs: Sequence[Tensor]) -> Callable[[slice], Draws]:
        """What the program gives at these inputs, by the block of draws."""
        rows = self.recorded.of_rows(inputs)
        trunk = self.trunk.forward(rows, *inputs)

        def under(block: slice) -> Draws:
            start, stop, _ = block.indices(self.num_draws)
            values = self.values if stop - start == self.num_draws else self._under(start, stop)
            found = self.late.forward(stop - start, rows, *values, *trunk, *inputs)
            return {
                name: value if own else value.clone(memory_format=torch.contiguous_format)
                for name, value, own in zip(self.recorded.names, found, self._own, strict=True)
            }

        return under


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


def _split(
    program: fx.GraphModule, draws: Draws, refused: Collection[str] = ()
) -> tuple[fx.GraphModule, fx.GraphModule, fx.GraphModule, list[_Cut | None]]:
    """What follows from the draws alone, from the inputs alone, the rest, and where draws lie.

    The values of ``refused`` nodes are computed with the rest.
    """
    nodes = list(program.graph.nodes)
    numbers, taken = nodes[:2], nodes[2 : 2 + len(draws)]
    given = [node for node in nodes if node.op == "placeholder"][2 + len(draws) :]
    of_draws = after(program, lambda node: node is numbers[0] or node in taken)
    late = after(program, lambda node: node in given or node is numbers[1] or is_random(node))
    per_draw = sum(value[0].numel() for value in draws.values())

    def cut(node: fx.Node) -> _Cut | None:
        if node in taken:
            return _Cut(0, 1)
        sizes = node.meta.get("sizes", ())
        axes = [axis for axis, size in enumerate(sizes) if size.draws or size.both]
        if len(axes) != 1 or sizes[axes[0]] != Size(0, sizes[axes[0]].draws, 0, 0):
            return None
        few = math.prod(size.at(1, 0) for size in sizes) <= KEPT * per_draw + 64
        return _Cut(axes[0], sizes[axes[0]].draws) if few and node.name not in refused else None

    def keeps(node: fx.Node) -> bool:
        if node not in of_draws:
            return "sizes" in node.meta or node.op == "get_attr"
        return cut(node) is not None

    kept: list[fx.Node] = []
    for node in reversed(nodes):
        if node.op == "output":
            late.add(node)
        elif node not in late and node not in numbers and any(user in late for user in node.users):
            kept.append(node) if keeps(node) else late.add(node)
    kept.reverse()
    varying = of_draws | after(program, is_random)
    fixed = {n for n in late - varying if n.op == "call_function" and "sizes" in n.meta}
    ends = [n for n in nodes if n in fixed and any(user not in fixed for user in n.users)]
    early = _part(program, [*numbers, *taken], kept, late)
    trunk = _part(program, [numbers[1], *given], ends, varying)
    given_late = [*numbers, *kept, *ends, *given]
    rest = _part(program, given_late, output(program), set(nodes) - late)
    return early, trunk, rest, [cut(node) if node in of_draws else None for node in kept]


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


class Pace:
    """In blocks of how many draws the work goes quickest, found while it is done.

    Attributes:
        size: Draws of the next block.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._left = [*sizes, *sizes] if len(sizes) > 1 else []
        self._seconds: dict[int, float] = {}
        self.size = self._left.pop(0) if self._left else sizes[0]

    @classmethod
    def of(cls, draws: int, width: int, most: int, timed: bool) -> Pace:
        """One for draws that make tensors of ``width`` numbers, in blocks of ``most`` at most.

        Where the work is not to depend on the clock, as what is drawn at random must not, the size
        is one that is quick for most programs.
        """
        numbers = [each for each in (*TRIED, most) if each <= most] if timed else [min(QUICK, most)]
        return cls(sorted({max(1, min(draws, each // width)) for each in numbers}))

    @contextmanager
    def timed(self, draws: int) -> Iterator[None]:
        """Inside, a block of so many draws is done."""
        began = time.perf_counter()
        yield
        if draws == self.size and self._left:
            seconds = (time.perf_counter() - began) / draws
            self._seconds[draws] = min(seconds, self._seconds.get(draws, math.inf))
            self.size = self._left.pop(0)
            if not self._left:
                self.size = min(self._seconds, key=self._seconds.__getitem__)
