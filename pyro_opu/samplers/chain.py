"""State of a gradient-based chain, and the record from which it is resumed."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyro_opu.samplers.minibatches import Minibatches
from pyro_opu.samplers.potential import Potential

__all__ = ["Chain", "check_record"]

#: Entries of a record.
PARTS = ("params", "step", "order", "position", "mean_square")


class Chain:
    """Unconstrained latents ``params``, number of the ``step``, and buffers ``(P,)`` of a chain.

    ``energy`` is the potential of the last minibatch at the start of its step; ``mean_square`` is
    the running mean of squared gradients, empty before the first.
    """

    def __init__(
        self, batches: Minibatches, potential: Potential, params: dict[str, Tensor]
    ) -> None:
        self.batches, self.potential, self.params = batches, potential, params
        self.gradient = potential.latents.join(params)
        self.noise = torch.empty_like(self.gradient)
        self.mean_square = self.gradient.new_empty(0)
        self.step, self.step_size, self.energy = 0, math.nan, math.nan

    def record(self) -> dict[str, Any]:
        """The state from which the chain can be resumed."""
        return {
            "params": {name: value.detach().clone() for name, value in self.params.items()},
            "step": self.step,
            "order": self.batches.order,
            "position": self.batches.position,
            "mean_square": self.mean_square.clone(),
        }

    def restore(self, record: dict[str, Any]) -> None:
        """Resume from a record, except for the parameters."""
        self.step, self.mean_square = record["step"], record["mean_square"].clone()
        self.batches.order, self.batches.position = record["order"], record["position"]


def check_record(record: Any) -> None:
    """Check the record of a chain, or ``None``."""
    if record is not None and (not isinstance(record, dict) or set(PARTS) - set(record)):
        found = sorted(record) if isinstance(record, dict) else type(record).__name__
        raise ValueError(
            f"`resume` must be the state of a kernel, a dict with {', '.join(PARTS)}; got "
            f"{found}. Pass kernel.state."
        )
