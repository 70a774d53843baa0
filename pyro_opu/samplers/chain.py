"""The running state of a chain, and the record to go on from."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyro_opu.samplers.minibatches import Minibatches
from pyro_opu.samplers.potential import Potential

__all__ = ["Chain", "check_record"]

#: What a record holds.
PARTS = ("params", "step", "order", "position", "mean_square")


class Chain:
    """What changes while a gradient-based chain runs, and its buffers.

    Args:
        batches: The model's arguments.
        potential: Minus the log-joint of a minibatch.
        params: The start in unconstrained space, latent site -> value.

    Attributes:
        params: The state after the last draw.
        step: Steps so far.
        step_size: That of the last step.
        energy: The potential at the last step's start, by its minibatch.
        mean_square: Running mean of squared gradients ``(P,)``, empty before the first.
        gradient: Buffer ``(P,)`` of the gradient.
        noise: Buffer ``(P,)`` of the noise.
    """

    def __init__(
        self, batches: Minibatches, potential: Potential, params: dict[str, Tensor]
    ) -> None:
        self.batches, self.potential, self.params = batches, potential, params
        self.gradient = potential.flatten(params)
        self.noise = torch.empty_like(self.gradient)
        self.mean_square = self.gradient.new_empty(0)
        self.step, self.step_size, self.energy = 0, math.nan, math.nan

    def record(self) -> dict[str, Any]:
        """All that goes on, as tensors and integers."""
        return {
            "params": {name: value.detach().clone() for name, value in self.params.items()},
            "step": self.step,
            "order": self.batches.order,
            "position": self.batches.position,
            "mean_square": self.mean_square.clone(),
        }

    def restore(self, record: dict[str, Any]) -> None:
        """Take over what :meth:`record` gave, but for the parameters."""
        self.step, self.mean_square = record["step"], record["mean_square"].clone()
        self.batches.order, self.batches.position = record["order"], record["position"]


def check_record(record: Any) -> None:
    """Raise unless this is a record of a chain, or ``None``."""
    if record is not None and (not isinstance(record, dict) or set(PARTS) - set(record)):
        found = sorted(record) if isinstance(record, dict) else type(record).__name__
        raise ValueError(
            f"`resume` must be the state of a kernel, a dict with {', '.join(PARTS)}; got "
            f"{found}. Pass kernel.state."
        )
