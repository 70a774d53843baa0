"""A program of posterior draws and inputs, recorded once as tensor operations.

A Pyro model under :func:`torch.vmap` is one sequence of tensor operations on all draws; what costs
time is Python on the way to them. It is recorded at four small sizes, two numbers of draws by two
of rows. Where the four sequences are alike but for whole numbers that are bilinear in both, they
are one program for any number of draws and rows, which runs without Pyro and without ``vmap``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from pyro_opu.programs.algebra import (
    after,
    is_random,
    output,
    simplify,
    width,
    without_views,
)
from pyro_opu.programs.forms import rows_of
from pyro_opu.programs.needless import leave_out
from pyro_opu.programs.recorder import NotRecorded, Together, one_run
from pyro_opu.programs.vmap import Draws

Corner = tuple[int, int]
#: By this name a program gives whether all that it samples from could be sampled.
VALID = "\0valid"
#: Draws, and rows, at which a program is recorded.
DRAWS, ROWS = (3, 5), (7, 11)


class Size(NamedTuple):
    """A whole number that follows from the numbers of draws and rows: a + b S + c N + d S N."""

    constant: int
    draws: int
    rows: int
    both: int

    @classmethod
    def through(cls, values: Mapping[Corner, int]) -> Size:
        """The one that takes these values at the corners, or an error if there is none."""
        (s0, n0), (s1, n1) = min(values), max(values)
        ds, dn = s1 - s0, n1 - n0
        low, high = values[s0, n0], values[s1, n0]
        both, rows, rests = 0, 0, [0]
        if dn:
            beside, far = values[s0, n1], values[s1, n1]
            both, rest = divmod(far - high - beside + low, ds * dn)
            rows, other = divmod(beside - low - both * s0 * dn, dn)
            rests = [rest, other]
        draws, rest = divmod(high - low - both * ds * n0, ds)
        if rest or any(rests):
            raise NotRecorded(f"a size that is {sorted(values.values())} at {sorted(values)}")
        return cls(low - draws * s0 - rows * n0 - both * s0 * n0, draws, rows, both)

    def at(self, draws: Any, rows: Any) -> Any:
        return self.constant + self.draws * draws + self.rows * rows + self.both * draws * rows


class Recorded:
    """A program for any number of draws, and of rows where these are free.

    Args:
        together: The program as ``vmap`` runs it, ``(draws, inputs) -> {name: (S, ...)}``.
        draws: Some posterior draws ``(S, ...)`` each.
        inputs: Tensors; those with as many rows as the first that has rows have N.
        free: Whether any number of rows is wanted, or this one alone.

    Attributes:
        rows: N, where it is fixed.
        random: Names of what differs from call to call.
        modules: What it calls, and all that are in these.

    Raises:
        NotRecorded: the operations depend on the numbers of draws or rows in another way.
    """

    def __init__(
        self, together: Together, draws: Draws, inputs: Sequence[Tensor], *, free: bool = True
    ) -> None:
        count = rows_of(inputs)
        self.rows = None if free else count
        self._draws = list(draws)
        sizes = ROWS if free else (count,)
        graphs = {
            (s, n): one_run(together, few(draws, s), _resized(inputs, count, n, s == DRAWS[0]))
            for s in DRAWS
            for n in sizes
        }
        first = next(iter(graphs.values()))
        self.names, self.modules = list(first.names), first.modules
        self.program = _merged({corner: each.graph for corner, each in graphs.items()})
        without_views(self.program)
        simplify(self.program, fixed := self._follow_from_draws())
        if VALID in self.names:
            leave_out(self.program, self.names.index(VALID), fixed)
        self.program.recompile()
        varying = after(self.program, is_random)
        outputs = output(self.program)
        self.random = {
            name for name, node in zip(self.names, outputs, strict=True) if node in varying
        }
        if not self.random:  # what is drawn for sites that are not asked for
            ends = ("placeholder", "output")
            self.program.graph.eliminate_dead_code(lambda node: node.op in ends)
            self.program.recompile()

    def __call__(self, draws: Draws, inputs: Sequence[Tensor]) -> Draws:
        """What the program gives for these draws and inputs."""
        size = len(next(iter(draws.values())))
        values = self.program(
            size, self.of_rows(inputs), *(draws[name] for name in self._draws), *inputs
        )
        return dict(zip(self.names, values, strict=True))

    def _follow_from_draws(self) -> set[fx.Node]:
        """Nodes that follow from draws and constants alone."""
        nodes = list(self.program.graph.nodes)
        own = {nodes[0], *nodes[2 : 2 + len(self._draws)]}
        given = {node for node in nodes if node.op == "placeholder"} - own
        return set(nodes) - after(self.program, lambda node: node in given or is_random(node))

    def constants(self) -> list[Any]:
        """What is in it besides draws and inputs: parameters and tensors of the model."""
        nodes = self.program.graph.nodes
        return [getattr(self.program, node.target) for node in nodes if node.op == "get_attr"]

    def width(self, rows: int) -> int:
        """Numbers in the widest tensor that a draw makes of so many rows."""
        return width(self.program, rows)

    def of_rows(self, inputs: Sequence[Tensor]) -> int:
        """N of these inputs, or that which is fixed."""
        return rows_of(inputs) if self.rows is None else self.rows


def few(draws: Draws, count: int) -> Draws:
    """The first draws, again and again if there are fewer."""
    return {name: value[torch.arange(count) % len(value)] for name, value in draws.items()}


def _resized(inputs: Sequence[Tensor], count: int, rows: int, ahead: bool) -> list[Tensor]:
    """The same inputs with so many rows, where they have ``count``.

    They are read ahead or backwards, so that what depends on their values is no constant.
    """
    index = torch.arange(rows) % max(count, 1)
    index = index if ahead else index.flip(0)
    return [x[index] if x.dim() and len(x) == count else x for x in inputs]


def _merged(graphs: Mapping[Corner, fx.GraphModule]) -> fx.GraphModule:
    """One program ``(S, N, *tensors)`` of graphs that are alike but for sizes."""
    corners, modules = list(graphs), list(graphs.values())
    lists = [list(module.graph.nodes) for module in modules]
    if len({len(nodes) for nodes in lists}) > 1:
        raise NotRecorded("as many operations as there are rows or draws")
    graph, root = fx.Graph(), nn.Module()
    numbers = graph.placeholder("draws"), graph.placeholder("rows")
    made: list[dict[fx.Node, fx.Node]] = [{} for _ in modules]
    sizes: dict[Size, fx.Node] = {}

    def through(values: Sequence[int]) -> Size:
        return Size.through(dict(zip(corners, values, strict=True)))

    def merge(values: Sequence[Any]) -> Any:
        one = values[0]
        if isinstance(one, fx.Node):
            nodes = {table.get(value) for table, value in zip(made, values, strict=True)}
            if len(nodes) > 1 or None in nodes:
                raise NotRecorded("operations in another order")
            return nodes.pop()
        if isinstance(one, list | tuple):
            if len({len(value) for value in values}) > 1:
                raise NotRecorded("as many arguments as there are rows or draws")
            return type(one)(merge(each) for each in zip(*values, strict=True))
        if isinstance(one, dict):
            return {key: merge([value[key] for value in values]) for key in one}
        if type(one) is int and len(set(values)) > 1:
            size = through(values)
            if size not in sizes:
                used = size.draws or size.both, size.rows or size.both
                needed = [each if use else 0 for each, use in zip(numbers, used, strict=True)]
                sizes[size] = graph.call_function(sized, (tuple(size), *needed))
            return sizes[size]
        if not all(_alike(one, value) for value in values):
            raise NotRecorded(f"an argument that is {one} or {values[-1]}")
        return one

    for nodes in zip(*lists, strict=True):
        one = nodes[0]
        if len({(node.op, node.op == "get_attr" or node.target) for node in nodes}) > 1 and (
            one.op != "placeholder"
        ):
            raise NotRecorded("other operations for other numbers of rows or draws")
        if one.op == "get_attr":
            held = [
                getattr(module, node.target) for module, node in zip(modules, nodes, strict=True)
            ]
            if not all(_alike(held[0], each) for each in held):
                raise NotRecorded("a constant that depends on the rows or draws")
            setattr(root, one.target, held[0])
            node = graph.get_attr(one.target)
        elif one.op == "placeholder":
            node = graph.placeholder(one.name)
        elif one.op == "output":
            node = graph.output(merge([each.args[0] for each in nodes]))
        else:
            arguments = merge([each.args for each in nodes])
            keywords = merge([dict(each.kwargs) for each in nodes])
            node = graph.call_function(one.target, arguments, keywords)
        if "shape" in one.meta:
            shapes = [each.meta["shape"] for each in nodes]
            if len({len(shape) for shape in shapes}) > 1:
                raise NotRecorded("another number of dimensions")
            node.meta["sizes"] = tuple(through(each) for each in zip(*shapes, strict=True))
            node.meta["dtype"] = one.meta["dtype"]
        for table, each in zip(made, nodes, strict=True):
            table[each] = node
    return fx.GraphModule(root, graph)


def sized(size: tuple[int, int, int, int], draws: object, rows: object) -> Any:
    return Size(*size).at(draws, rows)


def _alike(one: object, other: object) -> bool:
    if isinstance(one, Tensor):
        return (
            isinstance(other, Tensor)
            and (one.shape, one.dtype) == (other.shape, other.dtype)
            and bool(torch.isclose(one, other, rtol=0, atol=0, equal_nan=True).all())
        )
    return type(one) is type(other) and bool(one == other or (one != one and other != other))
