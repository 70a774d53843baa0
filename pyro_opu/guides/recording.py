"""A network read off what a posterior computes.

A teacher's *plug-in network*, its model under one draw, is run at two and at three rows and
recorded operation by operation. What differs between the records grows with the rows.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from pyro_opu.guides.recorded import KNOWN, Recorded, Step
from pyro_opu.guides.writes import Unrecorded, without_writes
from pyro_opu.programs.plug_in import PlugIn
from pyro_opu.rng import exclusive, preserve_rng
from pyro_opu.utils.chunks import some_rows

__all__ = ["Unrecorded", "record"]

#: Operations that leave their first argument as it is, as dropout does in a student.
_SAME = frozenset(
    """
    lift_fresh_copy lift_fresh detach detach_ alias
    dropout feature_dropout alpha_dropout feature_alpha_dropout
    """.split()  # noqa: SIM905
)


#: What the name of another operation begins with, which is refused if the answer needs it.
UNKNOWN = "unknown "


@torch.no_grad()
def record(plug_in: PlugIn, weights: Mapping[str, Tensor], x: Tensor) -> Recorded:
    """What the network computes at ``x`` under these weights, for any number of rows.

    Raises:
        Unrecorded: it has an operation that is not :data:`KNOWN`, or whose form depends on values
            or, other than in proportion, on the number of rows.
    """
    from torch._guards import TracingContext, tracing
    from torch._subclasses import FakeTensorMode  # which loads slowly, as what follows
    from torch.fx.experimental.proxy_tensor import make_fx

    if x.dtype in (torch.float16, torch.bfloat16):
        raise Unrecorded(f"it computes in {x.dtype}; pass source.float() and x.float()")
    names = list(weights)
    two, three = some_rows(x, 2), some_rows(x, 3)

    def function(x: Tensor, *values: Tensor) -> Tensor:
        named = dict(zip(names, values, strict=True))
        if plug_in.deviations:
            return torch.func.vmap(lambda row: plug_in.log_probs(named, row[None])[0])(x)
        return plug_in.log_probs(named, x)

    graphs = []
    by_row = bool(plug_in.deviations)  # which is seen only below what maps over rows
    traced = torch.func.functionalize(function) if by_row else function
    shapes = TracingContext(FakeTensorMode())  # one for all tensors, or each has its own, slowly
    with preserve_rng(), _plain_attention(), tracing(shapes):
        for rows in (two, three):
            try:
                traces = make_fx(traced, pre_dispatch=not by_row)
                graph = traces(rows.clone(), *weights.values())
                graphs.append(without_writes(graph, rows, *weights.values()))
            except Unrecorded:
                raise
            except Exception as error:  # noqa: BLE001 - control flow on values, custom functions
                raise Unrecorded(str(error).splitlines()[0][:200] if str(error) else "") from error
    found = _merged(graphs[0], graphs[1], names, dict(weights), x.dtype == torch.float32)
    if x.dtype == torch.float64:
        found = found.in_double()
    up = {n: v + 1.0 if n in plug_in.deviations else v for n, v in weights.items()}
    for rows, graph in ((two, graphs[0]), (three, graphs[1])):
        expected = graph(rows, *up.values())
        try:
            given = found.under(up).run(rows)
        except RuntimeError as error:  # float64 among what is float32 in a student
            raise Unrecorded("the record does not run") from error
        if not torch.allclose(given, expected.to(given), atol=1e-5, equal_nan=True):
            raise Unrecorded("the record gives other numbers")
    if not torch.allclose(found.run(three)[:2], found.run(two), atol=1e-5, equal_nan=True):
        raise Unrecorded("the answer at a row depends on the others")
    return found


def _merged(
    two: fx.GraphModule,
    three: fx.GraphModule,
    names: list[str],
    weights: dict[str, Tensor],
    exact: bool,
) -> Recorded:
    """One list of steps from records at two and at three rows.

    A float64 is what the student is cast to, but where ``exact`` and the inputs change nothing.
    """
    place: dict[fx.Node, Any] = {}
    steps: list[Step] = []
    trained = set(names)
    inputs = iter([{"x": 0}, *({"weight": name} for name in names)])
    varying: set[fx.Node] = set()  # with the inputs
    if len(two.graph.nodes) != len(three.graph.nodes):
        raise Unrecorded("its operations depend on the number of rows")
    for node, other in zip(two.graph.nodes, three.graph.nodes, strict=True):
        if node.op == "placeholder":
            place[node] = next(inputs)
            if "x" in place[node]:
                varying.add(node)
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
            found = Recorded(steps, weights, frozenset(trained)).until(last["step"])
            if unknown := [step.name for step in found.steps if step.name.startswith(UNKNOWN)]:
                raise Unrecorded(f"it calls {unknown[0].removeprefix(UNKNOWN)}")
            return found
        elif node.target is not torch._C._set_grad_enabled:
            args = _both(node.args, other.args, place)
            kwargs = {
                name: _both(value, other.kwargs[name], place)
                for name, value in node.kwargs.items()
                if value is not None
            }
            name = _name(node.target)
            step = Step(name, args, kwargs)
            if varying & set(node.all_input_nodes):
                varying.add(node)
            if node in varying or not exact:
                step = step.map(_single)
            if name.split(".")[0] in _SAME:
                place[node] = args[0]
            else:
                place[node] = {"step": len(steps)}
                steps.append(step)
    raise Unrecorded("it has no answer")


def _name(target: object) -> str:
    if target is operator.getitem:
        return "getitem"
    if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
        name = target._schema.name.partition("::")[2]
        if name in KNOWN | _SAME:
            return f"{name}.{target._overloadname}"
    if isinstance(target, torch._ops.OpOverload):
        return f"{UNKNOWN}{target}"
    raise Unrecorded(f"it calls {target}")


def _both(a: Any, b: Any, place: Mapping[fx.Node, object]) -> Any:
    """An argument of the records at two and at three rows, as a value of :class:`Step`."""
    if isinstance(a, fx.Node):
        return place[a]
    if isinstance(a, (list, tuple)):
        return [_both(i, j, place) for i, j in zip(a, b, strict=True)]
    if isinstance(a, torch.dtype):
        return {"dtype": str(a).removeprefix("torch.")}
    if isinstance(a, torch.device):
        return {"device": 0}
    if a is None or isinstance(a, (bool, float, str)):
        if str(a) != str(b):  # nan is not nan
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


def _single(value: dict[str, Any]) -> dict[str, Any]:
    return {"dtype": "float32"} if value == {"dtype": "float64"} else value


@contextmanager
def _plain_attention() -> Any:
    """Record attention as the operations that can be trained, not as one fast path of inference."""
    with exclusive():
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(before)
