"""What every transfer policy is: settings, ``fit(x)`` and ``sample(n)``."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from pyro_opu.inputs import check_inputs

__all__ = ["TransferPolicy", "check_positive", "in_random_order", "split_count"]

Self = TypeVar("Self", bound="TransferPolicy")


def check_positive(name: str, value: float) -> None:
    """Raise unless value is a positive finite number."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"`{name}` must be a positive finite number; got {value!r}.")


def split_count(n: int, weights: Sequence[float]) -> list[int]:
    """Split n into whole parts, each within one of its share of n and exact on average.

    Systematic sampling: the cumulative shares, all shifted by the same uniform number, are rounded
    down.
    """
    shift, total = float(torch.rand(())), math.fsum(weights)
    edges = [0]
    for k in range(1, len(weights)):
        edges.append(math.floor(n * math.fsum(weights[:k]) / total + shift))
    edges.append(n)
    return [high - low for low, high in zip(edges, edges[1:], strict=False)]


def in_random_order(x: Tensor) -> Tensor:
    """The rows of x, permuted at random."""
    return x[torch.randperm(len(x), device=x.device)]


@dataclass(frozen=True)
class TransferPolicy:
    """Base class: settings as dataclass fields, and a dictionary of tensors once fitted.

    A policy of your own is a frozen dataclass that implements ``_draw(n)`` from ``self.buffers``;
    extend ``_statistics`` where it needs more than the rows themselves.

    Example:
        >>> from dataclasses import dataclass
        >>> import torch
        >>> from pyro_opu.transfer import TransferPolicy
        >>> @dataclass(frozen=True)
        ... class Mirrored(TransferPolicy):
        ...     def _draw(self, n):
        ...         return -self._rows(n)
        >>> Mirrored().fit(torch.ones(3, 2)).sample(1)
        tensor([[-1., -1.]])
    """

    buffers: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def fitted(self) -> bool:
        """Whether this policy came from ``fit`` and can sample."""
        return bool(self.buffers)

    def fit(self: Self, x: Tensor) -> Self:
        """Return a copy of this policy that is ready to sample; the policy itself is unchanged.

        Args:
            x: Transfer inputs ``(N, *input_shape)``, floating and finite. One row is enough,
                though most policies then return that row. The rows are kept by reference, not
                copied.

        Returns:
            The fitted policy.

        Raises:
            TypeError: x is not a floating tensor.
            ValueError: x is empty or not finite, or of a shape this policy cannot use.
        """
        check_inputs(x, features=False)
        fitted = copy.copy(self)
        object.__setattr__(fitted, "buffers", self._statistics(x.detach()))
        return fitted

    def sample(self, n: int) -> Tensor:
        """Draw n transfer inputs.

        Args:
            n: Number of inputs, at least 1.

        Returns:
            Tensor ``(n, *input_shape)``, with the dtype and device of the fitted x, without
            gradient.

        Raises:
            RuntimeError: The policy has not been fitted.
            ValueError: n is below 1.
        """
        if n < 1:
            raise ValueError(f"`n` must be at least 1; got {n}.")
        if not self.fitted:
            raise RuntimeError(f"{self!r} has no inputs to draw from. Call policy.fit(x) first.")
        return self._draw(n)

    def _statistics(self, x: Tensor) -> dict[str, Tensor]:
        """What to keep of x."""
        return {"x": x}

    def _draw(self, n: int) -> Tensor:
        """Draw n inputs from ``self.buffers``."""
        raise NotImplementedError(f"{type(self).__name__} must implement _draw(n).")

    def _rows(self, n: int) -> Tensor:
        """Draw n rows of x, uniformly and with replacement."""
        x = self.buffers["x"]
        return x[torch.randint(len(x), (n,), device=x.device)]

    def _per_row(self, n: int) -> Tensor:
        """An empty tensor (n, 1, ..., 1) that broadcasts one number per row over the features."""
        x = self.buffers["x"]
        return x.new_empty(n, *(1 for _ in x.shape[1:]))
