"""Maximum likelihood of the teacher's draws, alone (EnD^2) or before the energy distance."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_opu.checks import in_range
from pyro_opu.distributions import SimplexDistribution, as_answer
from pyro_opu.objectives.base import Objective
from pyro_opu.objectives.energy import EnergyDistance


class DirichletLikelihood(Objective):
    r"""Negative log-likelihood of the draws, the forward KL up to a constant, in nats.

    .. math::
        -\mathbb{E}_x \Big[ \log\Gamma(\alpha_0) - \sum_k \log\Gamma(\alpha_k)
        + \sum_k (\alpha_k - 1)\, \tfrac1S \textstyle\sum_s \log \tilde\pi_{sk} \Big],
        \quad \tilde\pi = (1 - \varepsilon)\, \pi + \varepsilon / C

    A poor target where the draws do not look like a Dirichlet: it trades the mean for the
    logarithms of the rarest classes, and on a line between two corners it corrupts both.

    Args:
        smoothing: :math:`\varepsilon` in [0, 1), how far draws are moved towards the uniform
            vector.

    References:
        Malinin, Mlodozeniec and Gales (2020), Ensemble Distribution Distillation, section 3.
    """

    def __init__(self, smoothing: float = 1e-4) -> None:
        super().__init__()
        self.smoothing = in_range("smoothing", smoothing, 0, 1, "[)")

    def parts(self, student: SimplexDistribution, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        """``{"negative_log_likelihood"}``."""
        smooth = (1 - self.smoothing) * draws.double() + self.smoothing / draws.shape[-1]
        smooth = smooth.clamp_min(torch.finfo(draws.dtype).tiny)
        value = -as_answer(student).mean_log_prob(smooth)
        return {"negative_log_likelihood": value.to(draws.dtype)}


class LikelihoodFirst(EnergyDistance):
    """Likelihood of the draws for the fraction ``until`` of the steps, then the energy distance.

    The energy distance sees the marginal of every class and not their dependence, so that from
    scratch it may pair the wrong classes in the components of a mixture. A student that has found
    the groups of draws by likelihood, itself a poor target elsewhere, keeps them.
    """

    def __init__(self, until: float = 0.3, num_samples: int = 64, likelihood: float = 1.0) -> None:
        super().__init__(num_samples, likelihood)
        self.until = in_range("until", until, 0, 1, advice="It is a fraction of the steps.")
        self.first = DirichletLikelihood()
        self._progress = 0.0

    def anneal(self, progress: float) -> None:
        self._progress = progress

    def parts(self, student: SimplexDistribution, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        if self._progress < self.until:
            return self.first.parts(student, draws, x)
        return super().parts(student, draws, x)
