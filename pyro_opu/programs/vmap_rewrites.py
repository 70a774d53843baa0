"""Quicker ways to what torch is slow at, on a processor, for many draws of few classes.

Without them labels and softmax are most of what a logistic regression costs: 2.5 million numbers in
rows of 10 take ``softmax`` 36 ms and ``exp`` 2 ms, and a categorical label takes as many
exponential variates as there are classes. Of a convolutional network pooling is most: a maximum of
halves takes a fifteenth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

#: Numbers in a row from which torch's softmax is as fast as its exp.
LONG_ROW = 32


class QuickOps(TorchFunctionMode):
    """Inside, a label takes one uniform number, and softmax of a short row an exp of each number.

    That is of ``torch.bernoulli``, ``torch.multinomial`` and ``torch.nn.functional.softmax``, which
    torch's distributions call. A ``max_pool2d`` of pairs is the maximum of slices.

    Attributes:
        convolved: Whether there was a convolution.
        attended: Whether there was attention, of which torch has fused kernels outside alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.convolved = self.attended = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.softmax and kwargs.get("dim") == -1 and not kwargs.get("dtype"):
            x = args[0]
            if not x.is_cuda and x.dim() and 0 < x.shape[-1] < LONG_ROW:
                return (x - x.logsumexp(-1, keepdim=True)).exp()
        if func is functional.max_pool2d and not args[0].is_cuda and _of_pairs(*args, **kwargs):
            return _pooled(args[0])
        one_each = func is torch.multinomial and len(args) > 1 and args[1] == 1
        if (one_each or func is torch.bernoulli) and len(args) < 4 and not kwargs:
            return _Labels.apply(args[0], one_each)
        if func is torch.binomial and len(args) == 2:  # vmap wants both to differ between draws
            args = args[0] + torch.zeros_like(args[1]), args[1]
        self.convolved |= func in _CONVOLUTIONS
        self.attended |= func in _ATTENTION
        return func(*args, **kwargs)


_CONVOLUTIONS = {torch.conv1d, torch.conv2d, torch.conv3d}
_ATTENTION = {functional.scaled_dot_product_attention, functional.multi_head_attention_forward}


_CHECKS: ContextVar[list[Tensor] | None] = ContextVar("checks of a program", default=None)


@contextmanager
def later() -> Iterator[list[Tensor]]:
    """Inside, what is asked of numbers is kept as tensors, all of which must hold in the end."""
    checks: list[Tensor] = []
    token = _CHECKS.set(checks)
    try:
        yield checks
    finally:
        _CHECKS.reset(token)


def require(checks: Callable[[], tuple[Tensor, ...]], message: str) -> None:
    """Raise ``message`` unless all of these hold, or keep them for who asks :func:`later`."""
    kept = _CHECKS.get()
    if kept is not None:
        kept.extend(checks())
    elif not all(bool(check) for check in checks()):
        raise RuntimeError(message)


class _Labels(torch.autograd.Function):
    """Labels from probabilities: of each number, or if ``classes`` of each last axis ``(..., 1)``.

    ``vmap`` hands over the tensors of all draws, so that what they hold can be refused.
    """

    @staticmethod
    def forward(probs: Tensor, classes: bool) -> Tensor:
        return _classes(probs) if classes else _ones(probs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: Any, probs: Tensor, classes: bool) -> tuple[Tensor, int]:
        if in_dims[0] is None:
            probs = probs.expand(info.batch_size, *probs.shape)
        else:
            probs = probs.movedim(in_dims[0], 0)
        return _Labels.apply(probs, classes), 0


def _of_pairs(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> bool:
    """Whether a pooling halves both axes."""
    plain = not ceil_mode and not return_indices and padding in (0, (0, 0))
    twos = kernel_size in (2, (2, 2)) and stride in (None, 2, (2, 2))
    return plain and twos and dilation in (1, (1, 1)) and min(x.shape[-2:]) > 1


def _pooled(x: Tensor) -> Tensor:
    """The maximum of every 2 x 2 numbers; a last odd row or column is left out."""
    x = x[..., : x.shape[-2] // 2 * 2, : x.shape[-1] // 2 * 2]
    rows = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
    return torch.maximum(rows[..., ::2], rows[..., 1::2])


def _ones(probs: Tensor) -> Tensor:
    """1 with these probabilities, else 0."""
    if probs.numel():
        require(
            lambda: ((ends := probs.aminmax()).min >= 0, ends.max <= 1),
            "a Bernoulli's probabilities must be numbers from 0 to 1",
        )
    return (torch.rand_like(probs) < probs).to(probs.dtype)


def _classes(weights: Tensor) -> Tensor:
    """A class ``(..., 1)`` of each row of weights, which need not sum to 1."""
    bounds = weights.cumsum(-1)
    total = bounds[..., -1:]
    if weights.numel():
        require(
            lambda: (weights.amin() >= 0, (total.amin() > 0) & total.amax().isfinite()),
            "a categorical's probabilities must be finite and not negative",
        )
    below_one = 1 - torch.finfo(weights.dtype).eps  # a class of weight 0 is never drawn
    return (bounds <= torch.rand_like(total) * (total * below_one)).sum(-1, keepdim=True)
