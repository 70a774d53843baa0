"""Minibatches of a model's arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, check_inputs, check_tensor


class Minibatches:
    """Cuts the tensors of N rows among a model's arguments to the same M rows.

    N is the length of the first tensor among the arguments, positional ones first. An epoch is a
    random permutation of the rows cut into N // M minibatches, M the ``batch_size``; the rows left
    over are not seen in that epoch. With all rows at once (None) nothing is drawn or copied.

    Attributes:
        num_rows: N; 1 where no argument is a tensor.
        scale: N / M.
        order: Permutation of the current epoch ``(N,)``, empty before the first.
        position: Number of its rows that have been used.

    Example:
        >>> batches = Minibatches((torch.arange(6),), {"scale": 2.0}, batch_size=2)
        >>> args, kwargs = batches.next()
        >>> args[0].shape, kwargs, batches.scale
        (torch.Size([2]), {'scale': 2.0}, 3.0)
    """

    def __init__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], batch_size: int | None = None
    ) -> None:
        self.args, self.kwargs = args, kwargs
        named = {f"args[{i}]": value for i, value in enumerate(args)} | kwargs
        tensors = {
            k: v for k, v in named.items() if isinstance(v, Tensor) and check_tensor(k, v).ndim
        }
        first = next(iter(tensors.values()), None)
        if first is None and batch_size is not None:
            raise ArgumentError(
                "`model`'s arguments must hold a tensor of N rows for minibatches to be cut "
                f"from; got {len(named)} arguments and no such tensor. Pass the data as arguments, "
                "or leave `batch_size` out."
            )
        self.num_rows = 1 if first is None else len(first)
        for name, tensor in tensors.items():
            if len(tensor) == self.num_rows and tensor.is_floating_point():
                check_inputs(tensor, name, features=False)
        self.batch_size = self.num_rows if batch_size is None else batch_size
        if not 1 <= self.batch_size <= self.num_rows:
            raise ArgumentError(
                f"`batch_size` must be from 1 to {self.num_rows}, the rows of the data; got "
                f"{batch_size}. Pass fewer, or leave it out for all rows."
            )
        self.scale = self.num_rows / self.batch_size
        self.order = torch.empty(0, dtype=torch.long)
        self.position = 0

    def next(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with the next M rows."""
        if self.batch_size == self.num_rows:
            return self.args, self.kwargs
        if self.position + self.batch_size > len(self.order):
            self.order, self.position = torch.randperm(self.num_rows), 0
        rows = self.order[self.position : self.position + self.batch_size]
        self.position += self.batch_size
        return self.cut(rows)

    def cut(self, rows: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with the given rows ``(m,)``."""

        def some(value: object) -> Any:
            if isinstance(value, Tensor) and value.ndim and len(value) == self.num_rows:
                return value.index_select(0, rows.to(value.device))
            return value

        return tuple(map(some, self.args)), {k: some(v) for k, v in self.kwargs.items()}
