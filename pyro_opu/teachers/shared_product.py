"""``x @ w`` under ``vmap`` where all draws share x: one matrix product, not many thin ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

#: Columns of w up to which the one product is faster on a processor: 40 times at 1 (500 draws, 256
#: inputs, 57 features), 5 times at 10, and as fast at 50.
MOST_COLUMNS = 32


class SharedProduct(torch.autograd.Function):
    """Matrix product of ``(N, D)`` and ``(D, K)``; with S matrices ``w`` it is one of ``(D, S K)``.

    A batch of S products with few columns K each, as ``vmap`` has it, is mostly overhead.
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
        return grad @ w.T, x.T @ grad

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, int | None], x: Tensor, w: Tensor
    ) -> tuple[Tensor, int]:
        """One product where only ``w`` has the axis of the draws, otherwise a batch of them."""
        of_x, of_w = in_dims
        if of_x is not None or of_w is None:
            x, w = (
                part if dim is None else part.movedim(dim, 0)
                for part, dim in zip((x, w), in_dims, strict=True)
            )
            return torch.matmul(w.mT, x.mT).mT, 0  # K rows are faster than K columns
        side_by_side = w.movedim(of_w, 1)  # (D, S, K)
        return (x @ side_by_side.flatten(1)).unflatten(1, side_by_side.shape[1:]), 1


def shared_product(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``func`` gives if it is a thin matrix product of inputs and weights, else None."""
    if func is functional.linear:
        return _linear(*args, **kwargs)
    if func in _PRODUCTS and len(args) == 2 and not kwargs:
        return _product(*args)
    return None


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    found = _product(input, weight.T) if weight.dim() == 2 else None
    return found if found is None or bias is None else found + bias


def _product(x: Any, w: Any) -> Tensor | None:
    tensors = isinstance(x, Tensor) and isinstance(w, Tensor)
    if not tensors or x.dim() != 2 or w.dim() not in (1, 2) or x.dtype != w.dtype:
        return None
    if w.dim() == 1:
        return SharedProduct.apply(x, w[:, None]).squeeze(-1)
    return SharedProduct.apply(x, w) if w.shape[1] <= MOST_COLUMNS else None


_PRODUCTS = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm}
