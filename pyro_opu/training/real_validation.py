"""How good a regression student is where the teacher has answered: what is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.guides.base import student_at
from pyro_opu.metrics.normals import energies, energies_of_moments, kl_of_normals, teacher_moments

__all__ = ["RealLabelled"]


@dataclass(frozen=True)
class RealLabelled:
    """Inputs with the teacher's draws there, to judge the student by.

    Attributes:
        x: ``(N, ...)``, on the student's device.
        draws: Teacher's draws ``(S, N, 2)``.
        by_moments: Judge by the normals with the teacher's moments, in place of its draws: for a
            student taught by moments. An iterate with wrong moments may happen to be nearer to
            draws that no normal can follow.
    """

    x: Tensor
    draws: Tensor
    by_moments: bool = False

    @torch.no_grad()
    def judge(self, guide: nn.Module) -> dict[str, float]:
        """Held-out fidelity of a guide.

        Returns:
            "energy_distance", that of y plus that of its mean f (see :func:`energies`), since y
            alone does not say which part of its variance is epistemic; "kl" of the normals with the
            teacher's and the student's moments, nats; "mean_error", root mean square, in the
            teacher's deviations of y.
        """
        student: Any = student_at(guide, self.x)
        teacher, normal = teacher_moments(self.draws), student.normal()
        judge = energies_of_moments if self.by_moments else energies
        of_y, of_mean = judge(student, self.draws)
        error = (normal.mean - teacher.mean) / teacher.scale
        return {
            "energy_distance": float((of_y + of_mean).mean()),
            "kl": float(kl_of_normals(teacher, normal).mean()),
            "mean_error": float(error.square().mean().sqrt()),
        }
