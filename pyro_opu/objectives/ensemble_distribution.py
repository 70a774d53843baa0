"""Ensemble distribution distillation: the likelihood of the draws, annealed by a temperature."""

from __future__ import annotations

from pyro.distributions import Dirichlet
from torch import Tensor

from pyro_opu.checks import in_range
from pyro_opu.distributions.dirichlet import PredictiveDirichlet, as_predictive
from pyro_opu.objectives.likelihood import DirichletLikelihood

#: Fraction of the training at the first temperature, and fraction at which it has come down to 1.
HOLD_UNTIL, COOL_UNTIL = 1 / 3, 2 / 3


class EnsembleDistribution(DirichletLikelihood):
    r"""Negative log-likelihood of heated draws under the heated student, in nats.

    .. math::
        -\mathbb{E}_x \tfrac1S \sum_s \log \mathrm{Dir}\big(\tilde\pi_s^{(T)} \mid
        \alpha(x)^{1/T}\big), \qquad
        \pi_{sk}^{(T)} = \frac{\pi_{sk}^{1/T}}{\sum_j \pi_{sj}^{1/T}}, \quad
        \tilde\pi = (1 - \varepsilon)\, \pi + \varepsilon / C

    Draws near a corner of the simplex have steep gradients under a student that starts flat; heat
    moves both towards the middle. At T = 1 it is :class:`.DirichletLikelihood`. T stays at
    ``temperature`` (at least 1) for the first third of the steps, falls linearly over the second
    and is 1 over the last. A student that fits heated draws has the T-th power of their parameter,
    so that a guide held in its range learns little but its mean until T has fallen;
    :func:`pyro_opu.rivals.endd` lifts that bound.

    References:
        Malinin, Mlodozeniec and Gales (2020), Ensemble Distribution Distillation, section 3.
        Differences: the thirds stand for a schedule tied to a learning rate cycle; the factor
        :math:`T^2` of the authors' code is left out, since Adam's steps do not see it.
    """

    def __init__(self, temperature: float = 10.0, smoothing: float = 1e-4) -> None:
        super().__init__(smoothing)
        in_range("temperature", temperature, 1, advice="1 trains without annealing.")
        self.temperature = temperature
        self._now = temperature

    def anneal(self, progress: float) -> None:
        """Set T for the fraction of the training that is done, in [0, 1]."""
        cooled = min(max((progress - HOLD_UNTIL) / (COOL_UNTIL - HOLD_UNTIL), 0.0), 1.0)
        self._now = self.temperature + cooled * (1.0 - self.temperature)

    def parts(self, student: Dirichlet, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        return super().parts(heated(student, self._now), heated_draws(draws, self._now), x)


def heated(student: Dirichlet, temperature: float) -> PredictiveDirichlet:
    r"""The Dirichlet with parameter :math:`\alpha^{1/T}`."""
    log_alpha = as_predictive(student).log_alpha / temperature
    return PredictiveDirichlet(
        log_alpha.log_softmax(-1), log_alpha.logsumexp(-1), validate_args=False
    )


def heated_draws(draws: Tensor, temperature: float) -> Tensor:
    r"""Draws proportional to :math:`\pi^{1/T}`, ``(S, N, C)``; exactly the draws at T = 1."""
    if temperature == 1:
        return draws
    powers = draws.pow(1 / temperature)
    return powers / powers.sum(-1, keepdim=True)
