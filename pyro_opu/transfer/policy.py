"""What every transfer policy is: settings, ``fit(x)`` and ``sample(n)``."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from pyro_opu.checks import check_inputs, positive_int

__all__ = ["TransferPolicy", "in_random_order", "split_count"]

Self = TypeVar("Self", bound="TransferPolicy")


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
        object.__setattr__(fitted, "_like", x[:0])
        return fitted

    def sample(self, n: int) -> Tensor:
        """Draw n transfer inputs.

        Args:
            n: Number of inputs, at least 1.

        Returns:
            Tensor ``(n, *input_shape)``, with the dtype and device of the fitted x, without
            gradient.

        Raises:
            RuntimeError: The policy has not been fitted, or its ``_draw`` raised an error.
            TypeError: ``_draw`` gave no tensor.
            ValueError: n is below 1; what ``_draw`` gave is of another shape, dtype or device than
                n rows of x, or not finite.
        """
        n = positive_int("n", n)
        if not self.fitted:
            raise RuntimeError(f"`{self!r}` has no inputs to draw from. Call policy.fit(x) first.")
        try:
            drawn = self._draw(n)
        except Exception as error:
            if type(error).__module__ != "builtins" or str(error).startswith("`"):
                raise  # one to be caught, or that of a policy inside this one
            raise RuntimeError(
                f"`{self._short()}`, a transfer policy, must give {n} inputs; it raised "
                f"{type(error).__name__}: {error}. Try policy.fit(x).sample({n}) by itself."
            ) from error
        return self._checked_draw(drawn, n)

    def _short(self) -> str:
        """The printed form, or the class where that is long."""
        text = repr(self)
        return text if len(text) <= 60 else type(self).__name__

    def _checked_draw(self, drawn: Tensor, n: int) -> Tensor:
        """What ``_draw(n)`` gave, if it is n finite rows like those of x."""
        if not isinstance(drawn, Tensor):
            raise TypeError(
                f"`{self._short()}`, a transfer policy, must give a torch.Tensor of {n} inputs; "
                f"got {type(drawn).__name__}. Return a tensor from _draw(n)."
            )
        like: Tensor | None = getattr(self, "_like", None)  # set by fit, which may be overridden
        if like is not None:
            expected = ((n, *like.shape[1:]), like.dtype, like.device)
            found = (tuple(drawn.shape), drawn.dtype, drawn.device)
            if found != expected:
                raise ValueError(
                    f"`{self._short()}`, a transfer policy, must give {n} inputs like those of x, "
                    f"{' '.join(map(str, expected))}; got {' '.join(map(str, found))}. Let "
                    "_draw(n) return n rows in the dtype of self.buffers['x']."
                )
        if not torch.isfinite(drawn.sum()) and not torch.isfinite(drawn).all():
            bad = ~torch.isfinite(drawn).reshape(len(drawn), -1).all(1)
            raise ValueError(
                f"`{self._short()}`, a transfer policy, must give finite inputs; got NaN or "
                f"infinity in {int(bad.sum())} of {len(drawn)} rows. Is its scale too large for "
                f"{drawn.dtype}?"
            )
        return drawn.detach()

    def _statistics(self, x: Tensor) -> dict[str, Tensor]:
        """What to keep of x."""
        return {"x": x}

    def _draw(self, n: int) -> Tensor:
        """Draw n inputs from ``self.buffers``."""
        raise NotImplementedError(
            f"`{type(self).__name__}` must implement _draw(n). Use one of pyro_opu.transfer, or a "
            "subclass of your own."
        )

    def _rows(self, n: int) -> Tensor:
        """Draw n rows of x, uniformly and with replacement."""
        x = self.buffers["x"]
        return x[torch.randint(len(x), (n,), device=x.device)]

    def _per_row(self, n: int) -> Tensor:
        """An empty tensor (n, 1, ..., 1) that broadcasts one number per row over the features."""
        x = self.buffers["x"]
        return x.new_empty(n, *(1 for _ in x.shape[1:]))
