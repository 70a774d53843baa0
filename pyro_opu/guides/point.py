"""The student of Bayesian Dark Knowledge: class probabilities and no spread."""

from __future__ import annotations

from torch import Tensor

from pyro_opu.distributions import Atoms
from pyro_opu.guides.trunk import TrunkGuide

__all__ = ["PointGuide"]


class PointGuide(TrunkGuide):
    r"""Class probabilities alone, :math:`S(y = k \mid x, w) = \mathrm{softmax}_k z(x)`.

    It answers with one point of the simplex (:class:`~pyro_opu.distributions.Atoms`): what it knows
    of uncertainty is the entropy of the mean.

    Args:
        trunk: Any module ``x (N, ...) -> features (N, F)``.
        num_features: F.
        num_classes: C >= 2.

    Raises:
        TypeError: ``trunk`` is not a module.
        ValueError: fewer than two classes.

    References:
        Korattikara, Rathod, Murphy and Welling (2015), Bayesian Dark Knowledge, section 2.1.
    """

    kind = "point"

    def num_outputs(self, num_classes: int) -> int:
        """C logits."""
        return num_classes

    def answer(self, outputs: Tensor) -> Atoms:
        """One point per input."""
        return Atoms(outputs.log_softmax(-1)[None])

    def extra_repr(self) -> str:
        return "class probabilities h(x), no spread"
