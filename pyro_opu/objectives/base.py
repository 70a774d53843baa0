"""The interface of objectives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Objective(nn.Module):
    """A loss between a student's answers and a teacher's draws.

    ``objective(student, draws, x)`` is the sum of :meth:`parts`, a mean over the N inputs. One with
    a critic is an :class:`~pyro_opu.objectives.Adversarial`.

    Attributes:
        learning_rate: Student's learning rate after the warm start.
        alternate: Whether h and g are stepped in turn (Algorithm 1 of Cui et al.).
        betas: Adam's, for the student.
        most_draws: Teacher's draws per input in a step of the warm start, at most, where the loss
            itself costs more than cheap draws do.
    """

    learning_rate: float = 1e-4
    alternate: bool = False
    betas: tuple[float, float] = (0.9, 0.99)
    most_draws: int | None = None

    def prepare(self, x: Tensor, num_classes: int) -> None:
        """Size whatever depends on the inputs ``(N, ...)``; called once before training."""

    def anneal(self, progress: float) -> None:
        """Called before every step with the fraction of the phase that is done, in [0, 1)."""

    def parts(self, student: Any, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        """Named terms of the loss, each a scalar; their sum is the loss."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """The settings; a checkpoint is resumed only with an objective that shows the same."""
        plain = (bool, int, float, str)
        settings = {k: v for k, v in vars(self).items() if isinstance(v, plain) and k != "training"}
        return ", ".join(f"{k}={v!r}" for k, v in settings.items() if not k.startswith("_"))

    def forward(self, student: Any, draws: Tensor, x: Tensor) -> Tensor:
        """The loss, a scalar, in nats or in units of the ground metric.

        Args:
            student: The answers at N inputs, batch shape ``(N,)``.
            draws: Teacher's draws ``(S, N, C)`` on the simplex, or ``(S, N, 2)`` of a real y.
            x: Inputs ``(N, ...)``; only a critic reads them.
        """
        return torch.stack(list(self.parts(student, draws, x).values())).sum()
