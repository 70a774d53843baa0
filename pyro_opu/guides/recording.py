"""A network read off what a posterior computes: a list of tensor operations with weights.

A teacher's *plug-in network*, its model under one draw, is run at two and at three rows and
recorded operation by operation. What differs between the records grows with the rows. The result
is plain values and tensors: it trains, saves, loads, compiles and exports without the model.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from pyro_opu.rng import preserve_rng
from pyro_opu.teachers.base import some_rows
from pyro_opu.teachers.plug_in import PlugIn

__all__ = ["Recorded", "Step", "Unrecorded", "dtype_of", "operation", "record"]

#: Operations of PyTorch's core library that a network may be made of: no randomness, nothing in
#: place, nothing that depends on a value.
KNOWN = frozenset(
    """
    linear matmul mm addmm mv bmm baddbmm einsum dot outer
    conv1d conv2d conv3d max_pool1d max_pool2d avg_pool1d avg_pool2d
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool2d
    relu gelu silu tanh sigmoid softplus leaky_relu elu selu hardtanh relu6 mish prelu hardswish
    log_sigmoid exp log log1p expm1 sqrt rsqrt square pow abs neg sin cos erf reciprocal
    add sub mul div rsub where clamp clamp_min clamp_max maximum minimum sign
    mean sum amax amin var std softmax log_softmax logsumexp cumsum norm
    layer_norm group_norm batch_norm rms_norm embedding index scaled_dot_product_attention
    lstm gru rnn_tanh rnn_relu
    reshape view flatten unflatten squeeze unsqueeze expand permute transpose t numpy_T movedim
    cat stack split split_with_sizes chunk unbind select slice index_select gather narrow repeat
    broadcast_tensors contiguous clone to _to_copy type_as expand_as view_as
    zeros ones full arange zeros_like ones_like full_like new_zeros new_ones new_full
    eq ne gt lt ge le logical_not logical_and tril triu masked_fill
    """.split()  # noqa: SIM905
)
#: Operations that leave their first argument as it is, as dropout does in a student.
_SAME = frozenset(
    """
    lift_fresh_copy lift_fresh detach detach_ alias
    dropout feature_dropout alpha_dropout feature_alpha_dropout
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Step:
    """One operation: its name in ``torch.ops.aten``, and arguments in which others are named.

    A value is a plain one, a list, or a dict of one entry: ``{"step": i}``, ``{"weight": name}``,
    ``{"x": 0}``, ``{"rows": k}`` for k N, ``{"dtype": name}``, ``{"device": 0}``.
    """

    name: str
    args: list[Any]
    kwargs: dict[str, Any]

    def map(self, change: Callable[[dict[str, Any]], Any]) -> Step:
        """The step with another value for every named input."""
        kwargs = {name: _map(value, change) for name, value in self.kwargs.items()}
        return Step(self.name, _map(self.args, change), kwargs)

    def inputs(self, key: str) -> list[Any]:
        """Names of the inputs of this kind, in order."""
        found: list[dict[str, Any]] = []
        self.map(found.append)
        return [value[key] for value in found if key in value]


