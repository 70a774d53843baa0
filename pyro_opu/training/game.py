"""The two sides of an adversarial loss, which share their batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from pyro_opu.objectives.base import Adversarial, Meeting


class Game:
    """Losses of a critic and of a student, who meet at the batches of the critic's last round.

    Args:
        objective: Its critic has been made.
        meet: Makes a batch, of the next inputs or of these rows of a pool: the teacher's draws, the
            student's answer and its draws.
    """

    def __init__(self, objective: Adversarial, meet: Callable[[Tensor | None], Meeting]) -> None:
        self.objective, self.meet = objective, meet
        self._last: Meeting | None = None

    def critic_losses(self, rows: Tensor | None = None) -> tuple[dict[str, Tensor], Any]:
        """Named terms of the critic's loss at a new batch, and the student's answer there."""
        self._last = meeting = self.meet(rows)
        return self.objective.critic_loss(meeting), meeting.student

    def student_losses(self, rows: Tensor | None = None) -> tuple[dict[str, Tensor], Any]:
        """Named terms of the student's loss at the critic's batch, or at a new one."""
        meeting, self._last = self._last or self.meet(rows), None
        return self.objective.parts_of(meeting), meeting.student
