"""A student with several groups of hypotheses at one input: a mixture of Dirichlets."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pyro_opu.checks import positive_int
from pyro_opu.distributions import DirichletMixture
from pyro_opu.guides.dirichlet import LOG_CONCENTRATION_RANGE, soft_clamp
from pyro_opu.guides.trunk import TrunkGuide

__all__ = ["MixtureGuide"]


class MixtureGuide(TrunkGuide):
    r"""K Dirichlets at every input, each with a mean, a concentration and a weight of its own.

    .. math::
        q(\pi \mid x) = \sum_k w_k(x)\, \mathrm{Dir}\big(\pi \mid h_k(x)\, e^{g_k(x)}\big)

    Where the posterior holds hypotheses that contradict each other its draws fall into groups,
    and no single Dirichlet has more than one. Means and concentrations are divided and bounded as
    in :class:`~pyro_opu.PredictiveGuide`. The components begin apart, each with random logits
    of its own beside those that x gives, so that they do not learn the same.

    Args:
        trunk: Any module ``x (N, ...) -> features (N, F)``.
        num_features: F.
        num_classes: C >= 2.
        num_components: K >= 1. More than the posterior has groups costs little and helps, since
            two components may settle on the same group.

    Raises:
        TypeError: ``trunk`` is not a module.
        ValueError: fewer than two classes, or no component.

    Example:
        >>> import torch
        >>> guide = MixtureGuide(torch.nn.Linear(4, 16), 16, num_classes=3)
        >>> guide(torch.zeros(5, 4))
        DirichletMixture(N: 5, C: 3)
    """

    kind = "mixture"

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
        """The mixture; its concentrations are bent into the range of the divided guide."""
        outputs = outputs.unflatten(-1, (self.num_components, -1))
        log_concentrations = soft_clamp(outputs[..., 1], *LOG_CONCENTRATION_RANGE)
        return DirichletMixture(outputs[..., 0], outputs[..., 2:], log_concentrations)

    def options(self) -> dict[str, Any]:
        """The number of components."""
        return {"num_components": self.num_components}

    def extra_repr(self) -> str:
        return f"mixture of {self.num_components} Dirichlets"
