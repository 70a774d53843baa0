"""Several policies in one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_opu.checks import positive_float
from pyro_opu.transfer.policy import TransferPolicy, in_random_order, split_count

__all__ = ["Mixture"]


@dataclass(frozen=True)
class Mixture(TransferPolicy):
    """Several policies at once: each gives its share of every sample, and the rows are shuffled.

    Shares are rounded to whole rows so that each is exact on average.

    Args:
        components: Pairs (weight, policy); the weights are positive and need not sum to 1.

    Raises:
        TypeError: an entry is no pair, or pairs something else than a policy.
        ValueError: no entry, or a weight that is not positive and finite.

    Example:
        >>> from pyro_opu.transfer import Box, HeldOut, Mixture
        >>> Mixture([(3, HeldOut()), (1, Box(expand=0.5))])
        Mixture(components=((3, HeldOut()), (1, Box(expand=0.5))))
    """

    components: Sequence[tuple[float, TransferPolicy]]

    def __post_init__(self) -> None:
        if not isinstance(self.components, Iterable):
            raise TypeError(
                "`components` must be a list of pairs (weight, policy); got "
                f"{type(self.components).__name__}. Write for example "
                "Mixture([(0.5, HeldOut()), (0.5, Mixup())])."
            )
        object.__setattr__(self, "components", tuple(self.components))
        if not self.components:
            raise ValueError("`components` must hold at least one pair (weight, policy); got none.")
        for index, pair in enumerate(self.components):
            if not (isinstance(pair, tuple) and len(pair) == 2):
                raise TypeError(
                    f"`components` must be pairs (weight, policy); got {pair!r}. Write for example "
                    "Mixture([(0.5, HeldOut()), (0.5, Mixup())])."
                )
            weight, policy = pair
            if not isinstance(policy, TransferPolicy):
                raise TypeError(
                    f"`components` must pair a weight with a TransferPolicy; got {policy!r} of "
                    f"type {type(policy).__name__}. Write for example (0.5, HeldOut())."
                )
            positive_float(
                f"components[{index}][0]", weight, "Leave a policy out rather than weigh it 0."
            )

    @property
    def fitted(self) -> bool:
        """Whether every component is fitted."""
        return all(policy.fitted for _, policy in self.components)

    def fit(self, x: Tensor) -> Mixture:
        """Fit every component to x; see :meth:`TransferPolicy.fit`."""
        fitted = replace(self, components=[(w, policy.fit(x)) for w, policy in self.components])
        object.__setattr__(fitted, "_like", x[:0])
        return fitted

    def _draw(self, n: int) -> Tensor:
        counts = split_count(n, [weight for weight, _ in self.components])
        parts = zip(self.components, counts, strict=True)
        drawn = [policy.sample(count) for (_, policy), count in parts if count]
        return in_random_order(torch.cat(drawn))
