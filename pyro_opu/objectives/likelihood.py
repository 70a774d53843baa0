"""Maximum likelihood of the teacher's draws under the student's Dirichlet (EnD^2)."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_opu.checks import in_range
from pyro_opu.distributions import Answer, SimplexDistribution
from pyro_opu.distributions.dirichlet import as_predictive
from pyro_opu.objectives.base import Objective


class DirichletLikelihood(Objective):
    r"""Negative log-likelihood of the draws, the forward KL up to a constant, in nats.

    .. math::
        -\mathbb{E}_x \Big[ \log\Gamma(\alpha_0) - \sum_k \log\Gamma(\alpha_k)
        + \sum_k (\alpha_k - 1)\, \tfrac1S \textstyle\sum_s \log \tilde\pi_{sk} \Big],
        \quad \tilde\pi = (1 - \varepsilon)\, \pi + \varepsilon / C

    Where the draws do not look like a Dirichlet it is a poor target: it trades the mean for the
    logarithms of the rarest classes, and on a line between two corners it corrupts both.

    Args:
        smoothing: :math:`\varepsilon`, how far draws are moved towards the uniform vector.

    Raises:
        ValueError: ``smoothing`` outside [0, 1).

    References:
        Malinin, Mlodozeniec and Gales (2020), Ensemble Distribution Distillation, section 3.
    """

    def __init__(self, smoothing: float = 1e-4) -> None:
        super().__init__()
        self.smoothing = in_range("smoothing", smoothing, 0, 1, "[)")

    def parts(self, student: Answer, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        """``{"negative_log_likelihood"}``."""
        smooth = (1 - self.smoothing) * draws.double() + self.smoothing / draws.shape[-1]
        if isinstance(student, SimplexDistribution):
            value = -student.log_prob(smooth).mean()
            return {"negative_log_likelihood": value.to(draws.dtype)}
        # float64: at alpha_0 = 1e6 the gammas are 1e7 each, and float32 would leave only rounding.
        log_alpha = as_predictive(student).log_alpha.double()
        alpha = log_alpha.exp()
        total = alpha.sum(-1)
        mean_log = smooth.clamp_min(torch.finfo(draws.dtype).tiny).log().mean(0)
        # log Gamma(a) = log Gamma(a + 1) - log a stays finite as a -> 0.
        log_norm = torch.lgamma(total) - (torch.lgamma(alpha + 1) - log_alpha).sum(-1)
        value = -(log_norm + ((alpha - 1) * mean_log).sum(-1)).mean()
        return {"negative_log_likelihood": value.to(draws.dtype)}
