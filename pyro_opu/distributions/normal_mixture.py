"""A mixture of normals, for teachers whose draws do not lie around one value."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_opu.distributions.normal import Components, PredictiveNormal, RealAnswer

__all__ = ["PredictiveNormalMixture"]


class PredictiveNormalMixture(RealAnswer, dist.MixtureSameFamily):
    r"""A mixture of K normals of y, each with an aleatoric and an epistemic variance.

    .. math::
        p(y) = \sum_k w_k N(y \mid \mu_k, a_k + e_k), \qquad
        a = \sum_k w_k a_k, \quad e = \sum_k w_k \left[e_k + (\mu_k - \mu)^2\right]

    with :math:`\mu = \sum_k w_k \mu_k`: what lies between the components is epistemic.

    Args:
        components: Weights, means and variances, ``(N, K)`` each.
        validate_args: As in torch's distributions.
    """

    def __init__(self, components: Components, validate_args: bool | None = None) -> None:
        self._components = components
        log_variance = torch.logaddexp(components.log_aleatoric, components.log_epistemic)
        super().__init__(
            dist.Categorical(logits=components.log_weights, validate_args=validate_args),
            dist.Normal(components.mean, (log_variance / 2).exp(), validate_args=validate_args),
            validate_args=validate_args,
        )

    def __repr__(self) -> str:
        *batch, normals = self._components.mean.shape
        return f"PredictiveNormalMixture(shape {tuple(batch)}, K: {normals})"

    @property
    def log_aleatoric(self) -> Tensor:  # type: ignore[override]
        """Logarithm of :attr:`aleatoric`."""
        return (self._components.log_weights + self._components.log_aleatoric).logsumexp(-1)

    @property
    def log_epistemic(self) -> Tensor:  # type: ignore[override]
        """Logarithm of :attr:`epistemic`."""
        parts = self._components
        between = (parts.mean - self.mean[..., None]).square()
        variance = parts.log_epistemic.exp() + between
        return (parts.log_weights.exp() * variance).sum(-1).log()

    def components(self) -> Components:
        """The weighted normals, ``(N, K)``."""
        return self._components

    def normal(self) -> PredictiveNormal:
        """The normal with the same mean and the same two variances."""
        return PredictiveNormal(
            self.mean, self.log_aleatoric, self.log_epistemic, validate_args=False
        )

    def as_tensors(self) -> dict[str, Tensor]:
        """The fields of :class:`Components`."""
        return dict(vars(self._components))

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> PredictiveNormalMixture:
        """Build the mixture from :meth:`as_tensors`."""
        return cls(Components(**tensors), validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> PredictiveNormalMixture:
        """The same mixture over a larger batch."""
        shape = (*batch_shape, self._components.mean.shape[-1])
        return self.from_tensors({k: part.expand(shape) for k, part in self.as_tensors().items()})
