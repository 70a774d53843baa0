"""A network made of recorded operations; it needs no code of the model that they come from."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, fx, nn

from pyro_opu.guides.recorded import Recorded, Step, dtype_of, operation

__all__ = ["Operations"]


class Operations(nn.Module):
    """A network made of recorded operations, ``x (N, *input_shape) -> (N, ...)``.

    Args:
        config: "steps" as ``[name, args, kwargs]`` and "weights" by name as ``[shape, dtype,
            trained]``.

    Raises:
        ValueError: a step that is not one of :data:`KNOWN`.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        root, graph = nn.Module(), fx.Graph()
        x = graph.placeholder("x")
        rows = graph.call_method("size", (x, 0))
        places: dict[str, fx.Node] = {}
        self.shapes = [tuple(shape) for shape, _, _ in config["weights"].values()]
        for number, (name, (shape, dtype, trained)) in enumerate(config["weights"].items()):
            empty = torch.zeros(shape, dtype=dtype_of(dtype))
            if trained:
                root.register_parameter(f"w{number}", nn.Parameter(empty))
            else:
                root.register_buffer(f"w{number}", empty)
            places[name] = graph.get_attr(f"w{number}")
        done: list[fx.Node] = []

        def read(value: dict[str, Any]) -> Any:
            if "step" in value:
                return done[value["step"]]
            if "weight" in value:
                return places[value["weight"]]
            if "x" in value:
                return x
            if "rows" in value:
                return graph.call_function(operator.mul, (rows, int(value["rows"])))
            if "device" in value:
                return graph.call_function(getattr, (x, "device"))
            if value["dtype"] == "float32":  # or what the student is cast to
                return graph.call_function(getattr, (x, "dtype"))
            return dtype_of(value["dtype"])

        for name, args, kwargs in config["steps"]:
            step = Step(name, args, kwargs).map(read)
            done.append(graph.call_function(operation(name), tuple(step.args), step.kwargs))
        graph.output(done[-1])
        graph.eliminate_dead_code()
        for node in graph.nodes:
            if node.target == _RELU and _is_fresh(node.args[0]):
                node.target = torch.ops.aten.relu_.default  # in whose place nothing else is read
        self.graph = fx.GraphModule(root, graph)

    @classmethod
    def describe(cls, found: Recorded) -> dict[str, Any]:
        """The config of a network that computes what was recorded."""
        weights = {
            name: [list(value.shape), *_kind(value, name in found.trained)]
            for name, value in found.weights.items()
        }
        return {"steps": [[s.name, s.args, s.kwargs] for s in found.steps], "weights": weights}

    @property
    def computes(self) -> bool:
        """Whether a weight is a number; else it picks or compares inputs, also in float64."""
        weights = (*self.parameters(), *self.buffers())
        return any(weight.is_floating_point() for weight in weights)

    def fits(self, found: Recorded) -> bool:
        """Whether the weights of a record are as many, and of the shapes, of those here."""
        return [tuple(value.shape) for value in found.weights.values()] == self.shapes

    @torch.no_grad()
    def start_at(self, weights: Iterable[Tensor]) -> None:
        """Begin with these weights, in the order of the config.

        Weights that decayed to subnormal numbers are 0: a convolution with a few takes three times
        as long.
        """
        for number, value in enumerate(weights):
            own: Tensor = getattr(self.graph, f"w{number}").copy_(value)
            if own.is_floating_point():
                own.masked_fill_(own.abs() < torch.finfo(own.dtype).tiny, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        """What the last step gives."""
        answer: Tensor = self.graph(x)
        return answer


_RELU = torch.ops.aten.relu.default
#: Operations whose result is a tensor of its own, which no derivative of theirs reads.
_FRESH = {"linear", "addmm", "mm", "matmul", "bmm", "conv1d", "conv2d", "conv3d", "batch_norm"}
_FRESH |= {"add", "layer_norm", "group_norm"}


def _is_fresh(node: fx.Node) -> bool:
    """Whether an operation makes it anew, and one alone reads it."""
    name = getattr(node.target, "_opname", "")
    return name in _FRESH and len(node.users) == 1


def _kind(value: Tensor, trained: bool) -> tuple[str, bool]:
    """Name of a weight's dtype in the trunk, and whether it is trained."""
    real = value.is_floating_point()
    return str(torch.float32 if real else value.dtype).removeprefix("torch."), real and trained
