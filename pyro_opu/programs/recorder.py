"""One run of a program, written down as a graph of its tensor operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.func import functionalize
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from pyro_opu.checks import recording
from pyro_opu.programs.trace import before_calls
from pyro_opu.programs.vmap import Draws

#: ``(draws (S, ...), inputs) -> {name: (S, ...)}``.
Together = Callable[[Draws, Sequence[Tensor]], Draws]
aten = torch.ops.aten
#: Ways out of torch, by which a value would come back as a constant.
_OUT = {Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__}


class NotRecorded(Exception):
    """A program that is not one sequence of operations for all numbers of draws and rows."""


class NotValid(NotRecorded):
    """Arguments of distributions that are not what these may have."""

    def __init__(self) -> None:
        super().__init__("an argument of a distribution is not what it may be")


class OneRun(NamedTuple):
    """A graph, the names of its outputs, and the modules that were called."""

    graph: fx.GraphModule
    names: tuple[str, ...]
    modules: list[nn.Module]


def one_run(together: Together, draws: Draws, inputs: list[Tensor]) -> OneRun:
    """One run of the program as a graph of its tensor operations, none in place."""
    names: tuple[str, ...] = ()

    def run(*leaves: Tensor) -> list[Tensor]:
        nonlocal names
        found = together(
            dict(zip(draws, leaves[: len(draws)], strict=True)), list(leaves[len(draws) :])
        )
        names = tuple(found)
        return list(found.values())

    leaves = (*draws.values(), *inputs)
    with torch.no_grad(), _no_autocast_cache():
        with _called() as modules:
            graph = _Recorder.graph_of(run, leaves)
        if any(_schema(node) and _schema(node).is_mutable for node in graph.graph.nodes):
            graph = _Recorder.graph_of(functionalize(graph, remove="mutations"), leaves)
    graph.graph.eliminate_dead_code()
    return OneRun(graph, names, list(modules))


@contextmanager
def _called() -> Iterator[dict[nn.Module, None]]:
    """Modules that this thread calls inside, and all that are in these, in order."""
    found: dict[nn.Module, None] = {}

    def add(module: nn.Module) -> None:
        if module not in found:
            found.update(dict.fromkeys(module.modules()))

    with before_calls(add):
        yield found


@contextmanager
def _no_autocast_cache() -> Iterator[None]:
    """Inside, autocast makes what it casts anew: what it kept would be a constant."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


class _Recorder(TorchDispatchMode):
    """Writes down operations on tensors as ``make_fx`` does, with no fake tensor for each."""

    def __init__(self) -> None:
        super().__init__()
        self.graph, self.root = fx.Graph(), nn.Module()
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[Tensor] = []  # none has the id of one that is gone
        self._fixed: set[fx.Node] = set()  # numbers that are the same in every call
        self._memory: set[int] = set()  # of all others

    @classmethod
    def graph_of(cls, run: Callable[..., Any], leaves: Sequence[Tensor]) -> fx.GraphModule:
        """The graph ``(*leaves) -> list`` of what ``run`` does to tensors like these."""
        recorder, own = cls(), [leaf.clone() for leaf in leaves]  # known to nobody else
        for i, leaf in enumerate(own):
            recorder._enter(leaf, recorder.graph.placeholder(f"leaf_{i}"))
        with recording(), _Ways(recorder), recorder:
            found = run(*own)
        recorder.graph.output([recorder._node(each) for each in found])
        return fx.GraphModule(recorder.root, recorder.graph)

    def _enter(self, tensor: Tensor, node: fx.Node) -> fx.Node:
        node.meta |= {"shape": tensor.shape, "dtype": tensor.dtype}
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)
        if node not in self._fixed:
            self._memory.add(memory_of(tensor))
        return node

    def varies(self, tensor: object) -> bool:
        """Whether it is known to follow from draws or inputs."""
        node = self._nodes.get(id(tensor))
        return node is not None and node not in self._fixed

    def _node(self, value: object) -> Any:
        """The node of a tensor, a constant where it is new; all else stays."""
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._nodes:
            if memory_of(value) in self._memory - {0}:
                raise NotRecorded("a tensor whose origin torch does not tell, as of a Parameter")
            name = f"constant_{len(self._alive)}"
            setattr(self.root, name, value)
            node = self.graph.get_attr(name)
            if not value.requires_grad:  # parameters are read anew in every call
                self._fixed.add(node)
            self._enter(value, node)
        return self._nodes[id(value)]

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        with self:
            found = func.decompose(*args, **kwargs)
        if found is not NotImplemented:
            return found
        if func is aten.lift_fresh.default:
            func = aten.lift_fresh_copy.default  # who writes into it changes no constant
        given = tree_map(self._node, (args, kwargs))
        nodes = [each for each in tree_leaves(given) if isinstance(each, fx.Node)]
        fixed = bool(nodes) and all(node in self._fixed for node in nodes)
        result = func(*args, **kwargs)
        if torch.Tag.data_dependent_output in func.tags:
            if not fixed:
                raise NotRecorded(f"{func} reads a number out of a tensor, as for a branch")
            return result
        if _counts_what_it_finds(func, args) and not fixed:
            raise NotRecorded(f"{func} gives as many numbers as it finds")
        if func._schema.is_mutable and not fixed:
            self._fixed.clear()  # views of what was written into, too
        node = self.graph.call_function(func, *given)
        if fixed and torch.Tag.nondeterministic_seeded not in func.tags:
            self._fixed.add(node)
        if isinstance(result, Tensor):
            self._enter(result, node)
        elif isinstance(result, list | tuple):
            for i, each in enumerate(result):
                if isinstance(each, Tensor):
                    part = self.graph.call_function(getitem, (node, i))
                    if node in self._fixed:
                        self._fixed.add(part)
                    self._enter(each, part)
        return result


class _Ways(TorchFunctionMode):
    """Refuses ways out of torch to what follows from draws or inputs."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _OUT and self.recorder.varies(args[0]):
            raise NotRecorded(f"`{func.__name__}` takes a tensor out of torch")
        return func(*args, **(kwargs or {}))


def _counts_what_it_finds(func: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether the shape of what it gives depends on numbers: it would be a constant."""
    if func is aten.index.Tensor:
        return any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1])
    return torch.Tag.dynamic_output_shape in func.tags


def memory_of(tensor: Tensor) -> int:
    """Where its numbers are; 0 where it has none, or is of a kind that does not tell."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0


def _schema(node: fx.Node) -> Any:
    return getattr(node.target, "_schema", None) if node.op == "call_function" else None
