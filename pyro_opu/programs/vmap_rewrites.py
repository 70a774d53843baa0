"""Other ways to what ``torch.vmap`` refuses, or torch is slow at for many draws of few classes.

Without them labels and softmax are most of what a logistic regression costs on a processor: 10,000
numbers in rows of 10 take ``softmax`` .18 ms and in columns .01, and a categorical label takes as
many exponential variates as there are classes. In a convolutional network pooling is most: a
maximum of halves takes a fifteenth of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch._C._functorch as functorch
from torch import Tensor
from torch.distributions import dirichlet as torch_dirichlet
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from pyro_opu.programs.asked import require
from pyro_opu.rng import replaced

#: Numbers in a row from which torch's softmax is as fast as its exp.
LONG_ROW = 32
#: Columns of w up to which the one product is faster on a processor: 40 times at 1 (500 draws, 256
#: inputs, 57 features), 5 times at 10, and as fast at 50.
MOST_COLUMNS = 32


class Rewrites(TorchFunctionMode):
    """Inside, functions of :data:`_OTHERS` are computed in another way, where they have one.

    Attributes:
        zero: A zero of the draw, added to tensors that are made, which then differ between draws.
        convolved: Whether there was a convolution.
        attended: Whether there was attention, of which torch has fused kernels outside alone.
    """

    zero: Tensor | None = None
    convolved = attended = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        self.convolved |= func in _CONVOLUTIONS
        self.attended |= func in _ATTENTION
        if func in _MAKERS and self.zero is not None:
            made = func(*args, **kwargs)
            return made + self.zero.to(made)
        if func in _OUT_OF_PLACE:
            return _filled(args[0], _OUT_OF_PLACE[func](*args, **kwargs))
        other = _OTHERS.get(func)
        found = None if other is None else other(*args, **kwargs)
        return func(*args, **kwargs) if found is None else found


def _filled(x: Tensor, fresh: Tensor) -> Tensor:
    """``torch.empty(...).normal_()`` and the like out of place.

    The tensor that was to be filled then holds NaN, so that code which reads it does not go on
    unnoticed.
    """
    try:
        return x.copy_(fresh)  # works where the tensor differs between draws already
    except RuntimeError:
        x.fill_(math.nan)
        return fresh


# Other ways: each gives None where it has none -------------------------------------------------


def _by_columns(
    function: Callable[..., Tensor],
) -> Callable[..., Tensor | None]:
    """A softmax of short rows as one of columns, which torch does many at a time."""

    def other(x: Tensor, dim: object = None, *more: object, **named: object) -> Tensor | None:
        short = dim in (-1, x.dim() - 1) and x.dim() > 1 and x.shape[-1] < LONG_ROW
        plain = not (x.is_cuda or more or set(named) - {"_stacklevel"})
        return function(x.mT, -2).mT if short and plain else None

    return other


def _max_pool2d(
    x: Tensor,
    kernel_size: object,
    stride: object = None,
    padding: object = 0,
    dilation: object = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    """The maximum of every 2 x 2 numbers, by slices; a last odd row or column is left out."""
    plain = not (x.is_cuda or ceil_mode or return_indices) and padding in (0, (0, 0))
    twos = kernel_size in (2, (2, 2)) and stride in (None, 2, (2, 2))
    if not (plain and twos and dilation in (1, (1, 1)) and min(x.shape[-2:]) > 1):
        return None
    x = x[..., : x.shape[-2] // 2 * 2, : x.shape[-1] // 2 * 2]
    rows = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
    return torch.maximum(rows[..., ::2], rows[..., 1::2])


def _binomial(count: Tensor, probs: Tensor, *more: object, **named: object) -> Tensor | None:
    """``vmap`` wants both to differ between draws."""
    return None if more or named else torch.binomial(count + torch.zeros_like(probs), probs)


def _bernoulli(probs: Tensor, *more: object, **named: object) -> Tensor | None:
    plain = len(more) <= 2 and not named
    found: Tensor | None = _Labels.apply(_of_each_draw(probs), False) if plain else None
    return found


def _multinomial(
    weights: Tensor, count: object = 0, *more: object, **named: object
) -> Tensor | None:
    plain = count == 1 and len(more) < 2 and not named
    found: Tensor | None = _Labels.apply(_of_each_draw(weights), True) if plain else None
    return found


def _of_each_draw(value: Tensor) -> Tensor:
    """The same, as a tensor that differs between draws, since what is drawn by it must.

    ``vmap`` runs a function of one tensor for all draws once.
    """
    level = functorch.maybe_current_level()
    if level is None or functorch.maybe_get_level(value) == level:
        return value
    return value + torch.zeros_like(torch.rand((), device=value.device)).to(value.dtype)


class _Labels(torch.autograd.Function):
    """Labels, each from one uniform number: of each probability, or of each row ``(..., 1)``.

    ``vmap`` hands over the tensors of all draws, so that what they hold can be refused.
    """

    @staticmethod
    def forward(probs: Tensor, classes: bool) -> Tensor:
        return _classes(probs) if classes else _ones(probs)

    @staticmethod
    def setup_context(ctx: Any, inputs: object, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: Any, probs: Tensor, classes: bool) -> tuple[Tensor, int]:
        if in_dims[0] is None:
            probs = probs.expand(info.batch_size, *probs.shape)
        else:
            probs = probs.movedim(in_dims[0], 0)
        return _Labels.apply(probs, classes), 0


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
        sums = weights.sum(-1)  # which needs none of what the labels do
        require(
            lambda: (weights.amin() >= 0, sums.amin() > 0, sums.amax() < math.inf),
            "a categorical's probabilities must be finite and not negative",
        )
    below_one = 1 - torch.finfo(weights.dtype).eps  # a class of weight 0 is never drawn
    return (bounds <= torch.rand_like(total) * (total * below_one)).sum(-1, keepdim=True)


class SharedProduct(torch.autograd.Function):
    """Product of ``(N, D)`` and ``(D,)`` or ``(D, K)``; with S of these it is one of ``(S K, D)``.

    A batch of S products with few columns K each, as ``vmap`` has it, is mostly overhead. Rows lie
    side by side in the result, so that what is done to each draw and column goes on many at a time.
    """

    @staticmethod
    def forward(x: Tensor, w: Tensor) -> Tensor:
        return x @ w

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, w = ctx.saved_tensors
        return torch.outer(grad, w) if w.dim() == 1 else grad @ w.mT, x.mT @ grad

    @staticmethod
    def vmap(
        info: object, in_dims: tuple[int | None, int | None], x: Tensor, w: Tensor
    ) -> tuple[Tensor, int]:
        """One product where only ``w`` has the axis of the draws, otherwise a batch of them."""
        vector = w.dim() - (in_dims[1] is not None) == 1
        x, w = (
            part if dim is None else part.movedim(dim, 0)
            for part, dim in zip((x, w), in_dims, strict=True)
        )
        if in_dims[0] is not None or in_dims[1] is None:
            if vector:
                return torch.matmul(x, w[..., None]).squeeze(-1), 0
            return torch.matmul(w.mT, x.mT).mT, 0  # K rows are faster than K columns
        if vector:
            return torch.mm(w, x.mT), 0
        rows = w.mT  # (S, K, D)
        return torch.mm(rows.flatten(0, 1), x.mT).unflatten(0, rows.shape[:2]).mT, 0


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    found = _product(input, weight.T) if weight.dim() == 2 else None
    return found if found is None or bias is None else found + bias


def _product(x: Any, w: Any = None, **named: object) -> Tensor | None:
    """A thin product of inputs and weights."""
    tensors = isinstance(x, Tensor) and isinstance(w, Tensor) and not named
    if not tensors or x.dim() != 2 or w.dim() not in (1, 2) or x.dtype != w.dtype:
        return None
    return SharedProduct.apply(x, w) if w.dim() == 1 or w.shape[1] <= MOST_COLUMNS else None


_PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
_OTHERS: dict[Callable[..., Any], Callable[..., Tensor | None]] = {
    **dict.fromkeys(
        (functional.softmax, torch.softmax, Tensor.softmax), _by_columns(torch.softmax)
    ),
    **dict.fromkeys(
        (functional.log_softmax, torch.log_softmax, Tensor.log_softmax),
        _by_columns(torch.log_softmax),
    ),
    functional.max_pool2d: _max_pool2d,
    torch.binomial: _binomial,
    torch.bernoulli: _bernoulli,
    torch.multinomial: _multinomial,
    functional.linear: _linear,
    **dict.fromkeys(_PRODUCTS, _product),
}
_CONVOLUTIONS = {torch.conv1d, torch.conv2d, torch.conv3d}
_ATTENTION = {functional.scaled_dot_product_attention, functional.multi_head_attention_forward}
#: In-place functions of torch.distributions: samplers that fill a new tensor, and the clamping
#: of Gamma variates, which vmap does slowly and with a warning.
_OUT_OF_PLACE: dict[Callable[..., Any], Callable[..., Tensor]] = {
    Tensor.normal_: lambda like, mean=0.0, std=1.0: torch.randn_like(like) * std + mean,
    Tensor.uniform_: lambda like, low=0.0, high=1.0: torch.rand_like(like) * (high - low) + low,
    Tensor.exponential_: lambda like, rate=1.0: -torch.log1p(-torch.rand_like(like)) / rate,
    Tensor.cauchy_: lambda like, median=0.0, scale=1.0: (
        torch.tan(math.pi * (torch.rand_like(like) - 0.5)) * scale + median
    ),
    Tensor.clamp_: Tensor.clamp,
}
_MAKERS = {
    getattr(place, prefix + name + suffix)
    for name in ("zeros", "ones", "empty", "full")
    for place, prefix, suffix in ((torch, "", ""), (torch, "", "_like"), (Tensor, "new_", ""))
} | {Tensor.new}

_BY_GAMMAS: ContextVar[bool] = ContextVar("Dirichlet variates by gamma variates", default=False)


class _Dirichlet:
    """In the place of torch's function of this name, which ``vmap`` refuses."""

    original = torch_dirichlet._Dirichlet

    @classmethod
    def apply(cls, concentration: Tensor) -> Any:
        """Variates, as torch draws them, or inside ``vmap`` as gamma variates over their sum."""
        if not _BY_GAMMAS.get():
            return cls.original.apply(concentration)
        gammas = torch._standard_gamma(concentration).clamp_min(
            torch.finfo(concentration.dtype).tiny
        )
        return gammas / gammas.sum(-1, keepdim=True)


@contextmanager
def dirichlet_by_gammas() -> Iterator[None]:
    """Let Dirichlet and Beta variates, and those of LKJ made of them, be drawn under ``vmap``."""
    token = _BY_GAMMAS.set(True)  # for threads that are not ours it does what it did
    try:
        with replaced(torch_dirichlet, "_Dirichlet", _Dirichlet):
            yield
    finally:
        _BY_GAMMAS.reset(token)