@dataclass(frozen=True)
class Recorded:
    """Steps whose last result is the answer, and the tensors that they read.

    Attributes:
        steps: In order.
        weights: By name.
        trained: Names of those that are parameters or latents, not constants.
    """

    steps: list[Step]
    weights: dict[str, Tensor]
    trained: frozenset[str]

    def run(self, x: Tensor) -> Tensor:
        """The answer at x."""
        return self.rest(x, {}, len(x))

    def rest(self, x: Tensor | None, known: dict[int, Any], rows: int) -> Tensor:
        """The answer where some steps' results are known, by the steps that it still needs."""
        results = dict(known)

        def read(value: dict[str, Any]) -> Any:
            if "step" in value:
                return result(value["step"])
            if "weight" in value:
                return self.weights[value["weight"]]
            if "rows" in value:
                return value["rows"] * rows
            if "dtype" in value:
                return dtype_of(value["dtype"])
            if x is None:
                raise LookupError("the rest of the network reads the inputs too")
            return x if "x" in value else x.device

        def result(index: int) -> Any:
            if index not in results:
                step = self.steps[index].map(read)
                results[index] = operation(step.name)(*step.args, **step.kwargs)
            return results[index]

        for index in range(len(self.steps) if x is not None else 0):
            result(index)  # in order, so that a long network does not recurse
        answer: Tensor = result(len(self.steps) - 1)
        return answer

    def under(self, weights: Mapping[str, Tensor]) -> Recorded:
        """The same steps under other weights, where they are named."""
        return Recorded(self.steps, {**self.weights, **weights}, self.trained)

    def smoothed(self) -> Recorded:
        """The same steps with SiLU in the place of ReLU, as the average of many networks bends."""
        steps = [
            Step(f"silu.{step.name.partition('.')[2]}", step.args, step.kwargs)
            if step.name.partition(".")[0] == "relu"
            else step
            for step in self.steps
        ]
        return Recorded(steps, self.weights, self.trained)

    def until(self, step: int) -> Recorded:
        """The part that the result of this step needs, with its weights."""
        needed: set[int] = set()
        open_ones = [step]
        while open_ones:
            index = open_ones.pop()
            if index not in needed:
                needed.add(index)
                open_ones += self.steps[index].inputs("step")
        order = {old: new for new, old in enumerate(sorted(needed))}
        steps = [
            self.steps[old].map(lambda v: {"step": order[v["step"]]} if "step" in v else v)
            for old in order
        ]
        names = dict.fromkeys(name for each in steps for name in each.inputs("weight"))
        return Recorded(steps, {name: self.weights[name] for name in names}, self.trained)

    def joined(self, several: Mapping[int, int]) -> Recorded:
        """The part that the results of these steps need, ``(N,)`` or ``(N, F)``, side by side.

        They are given with their numbers of axes.
        """
        steps, parts = list(self.steps), []
        for index, axes in several.items():
            if axes == 1:
                steps.append(Step("unsqueeze.default", [{"step": index}, 1], {}))
            parts.append({"step": index if axes == 2 else len(steps) - 1})
        steps.append(Step("cat.default", [parts, 1], {}))
        return Recorded(steps, self.weights, self.trained).until(len(steps) - 1)

    def reads_inputs(self) -> bool:
        """Whether a step needs the inputs."""
        return any(step.inputs("x") for step in self.steps)


class Unrecorded(Exception):
    """What a model computes cannot be written as a list of known operations."""


