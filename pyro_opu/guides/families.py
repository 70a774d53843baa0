"""Guides of one head by family: single head, point, mixture, logistic-normal."""

from __future__ import annotations

from torch import Tensor, nn

from pyro_opu.checks import positive_int
from pyro_opu.distributions import DirichletMixture, Empirical, LogisticNormal
from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.guides.base import TrunkGuide
from pyro_opu.guides.dirichlet import LOG_CONCENTRATION_RANGE, soft_clamp

#: Range of a logit's log standard deviation. The logarithm of a gamma variate has the deviation
#: alpha^(-1/2) for large alpha and 1 / alpha for small: about the range of a Dirichlet guide.
LOG_SCALE_RANGE = (-8.0, 4.0)
#: Range of the entries of the factor: the largest deviation.
FACTOR_RANGE = (-50.0, 50.0)


class SingleHeadGuide(TrunkGuide):
    r"""A Dirichlet with :math:`\alpha(x) = \exp z(x)`, the usual form of the literature.

    The mean softmax(z) and the concentration :math:`\sum_k e^{z_k}` cannot move without each other;
    :class:`~pyro_opu.PredictiveGuide` separates them. Takes ``trunk``, ``num_features`` and
    ``num_classes`` as :class:`TrunkGuide` does.

    References:
        Malinin and Gales (2018), Predictive uncertainty estimation via prior networks, section 3.
    """

    kind = "single_head"

    def answer(self, outputs: Tensor) -> PredictiveDirichlet:
        """The Dirichlet; its concentration is bent into ``LOG_CONCENTRATION_RANGE``."""
        log_concentration = soft_clamp(outputs.logsumexp(-1), *LOG_CONCENTRATION_RANGE)
        return PredictiveDirichlet(outputs.log_softmax(-1), log_concentration, validate_args=False)

    def extra_repr(self) -> str:
        return "alpha(x) = exp(z(x)), one head"


class PointGuide(TrunkGuide):
    r"""Class probabilities alone, :math:`S(y = k \mid x, w) = \mathrm{softmax}_k z(x)`.

    The student of Bayesian Dark Knowledge: one point of the simplex, whose only measure of
    uncertainty is the entropy of the mean. Arguments as of :class:`TrunkGuide`.

    References:
        Korattikara, Rathod, Murphy and Welling (2015), Bayesian Dark Knowledge, section 2.1.
    """

    kind = "point"

    def answer(self, outputs: Tensor) -> Empirical:
        """One point per input."""
        return Empirical(outputs.log_softmax(-1)[None])

    def extra_repr(self) -> str:
        return "class probabilities h(x), no spread"


class MixtureGuide(TrunkGuide):
    r"""A mixture of K Dirichlets, for posteriors whose draws fall into groups.

    .. math::
        q(\pi \mid x) = \sum_k w_k(x)\, \mathrm{Dir}\big(\pi \mid h_k(x)\, e^{g_k(x)}\big)

    Means and concentrations are separated and bounded as in :class:`~pyro_opu.PredictiveGuide`. The
    random weights of the head set the components apart at the start.

    Args:
        trunk, num_features, num_classes: As of :class:`TrunkGuide`.
        num_components: K >= 1. More than the posterior has groups costs little and helps, since
            two components may settle on the same group.

    Example:
        >>> import torch
        >>> guide = MixtureGuide(torch.nn.Linear(4, 16), 16, num_classes=3)
        >>> guide(torch.zeros(5, 4))
        DirichletMixture(N: 5, C: 3)
    """

    kind = "mixture"
    options = ("num_components",)

    def __init__(
        self, trunk: nn.Module, num_features: int, num_classes: int, num_components: int = 8
    ) -> None:
        self.num_components = positive_int(
            "num_components", num_components, advice="1 is a single Dirichlet."
        )
        super().__init__(trunk, num_features, num_classes)

    def num_outputs(self, num_classes: int) -> int:
        """A weight, a concentration and C logits of the mean for every component."""
        return self.num_components * (num_classes + 2)

    def answer(self, outputs: Tensor) -> DirichletMixture:
        """The mixture; its concentrations are bent into ``LOG_CONCENTRATION_RANGE``."""
        outputs = outputs.unflatten(-1, (self.num_components, -1))
        log_concentrations = soft_clamp(outputs[..., 1], *LOG_CONCENTRATION_RANGE)
        return DirichletMixture(outputs[..., 0], outputs[..., 2:], log_concentrations)

    def extra_repr(self) -> str:
        return f"mixture of {self.num_components} Dirichlets"


class LogisticNormalGuide(TrunkGuide):
    r"""Softmax of Gaussian logits, :math:`z = \mu(x) + \sigma(x) \odot \epsilon + F(x)\, \eta`.

    The low-rank part F correlates classes, as logits that share a posterior are.
    :class:`~pyro_opu.distributions.LogisticNormal` says what is exact. :math:`\log\sigma` is bent
    into [-8, 4] and the entries of F into [-50, 50].

    Args:
        trunk, num_features, num_classes: As of :class:`TrunkGuide`.
        rank: R >= 0, columns of the factor.
    """

    kind = "logistic_normal"
    options = ("rank",)

    def __init__(
        self, trunk: nn.Module, num_features: int, num_classes: int, rank: int = 2
    ) -> None:
        self.rank = positive_int("rank", rank, 0, "0 is independent logits.")
        super().__init__(trunk, num_features, num_classes)

    def num_outputs(self, num_classes: int) -> int:
        """A mean, a log deviation and a row of the factor for every class."""
        return num_classes * (2 + self.rank)

    def answer(self, outputs: Tensor) -> LogisticNormal:
        """The Gaussian logits; deviations and factor bent into their ranges."""
        outputs = outputs.unflatten(-1, (self.num_classes, -1))
        return LogisticNormal(
            outputs[..., 0],
            soft_clamp(outputs[..., 1], *LOG_SCALE_RANGE),
            soft_clamp(outputs[..., 2:], *FACTOR_RANGE),
        )

    def extra_repr(self) -> str:
        return f"softmax of Gaussian logits, diagonal plus rank {self.rank}"
