"""The one-pass path without Python's overhead: a CUDA graph, or compiled code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pyro_opu.checks import ArgumentError, instance_of
from pyro_opu.distributions import Answer, as_answer
from pyro_opu.guides.base import in_dtype_of, trunks_of
from pyro_opu.guides.fused import fused
from pyro_opu.guides.joint import marginal_of
from pyro_opu.guides.plug_in import NetworkTrunk
from pyro_opu.inputs import PLAIN, Form
from pyro_opu.rng import preserve_rng
from pyro_opu.utils.graphs import record

Tensors = tuple[Tensor, ...]
_MATRIX_PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Captured:
    """A student frozen for fast answers; made by :func:`capture`.

    ``captured(x)`` is ``fast.dirichlet(x)`` (``fast.normal(x)`` of a regression student) without
    gradients. It checks the shape of x, not that it is finite: NaN in is NaN out. Inputs on the
    host are streamed to a student on a GPU, and the answer is where they are.

    Attributes:
        kind: "cuda graph", "compiled" or "eager".
        rows: Rows that a replay of the graph takes; ``None``: any number.
        reason: Why it is not compiled, where it is not.
    """

    def __init__(
        self,
        run: Callable[[Tensor], Tensors],
        answer: Callable[..., object],
        like: Tensor,
        kind: Literal["cuda graph", "compiled", "eager"],
        reason: str = "",
    ) -> None:
        self.form: Form = PLAIN
        self.then: Callable[[Any], Any] | None = None  # what a caller makes of an answer
        self._run, self._answer = run, answer
        self._shape, self._dtype, self._device = like.shape[1:], like.dtype, like.device
        self.kind, self.reason = kind, reason
        self.rows = len(like) if kind == "cuda graph" else None

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Any:
        """The student's answer at ``x`` ``(N, *input_shape)``, N >= 1.

        Raises:
            ValueError: another shape, or a device that is neither the student's nor the host.
        """
        if self.form != PLAIN:  # numbers that are not finite are let through
            x = self.form.pack(x, check_seen=True)
        if x.shape[1:] != self._shape or not len(x):
            raise ArgumentError(
                f"`x` must have shape (N, {', '.join(map(str, self._shape))}), N >= 1, as the "
                f"example; got {tuple(x.shape)}. Reshape it."
            )
        if x.device != self._device and x.device.type != "cpu":
            raise ArgumentError(
                f"`x` must be on {self._device}, where the student is, or on the CPU; got "
                f"{x.device}. Move it with .to(device)."
            )
        answer = self._answer(*self._run(x.to(self._dtype)))
        return answer if self.then is None else self.then(answer)

    def __repr__(self) -> str:
        rows = "any number of rows" if self.rows is None else f"{self.rows} rows at a time"
        return f"Captured({self.kind}, {rows}{self.reason and ': '}{self.reason})"


class StaticPass:
    """A pass ``forward`` on a buffer ``(B, *input_shape)``, for any number of rows.

    Rows are copied to the front of the buffer, in chunks where there are more than B. From the host
    they go through pinned stages in turn, each with an event that says when it has been read, so
    that one is filled while the other is on its way.

    A subclass overrides :meth:`replay`. A graph holds addresses, not tensors, so the pass keeps
    ``forward``, and with it the parameters that it reads.
    """

    def __init__(
        self,
        forward: Callable[[Tensor], Tensors],
        buffer: Tensor,
        stages: Sequence[tuple[Tensor, torch.cuda.Event]] = (),
    ) -> None:
        self.forward, self.buffer, self.stages = forward, buffer, stages

    def replay(self) -> Tensors:
        """Run the pass on the buffer; the next replay may overwrite what it returns."""
        return self.forward(self.buffer)

    def __call__(self, x: Tensor) -> Tensors:
        """The answers at ``x`` ``(N, *input_shape)``, ``(N, ...)`` each, on its device."""
        parts = []
        with torch.cuda.device_of(self.buffer):  # the events are for its streams
            for number, rows in enumerate(x.split(len(self.buffer))):
                self._fill(rows, number)
                parts.append([value[: len(rows)].clone() for value in self.replay()])
        if len(parts) == 1:
            return tuple(value.to(x.device) for value in parts[0])
        return tuple(torch.cat(values).to(x.device) for values in zip(*parts, strict=True))

    def _fill(self, rows: Tensor, number: int) -> None:
        into = self.buffer[: len(rows)]
        if rows.is_cuda or not self.stages:
            into.copy_(rows)
            return
        stage, has_been_read = self.stages[number % len(self.stages)]
        has_been_read.synchronize()
        stage[: len(rows)].copy_(rows)
        into.copy_(stage[: len(rows)], non_blocking=True)
        has_been_read.record()


class GraphPass(StaticPass):
    """A pass recorded as a CUDA graph on the device of ``like``, ``(B, *input_shape)``."""

    def __init__(self, forward: Callable[[Tensor], Tensors], like: Tensor) -> None:
        with torch.cuda.device(like.device), torch.no_grad():
            pinned = [torch.empty_like(like, device="cpu").pin_memory() for _ in range(2)]
            super().__init__(forward, like.clone(), [(p, torch.cuda.Event()) for p in pinned])
            with preserve_rng():
                self._graph, self._written = _recorded(forward, self.buffer)

    def replay(self) -> Tensors:
        """Launch the graph; the next replay overwrites what it returns."""
        self._graph.replay()
        return self._written


def _recorded(forward: Callable[[Tensor], Tensors], buffer: Tensor) -> tuple[Any, Tensors]:
    """One pass on the current device: the graph, and the tensors it writes."""
    try:
        return record(lambda: forward(buffer), buffer)
    except RuntimeError as error:
        reason = str(error.__context__ or error).partition("\n")[0]
        raise ArgumentError(
            "`guide` must be one that can be captured in a CUDA graph: it may not wait for "
            f"the host or depend on values of x ({reason}). Call fast.dirichlet instead."
        ) from error


class _HalfTrunk(nn.Module):
    """A trunk whose matrix products are in half precision; its features keep their dtype."""

    def __init__(self, trunk: nn.Module, precision: torch.dtype) -> None:
        super().__init__()
        self.trunk, self.precision = trunk, precision
        self.dtype = next(trunk.parameters(), torch.empty(0)).dtype
        for module in trunk.modules():  # cast once, rather than in every pass
            if isinstance(module, _MATRIX_PRODUCTS):
                module.to(precision)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, self.precision):
            features = self.trunk(x)
        return features.to(self.dtype)


@preserve_rng()
def capture(guide: nn.Module, example: Tensor, *, precision: torch.dtype | None = None) -> Captured:
    """Make the pass to a guide's Dirichlet (or normal) as fast as the machine allows.

    The guide is fused (:func:`~pyro_opu.guides.fused.fused`), and compiled by ``torch.compile`` if
    that works here: it takes some seconds, and on the CPU a C++ compiler. On a GPU the pass is then
    recorded as a CUDA graph for as many rows as ``example`` has. Fewer are padded and more are cut,
    so capture one pass for N = 1 and another for a thousand rows. On the CPU it takes any number of
    rows. ``kind`` says what it is, ``reason`` why it is not compiled.

    The answers are the guide's to rounding, 1e-5 in the logarithms of mean and concentration. It is
    a snapshot, which later changes of the guide do not reach, and not for several threads at once.

    Args:
        guide: Module ``x -> answer`` on its device; ``fast.capture`` checks the inputs too.
        example: Finite inputs ``(B, *input_shape)`` on that device. Later inputs are rounded to its
            dtype: pass float64 where float32 has too few digits, as for time stamps.
        precision: ``torch.bfloat16`` or ``torch.float16`` for the matrix products of the trunk
            alone, which leaves two to three digits, or three to four; by default the guide's.

    Returns:
        ``x -> PredictiveDirichlet``, for another family the one with its moments; for a regression
        guide ``x -> PredictiveNormal``.

    Raises:
        TypeError: ``guide`` is not a module, or does not answer with a distribution.
        ValueError: another precision, or a guide without a ``trunk`` for it; a guide that cannot be
            captured in a CUDA graph, as the logistic normal, whose points come from the host.

    Example:
        >>> from pyro_opu import PredictiveGuide
        >>> x = torch.randn(9, 4)
        >>> captured = capture(PredictiveGuide.for_inputs(x, 3, hidden=(8,)), x)
        >>> captured
        Captured(compiled, any number of rows)
        >>> captured(x[:1]).mean.shape
        torch.Size([1, 3])
    """
    advice = "Pass fast.guide, or call the student's own method."
    instance_of("guide", guide, nn.Module, "a module x -> answer", advice)
    like = in_dtype_of(guide, example.detach())
    copied = _snapshot(guide, precision)
    for module in copied.modules() if like.is_cuda else ():
        if isinstance(module, NetworkTrunk):
            module.rows = len(like)
    with torch.no_grad():
        answer = as_answer(copied(like))  # errors of the guide itself are raised here
    return captured(*tensor_pass(copied, answer), like)


def captured(
    forward: Callable[[Tensor], Tensors], rebuild: Callable[..., Any], like: Tensor
) -> Captured:
    """A pass from tensor to tensors, compiled, and on a GPU as a CUDA graph.

    Args:
        forward: The pass, without checks.
        rebuild: What an answer is, from these tensors.
        like: Inputs ``(B, ...)``.
    """
    reason = ""
    try:
        forward = _compiled(forward, like)
    except Exception as error:  # whatever the compiler cannot do, the pass itself runs
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    if like.is_cuda:
        return Captured(GraphPass(forward, like), rebuild, like, "cuda graph", reason)
    return Captured(forward, rebuild, like, "eager" if reason else "compiled", reason)


def _snapshot(guide: nn.Module, precision: torch.dtype | None) -> nn.Module:
    """A frozen copy of the guide, fused, its trunks in half precision if so asked."""
    guide = fused(marginal_of(guide), trunks=precision is None)
    if precision is None:
        return guide
    if precision not in (torch.bfloat16, torch.float16):
        raise ArgumentError(
            f"`precision` must be torch.bfloat16 or torch.float16; got {precision}. By default "
            "all is in the student's own."
        )
    for name, trunk in trunks_of(guide).items():
        setattr(guide, name, _HalfTrunk(trunk, precision))
    return guide


def tensor_pass(
    guide: nn.Module, answer: Answer
) -> tuple[Callable[[Tensor], Tensors], Callable[..., Answer]]:
    """The pass from tensor to tensors, without checks, and the inverse that builds an answer."""
    matched = answer.matched()
    names = tuple(matched.as_tensors())

    def forward(x: Tensor) -> Tensors:
        return tuple(as_answer(guide(x)).matched().as_tensors().values())

    return forward, lambda *values: matched.from_tensors(dict(zip(names, values, strict=True)))


def _of_its_own(forward: Any) -> FunctionType:
    """The same function with other code: torch limits how often what students share is compiled."""
    code, names = forward.__code__.replace(), forward.__globals__
    return FunctionType(code, names, closure=forward.__closure__)


def _compiled(forward: Callable[[Tensor], Tensors], like: Tensor) -> Callable[[Tensor], Tensors]:
    """Compile the pass for one row and for several; on a GPU for the rows of a graph."""
    examples = [like] if like.is_cuda else [like[:1], torch.cat([like, like])]
    distribution = torch.distributions.Distribution
    validates = distribution._validate_args  # the compiler switches it off for all distributions
    try:
        compiled = torch.compile(_of_its_own(forward), fullgraph=True, dynamic=not like.is_cuda)

        def run(x: Tensor) -> Tensors:
            return compiled(x.data.contiguous())  # a view would be compiled again

        with torch.no_grad():
            for example in examples:
                run(example)
        return run
    finally:
        distribution.set_default_validate_args(validates)