@torch.no_grad()
def record(plug_in: PlugIn, weights: Mapping[str, Tensor], x: Tensor) -> Recorded:
    """What the network computes at ``x`` under these weights, for any number of rows.

    Raises:
        Unrecorded: it has an operation that is not :data:`KNOWN`, or whose form depends on values
            or, other than in proportion, on the number of rows.
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # which loads slowly

    names = list(weights)
    two, three = some_rows(x, 2), some_rows(x, 3)

    def function(x: Tensor, *values: Tensor) -> Tensor:
        return plug_in.log_probs(dict(zip(names, values, strict=True)), x)

    graphs = []
    with preserve_rng(), _plain_attention():
        for rows in (two, three):
            try:
                graphs.append(make_fx(function, pre_dispatch=True)(rows, *weights.values()))
            except Exception as error:  # noqa: BLE001 - control flow on values, custom functions
                raise Unrecorded(str(error).splitlines()[0][:200] if str(error) else "") from error
    found = _merged(graphs[0], graphs[1], names, dict(weights))
    for rows, graph in ((two, graphs[0]), (three, graphs[1])):
        expected = graph(rows, *weights.values())
        if not torch.allclose(found.run(rows), expected, atol=1e-5, equal_nan=True):
            raise Unrecorded("the record gives other numbers")
    if not torch.allclose(found.run(three)[:2], found.run(two), atol=1e-5, equal_nan=True):
        raise Unrecorded("the answer at a row depends on the others")
    return found


def _merged(
    two: fx.GraphModule, three: fx.GraphModule, names: list[str], weights: dict[str, Tensor]
) -> Recorded:
    """One list of steps from records at two and at three rows."""
    place: dict[fx.Node, Any] = {}
    steps: list[Step] = []
    trained = set(names)
    inputs = iter([{"x": 0}, *({"weight": name} for name in names)])
    if len(two.graph.nodes) != len(three.graph.nodes):
        raise Unrecorded("its operations depend on the number of rows")
    for node, other in zip(two.graph.nodes, three.graph.nodes, strict=True):
        if node.op == "placeholder":
            place[node] = next(inputs)
        elif node.op == "get_attr":
            value = getattr(two, node.target)
            if not isinstance(value, Tensor) or value.shape != getattr(three, other.target).shape:
                raise Unrecorded("a constant depends on the number of rows")
            name = next((k for k, v in weights.items() if v is value), f"constant{len(weights)}")
            weights[name] = value.detach()
            if isinstance(value, nn.Parameter):
                trained.add(name)
            place[node] = {"weight": name}
        elif node.op == "output":
            result = node.args[0]
            last = place[result[0] if isinstance(result, (list, tuple)) else result]
            if "step" not in last:
                raise Unrecorded("its answer is one of its inputs")
            return Recorded(steps, weights, frozenset(trained)).until(last["step"])
        elif node.target is not torch._C._set_grad_enabled:
            args = _both(node.args, other.args, place)
            kwargs = {
                name: _both(value, other.kwargs[name], place)
                for name, value in node.kwargs.items()
                if value is not None
            }
            name = _name(node.target)
            if name.split(".")[0] in _SAME:
                place[node] = args[0]
            else:
                place[node] = {"step": len(steps)}
                steps.append(Step(name, args, kwargs))
    raise Unrecorded("it has no answer")


def _name(target: Any) -> str:
    if target is operator.getitem:
        return "getitem"
    if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
        name = target._schema.name.partition("::")[2]
        if name in KNOWN | _SAME:
            return f"{name}.{target._overloadname}"
    raise Unrecorded(f"it calls {target}")


def operation(name: str) -> Callable[..., Any]:
    """The operation of this name.

    Raises:
        ValueError: not one of :data:`KNOWN`.
    """
    if name == "getitem":
        return operator.getitem
    short, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, short) if short in KNOWN else None
    if packet is None or overload not in packet.overloads():
        raise ValueError(f"{name!r:.50} is not an operation of a network")
    return getattr(packet, overload)


def _both(a: Any, b: Any, place: Mapping[fx.Node, Any]) -> Any:
    """An argument of the records at two and at three rows, as a value of :class:`Step`."""
    if isinstance(a, fx.Node):
        return place[a]
    if isinstance(a, (list, tuple)):
        return [_both(i, j, place) for i, j in zip(a, b, strict=True)]
    if isinstance(a, torch.dtype):
        a = torch.float32 if a == torch.float64 else a
        return {"dtype": str(a).removeprefix("torch.")}
    if isinstance(a, torch.device):
        return {"device": 0}
    if a is None or isinstance(a, (bool, float, str)):
        if a != b:
            raise Unrecorded("a number depends on the rows")
        return a
    if isinstance(a, int):
        if a == b:
            return a
        if 2 * b == 3 * a:
            return {"rows": a // 2}
    if isinstance(a, (torch.layout, torch.memory_format)):
        return None
    raise Unrecorded(f"an argument {a!r} grows with the rows in another way")


def _map(value: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """Change every named input in nested lists."""
    if isinstance(value, list):
        return [_map(each, change) for each in value]
    return change(value) if isinstance(value, dict) else value


@contextmanager
def _plain_attention() -> Any:
    """Record attention as the operations that can be trained, not as one fast path of inference."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def dtype_of(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r:.50} is no dtype")
    return found
