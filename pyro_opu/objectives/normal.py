r"""Losses of a regression student, in closed form: nothing is drawn from the student.

The teacher's draws are ``(S, N, 2)``: means :math:`f_s(x)` and :math:`\log\sigma_s(x)`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pyro_opu.checks import in_range, one_of
from pyro_opu.distributions import PredictiveNormal, RealAnswer
from pyro_opu.metrics.normals import FLOOR, crps_of_mean, crps_of_y
from pyro_opu.objectives.base import Objective

__all__ = [
    "NormalCRPS",
    "NormalMoments",
    "RegressionObjective",
    "as_regression_objective",
]


class RegressionObjective(Objective):
    """A loss between a student's answers and a teacher's draws ``(S, N, 2)`` of real y."""


class NormalMoments(RegressionObjective):
    r"""The loss that the teacher's mean, aleatoric and epistemic variance minimise, each apart.

    .. math::
        \tfrac12 e^{-\alpha} (f_s - \mu)^2
        + \tfrac12 \left[\alpha_a + e^{-\alpha_a} \sigma_s^2\right]
        + \tfrac12 \left[\alpha_e + e^{-\alpha_e} v\right], \qquad
        e^\alpha = e^{\alpha_a} + e^{\alpha_e} \text{ held}

    averaged over draws and inputs. v is the draws' own variance, unbiased, so that an error of
    :math:`\mu` is not taken for epistemic uncertainty; with a single draw v is :math:`(f_s -
    \mu)^2` with :math:`\mu` held.

    References:
        Korattikara et al. (2015), eq. 5 and 6; the division of the variance is this project's.
    """

    sufficient = True

    def parts(self, student: PredictiveNormal, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        """``{"mean", "aleatoric", "epistemic"}``."""
        return self.parts_at(student, self.statistics(draws), x)

    def statistics(self, draws: Tensor) -> dict[str, Tensor]:
        """``{"mean", "scatter", "spread", "noise"}``, ``(N,)`` each.

        Scatter is the variance of f about the mean of these draws, spread the unbiased one, NaN of
        a single draw; noise is the mean variance of y given f.
        """
        f = draws[..., 0]
        unbiased = f.var(0) if len(f) > 1 else torch.full_like(f[0], torch.nan)
        return {
            "mean": f.mean(0),
            "scatter": f.var(0, correction=0),
            "spread": unbiased,
            "noise": _noise(draws).mean(0),
        }

    def parts_at(
        self, student: PredictiveNormal, statistics: dict[str, Tensor], x: Tensor
    ) -> dict[str, Tensor]:
        """``{"mean", "aleatoric", "epistemic"}``."""
        squares = (statistics["mean"] - student.mean).square() + statistics["scatter"]
        spread = statistics["spread"]
        spread = torch.where(spread.isnan(), squares.detach(), spread)
        weight = (-student.log_variance).exp().detach()
        return {
            "mean": (weight * squares).mean() / 2,
            "aleatoric": _half_nll(student.log_aleatoric, statistics["noise"]).mean(),
            "epistemic": _half_nll(student.log_epistemic, spread).mean(),
        }


class NormalCRPS(RegressionObjective):
    r"""Continuous ranked probability score of y, and of its mean f, against the teacher.

    .. math::
        \frac{1}{s_y}\left(\mathbb{E}|Y_q - Y_p| - \tfrac12 \mathbb{E}|Y_q - Y_q'|\right)
        + \frac{1}{s_f}\left(\mathbb{E}|f_q - f_p| - \tfrac12 \mathbb{E}|f_q - f_q'|\right)
        + \lambda L_{\text{moments}}

    Exact for mixtures of normals. The term of f says which part of the variance of y is epistemic.
    The student's own deviations of y, :math:`s_y`, and of f, :math:`s_f` (at least :math:`s_y /
    10`), are held, so that inputs count alike. :class:`NormalMoments`, weighed by ``moments``,
    keeps the variances in heavy tails, where the score hardly feels them.

    References:
        Gneiting and Raftery (2007), Strictly proper scoring rules, prediction, and estimation.
    """

    learning_rate = 3e-4
    most_draws = 128  # the loss costs more than so many cheap draws do

    def __init__(self, moments: float = 0.1) -> None:
        super().__init__()
        self.moments = in_range("moments", moments, 0)

    def parts(self, student: RealAnswer, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        normal, parts = student.normal(), student.components()
        wide = normal.scale.detach()
        narrow = torch.maximum((normal.log_epistemic.detach() / 2).exp(), FLOOR * wide)
        moments = NormalMoments().parts(normal, draws, x)
        return {
            "crps_of_y": (crps_of_y(parts, draws) / wide).mean(),
            "crps_of_mean": (crps_of_mean(parts, draws) / narrow).mean(),
            "moments": self.moments * torch.stack(list(moments.values())).sum(),
        }


def _noise(draws: Tensor) -> Tensor:
    """The noise's variance, ``(S, N)``."""
    return (2 * draws[..., 1]).exp()


def _half_nll(log_variance: Tensor, squares: Tensor) -> Tensor:
    """Negative log-likelihood of a normal without its constant, given the mean square error."""
    return (log_variance + (-log_variance).exp() * squares) / 2


RealLossName = Literal["moments", "crps"]
#: Objectives of a real y by name.
REAL_LOSSES: dict[RealLossName, type[RegressionObjective]] = {
    "moments": NormalMoments,
    "crps": NormalCRPS,
}


def as_regression_objective(loss: str | Objective) -> RegressionObjective:
    """Return an objective of real y: "moments", "crps", or a :class:`RegressionObjective`."""
    if isinstance(loss, RegressionObjective):
        return loss
    advice = "Or pass a RegressionObjective, as the teacher's y is real."
    return REAL_LOSSES[one_of("loss", loss, REAL_LOSSES, advice)]()
