"""How good a regression student is where the teacher has answered: what is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.distributions.normal import PredictiveNormal
from pyro_opu.distributions.normal_mixture import RealAnswer
from pyro_opu.guides.asking import student_at
from pyro_opu.metrics.crps import (
    FLOOR,
    energy_of_draws,
    energy_of_mean,
    energy_of_normals,
    energy_of_y,
    pairs_with_others,
)

__all__ = [
    "RealLabelled",
    "energies",
    "energies_of_draws",
    "energies_of_moments",
    "kl_of_normals",
    "teacher_moments",
]


def teacher_moments(draws: Tensor) -> PredictiveNormal:
    r"""The normal with the moments of a teacher's draws ``(S, N, 2)``, S of at least 2.

    Mean :math:`\bar f`, aleatoric variance :math:`\operatorname{mean}_s \sigma_s^2`, and epistemic
    variance :math:`\operatorname{Var}_s f_s`, unbiased.
    """
    f, noise = draws[..., 0], (2 * draws[..., 1]).exp()
    return PredictiveNormal(f.mean(0), noise.mean(0).log(), f.var(0).log(), validate_args=False)


def kl_of_normals(p: PredictiveNormal, q: PredictiveNormal) -> Tensor:
    r""":math:`\mathrm{KL}(p\,\|\,q)` of two normals of y, ``(N,)``, in nats."""
    log_ratio = p.log_variance - q.log_variance
    squares = (p.mean - q.mean).square() / q.variance
    return (log_ratio.exp() - 1 - log_ratio + squares) / 2


def energies(student: RealAnswer, draws: Tensor, size: float = math.inf) -> tuple[Tensor, Tensor]:
    """Energy distances of y and of its mean f to the teacher's, ``(N,)`` each, in deviations.

    Each in units of the teacher's own deviation of y or of f; that of f counts as at least a tenth
    of that of y.

    Args:
        student: At N inputs.
        draws: The teacher's ``(S, N, 2)``.
        size: Draws that the posterior holds, equally likely; by default the draws are a sample of
            one without end.
    """
    wide, narrow = _units(draws)
    parts = student.components()
    y, mean = energy_of_y(parts, draws), energy_of_mean(parts, draws)
    if math.isfinite(size):
        y = y + pairs_with_others(draws) / size
        mean = mean + pairs_with_others(draws, noise=False) / size
    return y / wide, mean / narrow


def energies_of_draws(other: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """The same for other draws of the teacher, ``(S, N, 2)``, in the place of a student."""
    wide, narrow = _units(draws)
    of_y, of_mean = (energy_of_draws(other, draws, noise=noise) for noise in (True, False))
    return of_y / wide, of_mean / narrow


def energies_of_moments(student: RealAnswer, draws: Tensor) -> tuple[Tensor, Tensor]:
    """The same between the normals with the student's and with the teacher's moments."""
    wide, narrow = _units(draws)
    mine, teacher = student.normal(), teacher_moments(draws)
    gap = mine.mean - teacher.mean
    of_y = energy_of_normals(gap, mine.variance, teacher.variance)
    of_mean = energy_of_normals(gap, mine.epistemic, teacher.epistemic)
    return of_y / wide, of_mean / narrow


def _units(draws: Tensor) -> tuple[Tensor, Tensor]:
    """The teacher's deviation of y, and that of f or a tenth of y's, whichever is more."""
    moments = teacher_moments(draws)
    return moments.scale, torch.maximum((moments.log_epistemic / 2).exp(), FLOOR * moments.scale)


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
