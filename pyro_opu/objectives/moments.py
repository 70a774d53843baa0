"""Moment matching in closed form, without a critic or draws from the student."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn.functional import softplus

from pyro_opu.checks import ArgumentError, one_of, positive_float
from pyro_opu.distributions import SimplexDistribution, as_answer
from pyro_opu.objectives.base import Objective
from pyro_opu.objectives.cross_entropy import cross_entropy

#: Least Gini index that "share" weights divide by.
LEAST_GINI = 0.01


class MomentMatching(Objective):
    r"""Cross-entropy for h, and for g the loss that the first two moments minimise.

    .. math::
        \mathcal{L} = -\sum_k m_k \log h_k + \lambda\, \ell(g), \qquad
        \ell(g) = \frac{A\, \mathrm{softplus}(g) + B\, \mathrm{softplus}(-g)}{G(h)}, \qquad
        G(h) = \max\Big(1 - \sum_k h_k^2,\; 0.01\Big)

    For a Dirichlet :math:`\mathbb{E}\,\Sigma\pi^2 = \Sigma m^2 + \rho (1 - \Sigma m^2)` with
    :math:`\rho = 1/(\alpha_0 + 1) = \sigma(-g)`, the epistemic share of the Gini uncertainty. The
    loss is convex in g, and its expectation is least where that share is the teacher's,
    :math:`\sigma(-g) = \mathbb{E}A / \mathbb{E}(A + B)` (:func:`.gini_parts`), since G does not
    depend on the step's draws. With a floor of G below 0.01 the noise of very sure inputs enters
    the trunk, and students of networks end twice as far from their teachers.

    The step of g's own head by Adam does not depend on :math:`\lambda`, which says how much g bends
    what h reads too: shares of single labels are far noisier than their means, and with
    :math:`\lambda = 1` students of networks are left with up to twice the KL.

    Args:
        weights: "share" divides by the Gini index G of the student's own mean, held fixed, so that
            inputs count alike down to an index of 0.01; "variance" does not divide, so that all
            count by their uncertainty.
        concentration: :math:`\lambda > 0`.
    """

    sufficient = True

    def __init__(
        self, weights: Literal["share", "variance"] = "share", concentration: float = 0.1
    ) -> None:
        super().__init__()
        self.weights = one_of("weights", weights, ("share", "variance"))
        self.concentration = positive_float("concentration", concentration, "It weighs g's loss.")

    def parts(self, student: SimplexDistribution, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        """``{"cross_entropy", "moments"}``."""
        return self.parts_at(student, self.statistics(draws), x)

    def statistics(self, draws: Tensor) -> dict[str, Tensor]:
        """``{"mean", "between", "within"}``, A and B the latter two."""
        between, within = gini_parts(draws)
        return {"mean": draws.mean(0), "between": between, "within": within}

    def parts_at(
        self, student: SimplexDistribution, statistics: dict[str, Tensor], x: Tensor
    ) -> dict[str, Tensor]:
        """``{"cross_entropy", "moments"}``."""
        answer = as_answer(student)
        between, within = statistics["between"], statistics["within"]
        loss = concentration_loss(answer.log_concentration, between, within)
        if self.weights == "share":
            loss = loss / gini_index(answer.log_mean.detach()).clamp_min(LEAST_GINI)
        mean = cross_entropy(student, statistics["mean"])
        return {"cross_entropy": mean, "moments": self.concentration * loss.mean()}


def gini_parts(draws: Tensor) -> tuple[Tensor, Tensor]:
    r"""Between-draw and within-draw parts of the Gini uncertainty, both unbiased for S >= 2.

    .. math::
        A = \operatorname{mean}_s \|\pi_s\|^2
        - \operatorname{mean}_{s \neq s'} \pi_s \cdot \pi_{s'}, \qquad
        B = 1 - \operatorname{mean}_s \|\pi_s\|^2

    From draws ``(S, N, C)``, ``(A, B)``, each ``(N,)``: A is the summed variance of the class
    probabilities, and A + B estimates the Gini index of the mean.
    """
    count = len(draws)
    if count < 2:
        raise ArgumentError(
            f"`draws` must hold at least two draws per input; got shape {tuple(draws.shape)}. "
            "One draw says nothing about the spread."
        )
    # Centred, so that a spread of 1e-6 beside a mean of 0.9 keeps its digits in float32. Summing
    # over draws first is ten times as fast as `var`.
    between = (draws - draws.mean(0)).square().sum(0).sum(-1) / (count - 1)
    within = (draws * (1 - draws)).mean(0).sum(-1)
    return between, within


def concentration_loss(g: Tensor, between: Tensor, within: Tensor) -> Tensor:
    """The loss in g of :class:`MomentMatching` before division by G, per input ``(N,)``."""
    return between * softplus(g) + within * softplus(-g)


def gini_index(log_mean: Tensor) -> Tensor:
    r""":math:`1 - \sum_k h_k^2` from logarithms ``(N, C)``, ``(N,)``; exact at sure inputs, too."""
    return -(log_mean.exp() * log_mean.expm1()).sum(-1)
