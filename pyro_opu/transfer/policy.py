"""The interface of transfer policies, ``fit(x)`` and ``sample(n)``, and mixtures of them."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from pyro_opu.checks import (
    ArgumentCallError,
    ArgumentError,
    ArgumentTypeError,
    check_inputs,
    instance_of,
    positive_float,
    positive_int,
)

__all__ = ["Mixture", "TransferPolicy", "in_random_order", "split_count"]

Self = TypeVar("Self", bound="TransferPolicy")


def split_count(n: int, weights: Sequence[float]) -> list[int]:
    """Split n into whole parts by systematic sampling.

    Each part differs from its share of n by less than one, and by nothing on average.
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
    """Base class of transfer policies: settings, and a dictionary of tensors once fitted.

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

    @property
    def made(self) -> str:
        """What it makes, in words."""
        return type(self).__name__

    def fit(self: Self, x: Tensor) -> Self:
        """Return a copy of this policy that is ready to sample.

        ``x`` ``(N, *input_shape)``, floating and finite, is kept by reference; one row is enough.
        """
        check_inputs(x, features=False)
        fitted = copy.copy(self)
        object.__setattr__(fitted, "buffers", self._statistics(x.detach()))
        object.__setattr__(fitted, "_like", x[:0])
        return fitted

    def sample(self, n: int) -> Tensor:
        """Draw n transfer inputs ``(n, *input_shape)`` like those of x, without gradient."""
        n = positive_int("n", n)
        if not self.fitted:
            raise RuntimeError(f"`{self!r}` has no inputs to draw from. Call policy.fit(x) first.")
        try:
            drawn = self._draw(n)
        except Exception as error:
            if type(error).__module__ != "builtins":
                raise  # a user's own error, or that of a policy inside this one
            raise ArgumentCallError(
                f"{self._must_give} {n} inputs; it raised {type(error).__name__}: {error}. Try "
                f"policy.fit(x).sample({n}) by itself."
            ) from error
        return self._checked_draw(drawn, n)

    @property
    def _must_give(self) -> str:
        """How messages begin: the printed form, or the class where that is long."""
        text = repr(self)
        return f"`{text if len(text) <= 60 else type(self).__name__}`, a transfer policy, must give"

    def _checked_draw(self, drawn: Tensor, n: int) -> Tensor:
        """Check that ``_draw(n)`` gave n finite rows like those of x."""
        if not isinstance(drawn, Tensor):
            raise ArgumentTypeError(
                f"{self._must_give} a torch.Tensor of {n} inputs; got {type(drawn).__name__}. "
                "Return a tensor from _draw(n)."
            )
        like: Tensor = getattr(self, "_like", drawn)  # set by fit, which may be overridden
        expected = f"{(n, *like.shape[1:])} {like.dtype} {like.device}"
        found = f"{tuple(drawn.shape)} {drawn.dtype} {drawn.device}"
        if found != expected:
            raise ArgumentError(
                f"{self._must_give} {n} inputs like those of x, {expected}; got {found}. Let "
                "_draw(n) return n rows in the dtype of self.buffers['x']."
            )
        if not torch.isfinite(drawn.sum()) and not torch.isfinite(drawn).all():  # the sum is cheap
            bad = ~torch.isfinite(drawn).reshape(len(drawn), -1).all(1)
            raise ArgumentError(
                f"{self._must_give} finite inputs; got NaN or infinity in {int(bad.sum())} of "
                f"{len(drawn)} rows. Is its scale too large for {drawn.dtype}?"
            )
        return drawn.detach()

    def _statistics(self, x: Tensor) -> dict[str, Tensor]:
        """What ``fit`` keeps of x."""
        return {"x": x}

    def _draw(self, n: int) -> Tensor:
        """Draw n inputs from ``self.buffers``."""
        raise NotImplementedError(f"`{type(self).__name__}` must implement _draw(n).")

    def _rows(self, n: int) -> Tensor:
        """Draw n rows of x, uniformly and with replacement."""
        x = self.buffers["x"]
        return x[torch.randint(len(x), (n,), device=x.device)]

    def _factors(self, n: int, log_low: float, log_high: float) -> Tensor:
        """One log-uniform number per row, ``(n, 1, ..., 1)``."""
        like: Tensor = self._like  # type: ignore[attr-defined]
        return like.new_empty(n, *(1 for _ in like.shape[1:])).uniform_(log_low, log_high).exp_()


@dataclass(frozen=True)
class Mixture(TransferPolicy):
    """Several policies at once: each gives its share of every sample, and the rows are shuffled.

    ``components`` are pairs (weight, policy); the weights are positive and need not sum to 1.
    """

    components: Sequence[tuple[float, TransferPolicy]]

    def __post_init__(self) -> None:
        example = "Write for example Mixture([(0.5, HeldOut()), (0.5, Mixup())])."
        form = "a list of pairs (weight, policy)"
        instance_of("components", self.components, Iterable, form, example)
        object.__setattr__(self, "components", tuple(self.components))
        if not self.components:
            raise ArgumentError(
                "`components` must hold at least one pair (weight, policy); got none."
            )
        for index, pair in enumerate(self.components):
            pairs = isinstance(pair, tuple) and len(pair) == 2
            if not pairs or not isinstance(pair[1], TransferPolicy):
                raise ArgumentTypeError(
                    f"`components` must be pairs (weight, TransferPolicy); got {pair!r}. {example}"
                )
            advice = "Leave a policy out rather than weigh it 0."
            positive_float(f"components[{index}][0]", pair[0], advice)

    @property
    def made(self) -> str:
        total = math.fsum(weight for weight, _ in self.components)
        return ", ".join(f"{100 * w / total:.3g} % {policy.made}" for w, policy in self.components)

    @property
    def fitted(self) -> bool:
        """Whether every component is fitted."""
        return all(policy.fitted for _, policy in self.components)

    def fit(self, x: Tensor) -> Mixture:
        """Fit every component to x."""
        fitted = replace(self, components=[(w, policy.fit(x)) for w, policy in self.components])
        object.__setattr__(fitted, "_like", x[:0])
        return fitted

    def _draw(self, n: int) -> Tensor:
        counts = split_count(n, [weight for weight, _ in self.components])
        parts = zip(self.components, counts, strict=True)
        drawn = [policy.sample(count) for (_, policy), count in parts if count]
        whole = torch.cat(drawn)
        del drawn  # a third copy beside the two of the next line
        return in_random_order(whole)
