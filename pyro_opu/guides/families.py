"""Guides of one head by family: single head, point, mixture, logistic-normal."""

from __future__ import annotations

from torch import Tensor, nn

from pyro_opu.checks import positive_int
from pyro_opu.distributions import DirichletMixture, Empirical, LogisticNormal
from pyro_opu.distributions.base import soft_clamp
from pyro_opu.distributions.dirichlet import LOG_CONCENTRATION_RANGE, PredictiveDirichlet
from pyro_opu.guides.base import TrunkGuide

#: Range of a logit's log standard deviation. The logarithm of a gamma variate has the deviation
#: alpha^(-1/2) for large alpha and 1 / alpha for small: about the range of a Dirichlet guide.
LOG_SCALE_RANGE = (-8.0, 4.0)
#: Range of the entries of the factor: the largest deviation.
FACTOR_RANGE = (-50.0, 50.0)


class SingleHeadGuide(TrunkGuide):
    r"""A Dirichlet with :math:`\alpha(x) = \exp z(x)`, the usual form of the literature.

    The mean softmax(z) and the concentration :math:`\sum_k e^{z_k}` cannot move without each other,
    as they do in :class:`~pyro_opu.PredictiveGuide`. Arguments as of :class:`TrunkGuide`.

    References:
        Malinin and Gales (2018), Predictive uncertainty estimation via prior networks, section 3.
    """

    kind = "single_head"
    form = "alpha(x) = exp(z(x)), one head"

    def answer(self, outputs: Tensor) -> PredictiveDirichlet:
        log_concentration = soft_clamp(outputs.logsumexp(-1), *LOG_CONCENTRATION_RANGE)
        return PredictiveDirichlet(outputs.log_softmax(-1), log_concentration, validate_args=False)


class PointGuide(TrunkGuide):
    r"""Class probabilities alone, :math:`S(y = k \mid x, w) = \mathrm{softmax}_k z(x)`.

    One point of the simplex, whose only measure of uncertainty is the entropy of the mean.
    Arguments as of :class:`TrunkGuide`.

    References:
        Korattikara, Rathod, Murphy and Welling (2015), Bayesian Dark Knowledge, section 2.1.
    """

    kind = "point"
    form = "class probabilities h(x), no spread"

    def answer(self, outputs: Tensor) -> Empirical:
        return Empirical(outputs.log_softmax(-1)[None])


class MixtureGuide(TrunkGuide):
    r"""A mixture of K Dirichlets, for posteriors whose draws fall into groups.

    .. math::
        q(\pi \mid x) = \sum_k w_k(x)\, \mathrm{Dir}\big(\pi \mid h_k(x)\, e^{g_k(x)}\big)

    Means and concentrations are separated and bounded as in :class:`~pyro_opu.PredictiveGuide`.
    More components than the posterior has groups (``num_components`` K >= 1) cost little and help,
    since two may settle on the same group. Other arguments as of :class:`TrunkGuide`.
    """

    kind = "mixture"
    form = "mixture of {0.num_components} Dirichlets"
    options = ("num_components",)

    def __init__(
        self, trunk: nn.Module, num_features: int, num_classes: int, num_components: int = 8
    ) -> None:
        advice = "1 is a single Dirichlet."
        self.num_components = positive_int("num_components", num_components, advice=advice)
        super().__init__(trunk, num_features, num_classes)

    def num_outputs(self, num_classes: int) -> int:
        return self.num_components * (num_classes + 2)  # a weight, a concentration, a mean each

    def answer(self, outputs: Tensor) -> DirichletMixture:
        outputs = outputs.unflatten(-1, (self.num_components, -1))
        log_concentrations = soft_clamp(outputs[..., 1], *LOG_CONCENTRATION_RANGE)
        return DirichletMixture(outputs[..., 0], outputs[..., 2:], log_concentrations)


class LogisticNormalGuide(TrunkGuide):
    r"""Softmax of Gaussian logits, :math:`z = \mu(x) + \sigma(x) \odot \epsilon + F(x)\, \eta`.

    The low-rank part F, of ``rank`` R >= 0 columns, correlates classes, as logits that share a
    posterior are. :class:`~pyro_opu.distributions.LogisticNormal` says what is exact. Other
    arguments as of :class:`TrunkGuide`.
    """

    kind = "logistic_normal"
    form = "softmax of Gaussian logits, diagonal plus rank {0.rank}"
    options = ("rank",)

    def __init__(
        self, trunk: nn.Module, num_features: int, num_classes: int, rank: int = 2
    ) -> None:
        self.rank = positive_int("rank", rank, 0, "0 is independent logits.")
        super().__init__(trunk, num_features, num_classes)

    def num_outputs(self, num_classes: int) -> int:
        return num_classes * (2 + self.rank)  # a mean, a log deviation, a row of the factor each

    def answer(self, outputs: Tensor) -> LogisticNormal:
        outputs = outputs.unflatten(-1, (self.num_classes, -1))
        return LogisticNormal(
            outputs[..., 0],
            soft_clamp(outputs[..., 1], *LOG_SCALE_RANGE),
            soft_clamp(outputs[..., 2:], *FACTOR_RANGE),
        )
