"""A list of tensor operations with weights: a network as plain values.

It trains, saves, loads, compiles and exports without the model that it was recorded from.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

__all__ = ["KNOWN", "Recorded", "Step", "changed", "dtype_of", "operation"]

#: Operations of PyTorch's core library that a network may be made of: no randomness, nothing in
#: place, nothing that depends on a value.
KNOWN = frozenset(
    """
    linear matmul mm addmm mv bmm baddbmm einsum dot outer mT
    linalg_cholesky_ex linalg_solve_triangular eye diagonal diag_embed addcmul addcdiv
    cdist _cdist_forward _euclidean_dist
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d max_pool1d max_pool2d avg_pool1d
    avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool2d upsample_nearest2d
    upsample_bilinear2d pad constant_pad_nd reflection_pad2d replication_pad2d
    pixel_shuffle channel_shuffle roll flip
    relu gelu silu tanh sigmoid softplus leaky_relu elu selu celu hardtanh relu6 mish prelu rrelu
    glu hardswish hardsigmoid hardshrink softshrink threshold log_sigmoid
    exp log log1p expm1 sqrt rsqrt square pow abs neg sin cos erf reciprocal floor
    add sub mul div rsub lerp where clamp clamp_min clamp_max maximum minimum sign
    mean sum amax amin var std softmax _softmax log_softmax _log_softmax logsumexp cumsum norm
    linalg_vector_norm layer_norm group_norm batch_norm instance_norm rms_norm embedding index
    scaled_dot_product_attention lstm gru rnn_tanh rnn_relu
    reshape view _unsafe_view flatten unflatten squeeze unsqueeze expand permute transpose t numpy_T
    movedim swapaxes swapdims cat stack split split_with_sizes chunk unbind select slice
    index_select gather narrow
    repeat broadcast_tensors contiguous clone to _to_copy type_as expand_as view_as
    zeros ones full arange zeros_like ones_like full_like new_zeros new_ones new_full
    fill zero index_put
    scalar_tensor copy slice_scatter select_scatter diagonal_scatter
    eq ne gt lt ge le logical_not logical_and logical_or
    bitwise_not bitwise_and bitwise_or tril triu masked_fill
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Step:
    """One operation: its name in ``torch.ops.aten``, and arguments in which others are named.

    A value is a plain one, a list, or a dict of one entry: ``{"step": i}``, ``{"weight": name}``,
    ``{"x": 0}``, ``{"rows": k}`` for k N, ``{"dtype": name}``, ``{"device": 0}``. The dtype
    "float32" is that of the inputs.
    """

    name: str
    args: list[Any]
    kwargs: dict[str, Any]

    def map(self, change: Callable[[dict[str, Any]], Any]) -> Step:
        """The step with another value for every named input."""
        kwargs = {name: changed(value, change) for name, value in self.kwargs.items()}
        return Step(self.name, changed(self.args, change), kwargs)

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
        """The answer where some steps' results are known, by the steps that it still needs.

        A result goes when the last step that reads it is done: nothing refers in a circle to what
        a pass has made.
        """
        results = dict(known)
        like = next(iter(known.values())) if x is None else x

        def read(value: dict[str, Any]) -> Any:
            if "step" in value:
                return results[value["step"]]
            if "weight" in value:
                return self.weights[value["weight"]]
            if "rows" in value:
                return value["rows"] * rows
            if "dtype" in value:
                return like.dtype if value["dtype"] == "float32" else dtype_of(value["dtype"])
            if "device" in value:
                return like.device
            if x is None:
                raise LookupError("the rest of the network reads the inputs too")
            return x

        last = len(self.steps) - 1
        for index in range(last + 1) if x is not None else self._needed(last, known):
            if index not in results:
                step = self.steps[index].map(read)
                results[index] = operation(step.name)(*step.args, **step.kwargs)
                del step
            for done in self._done_after[index]:
                results.pop(done, None)
        answer: Tensor = results[last]
        return answer

    @cached_property
    def _done_after(self) -> dict[int, list[int]]:
        """By steps, those that no later one reads."""
        done: dict[int, list[int]] = {}
        seen: set[int] = set()
        for index in reversed(range(len(self.steps))):
            done[index] = [each for each in self.steps[index].inputs("step") if each not in seen]
            seen.update(done[index])
        return done

    def _needed(self, step: int, known: Collection[int] = ()) -> list[int]:
        """This step and all whose results it needs, in order, where some are known."""
        needed: set[int] = set()
        open_ones = [step]
        while open_ones:
            index = open_ones.pop()
            if index not in needed and index not in known:
                needed.add(index)
                open_ones += self.steps[index].inputs("step")
        return sorted(needed)

    def under(self, weights: Mapping[str, Tensor]) -> Recorded:
        """The same steps under other weights, where they are named."""
        known = {k: v.to(self.weights[k].dtype) for k, v in weights.items() if k in self.weights}
        return Recorded(self.steps, {**self.weights, **known}, self.trained)

    def in_double(self) -> Recorded:
        """The same steps with their weights in float64, for inputs in float64."""
        pairs = self.weights.items()
        doubled = {k: v.double() if v.is_floating_point() else v for k, v in pairs}
        return Recorded(self.steps, doubled, self.trained)

    def until(self, step: int) -> Recorded:
        """The part that the result of this step needs, with its weights."""
        order = {old: new for new, old in enumerate(self._needed(step))}
        steps = [
            self.steps[old].map(lambda v: {"step": order[v["step"]]} if "step" in v else v)
            for old in order
        ]
        names = dict.fromkeys(name for each in steps for name in each.inputs("weight"))
        return Recorded(steps, {name: self.weights[name] for name in names}, self.trained)

    def joined(self, several: Mapping[int, int]) -> Recorded:
        """The part that the results of these steps need, ``(N, ...)``, side by side in one axis.

        They are given with their numbers of axes.
        """
        steps, parts = list(self.steps), []
        for index, axes in several.items():
            if axes == 1:
                steps.append(Step("unsqueeze.default", [{"step": index}, 1], {}))
            elif axes > 2:
                steps.append(Step("flatten.using_ints", [{"step": index}, 1], {}))
            parts.append({"step": index if axes == 2 else len(steps) - 1})
        steps.append(Step("cat.default", [parts, 1], {}))
        return Recorded(steps, self.weights, self.trained).until(len(steps) - 1)

    def folded(self, x: Tensor) -> Recorded:
        """The same steps but for those that no input changes, whose results are weights."""
        fixed: set[int] = set()
        for index, step in enumerate(self.steps):
            if not (step.inputs("x") or step.inputs("rows") or {*step.inputs("step")} - fixed):
                fixed.add(index)
        weights = dict(self.weights)

        def read(value: dict[str, Any]) -> dict[str, Any]:
            if value.get("step") not in fixed:
                return value
            name = f"folded{value['step']}"
            if name not in weights:
                weights[name] = self.until(value["step"]).run(x)
            return {"weight": name}

        steps = [s if i in fixed else s.map(read) for i, s in enumerate(self.steps)]
        return Recorded(steps, weights, self.trained).until(len(steps) - 1)

    def reads_inputs(self) -> bool:
        """Whether a step needs the inputs."""
        return any(step.inputs("x") for step in self.steps)


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


def changed(value: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """Change every named input in nested lists."""
    if isinstance(value, list):
        return [changed(each, change) for each in value]
    return change(value) if isinstance(value, dict) else value


def dtype_of(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r:.50} is no dtype")
    return found
