"""A Dirichlet whose parameter is one head: mean and concentration not divided."""

from __future__ import annotations

from torch import Tensor

from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.guides.dirichlet import LOG_CONCENTRATION_RANGE, soft_clamp
from pyro_opu.guides.trunk import TrunkGuide

__all__ = ["UndividedGuide"]


class UndividedGuide(TrunkGuide):
    r"""A Dirichlet with :math:`\alpha(x) = \exp z(x)`, the usual form of the literature.

    The mean is softmax(z) and the concentration :math:`\sum_k e^{z_k}`, so that one cannot move
    without the other: :class:`~pyro_opu.PredictiveGuide` divides the two.

    Args:
        trunk: Any module ``x (N, ...) -> features (N, F)``.
        num_features: F.
        num_classes: C >= 2.

    Raises:
        TypeError: ``trunk`` is not a module.
        ValueError: fewer than two classes.

    References:
        Malinin and Gales (2018), Predictive uncertainty estimation via prior networks, section 3.
    """

    kind = "undivided"

    def num_outputs(self, num_classes: int) -> int:
        """C logarithms of alpha."""
        return num_classes

    def answer(self, outputs: Tensor) -> PredictiveDirichlet:
        """The Dirichlet; its concentration is bent into the range of the divided guide."""
        log_concentration = soft_clamp(outputs.logsumexp(-1), *LOG_CONCENTRATION_RANGE)
        return PredictiveDirichlet(outputs.log_softmax(-1), log_concentration, validate_args=False)

    def extra_repr(self) -> str:
        return "alpha(x) = exp(z(x)), one head"
