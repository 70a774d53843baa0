"""Measures of uncertainty of any distribution on the simplex from a few of its moments."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class SimplexMeasures:
    r"""The measures of :mod:`pyro_opu.uncertainty` that follow from four moments.

    .. math::
        \text{total} = H[m], \quad \text{epistemic} = H[m] - \mathrm{E} H[\pi], \quad
        \mathrm{E}\,KL(\pi\,\|\,\pi') = -\mathrm{E} H[\pi] - \sum_k m_k\, \mathrm{E}\log\pi_k, \quad
        \alpha_0 = \frac{1 - \sum_k m_k^2 - v}{v}

    with the summed variance :math:`v = \sum_k \mathrm{Var}\,\pi_k`. Exact where the moments are.

    Args:
        dtype: What a caller rounds to; all here is float64.
        log_mean: :math:`\log m`, ``(N, C)``.
        aleatoric: :math:`\mathrm{E} H[\pi]`, ``(N,)``.
        variance: v, ``(N,)``.
        expected_log: :math:`\mathrm{E}\log\pi_k`, ``(N, C)``; minus infinity where a class has
            probability zero with positive probability.
        differential_entropy: Called for it when asked; minus infinity where there is no density.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        log_mean: Tensor,
        aleatoric: Tensor,
        variance: Tensor,
        expected_log: Tensor,
        differential_entropy: Callable[[], Tensor] | None = None,
    ) -> None:
        self.dtype = dtype
        self.log_mean = log_mean.double().log_softmax(-1)
        self.mean = self.log_mean.exp()
        self.variance = variance.double().clamp(min=0.0)
        self.aleatoric = aleatoric.double().clamp(min=0.0)
        self._expected_log = expected_log.double()
        self._entropy = differential_entropy

    @property
    def total(self) -> Tensor:
        """Entropy of the mean."""
        return -(self.mean * self.log_mean).sum(-1)

    @property
    def epistemic(self) -> Tensor:
        """Mutual information of label and parameters."""
        return (self.total - self.aleatoric).clamp(min=0.0)

    @property
    def expected_pairwise_kl(self) -> Tensor:
        """Expected divergence of two independent draws."""
        cross = -(self.mean * self._expected_log).sum(-1)
        return (cross - self.aleatoric).clamp(min=0.0)

    @property
    def max_probability(self) -> Tensor:
        """Largest component of the mean."""
        return self.mean.amax(-1)

    @property
    def concentration(self) -> Tensor:
        """That of the Dirichlet with this mean and variance; infinite where there is no spread."""
        within = -(self.mean * self.log_mean.expm1()).sum(-1) - self.variance
        return torch.where(self.variance > 0, within.clamp(min=0.0) / self.variance, torch.inf)

    @property
    def differential_entropy(self) -> Tensor:
        """Of the density on the simplex."""
        if self._entropy is None:
            return torch.full_like(self.variance, -torch.inf)
        return self._entropy().double()
