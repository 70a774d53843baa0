"""A mixture of Dirichlets: several groups of hypotheses at one input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_opu.checks import ArgumentError, check_tensor
from pyro_opu.distributions.dirichlet import (
    PredictiveDirichlet,
    SimplexDistribution,
    check_point,
    log_dirichlet_rsample,
)
from pyro_opu.distributions.measures import SimplexMeasures, in_float64
from pyro_opu.rng import drawing

__all__ = ["DirichletMixture"]


class DirichletMixture(SimplexDistribution):
    r"""K Dirichlets at every input, each with a weight.

    .. math::
        q(\pi \mid x) = \sum_k w_k(x)\, \mathrm{Dir}\big(\pi \mid m_k(x)\, e^{g_k(x)}\big)

    All measures are exact but the differential entropy, the midpoint of two bounds.
    :meth:`log_rsample` chooses a component for every draw without a gradient for the weights;
    :meth:`stratified_rsample` draws from all and returns the weights.

    Args:
        log_weights: :math:`\log w`, ``(N, K)``, finite; normalised here.
        log_means: :math:`\log m_k`, ``(N, K, C)``, finite; normalised here.
        log_concentrations: :math:`g_k`, ``(N, K)``, finite. Half precision becomes float32.

    Example:
        >>> means = torch.tensor([[[0.9, 0.1], [0.1, 0.9]]])  # two hypotheses that disagree
        >>> mixture = DirichletMixture(torch.zeros(1, 2), means.log(), torch.full((1, 2), 5.0))
        >>> mixture.measures().epistemic
        tensor([0.3714], dtype=torch.float64)
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {  # type: ignore[misc]
        "log_weights": constraints.real_vector,
        "log_means": constraints.independent(constraints.real, 2),
        "log_concentrations": constraints.real_vector,
    }

    def __init__(self, log_weights: Tensor, log_means: Tensor, log_concentrations: Tensor) -> None:
        shape = check_tensor("log_weights", log_weights, "(N, K)", meta=True).shape
        check_tensor("log_means", log_means, "(N, K, C)", meta=True)
        check_tensor("log_concentrations", log_concentrations, "(N, K)", meta=True)
        if (
            log_means.dim() != 3
            or not shape[-1:].numel()
            or {shape, log_means.shape[:2]} != {log_concentrations.shape}
        ):
            raise ArgumentError(
                "`log_weights` must have shape (N, K) with K >= 1, `log_means` (N, K, C) and "
                f"`log_concentrations` (N, K); got {tuple(shape)}, {tuple(log_means.shape)} and "
                f"{tuple(log_concentrations.shape)}. The K components stand on the second axis."
            )
        super().__init__(len(log_means), log_means.shape[-1])
        self.components = PredictiveDirichlet(
            log_means.log_softmax(-1), log_concentrations, validate_args=False
        )
        self.log_means = self.components.log_mean
        self.log_concentrations = self.components.log_concentration
        self.log_weights = log_weights.to(self.log_means.dtype).log_softmax(-1)

    @property
    def log_mean(self) -> Tensor:
        """Exact, ``(N, C)``."""
        return (self.log_weights[..., None] + self.components.log_mean).logsumexp(-2)

    @property
    def variance(self) -> Tensor:
        """Exact, ``(N, C)``: within the components, and of their means."""
        each, weights = self.components, self.log_weights.exp()[..., None]
        between = (each.mean - self.mean[:, None]).square()
        return (weights * (each.variance + between)).sum(-2)

    def log_rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape, weights = torch.Size(sample_shape), self.log_weights.detach().exp()
        with drawing(weights.device) as generator:
            chosen = torch.multinomial(weights, shape.numel(), True, generator=generator)
        rows = torch.arange(len(weights), device=weights.device)
        draws = log_dirichlet_rsample(self.components.log_alpha[rows, chosen.T])
        return draws.reshape(*shape, *draws.shape[1:])

    def stratified_rsample(self, count: int) -> tuple[Tensor, Tensor]:
        """Draws of every component in turn, at least two each, and the weights ``(K, N)``."""
        size = max(2, count // self.log_weights.shape[-1])
        draws = log_dirichlet_rsample(self.components.log_alpha, (size,)).exp()  # (size, N, K, C)
        return draws.movedim(2, 0).flatten(0, 1), self.log_weights.exp().T

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at points ``(..., N, C)``, nats, float64 inside; zeros are raised to tiny."""
        check_point(value)
        logs = value.double().clamp_min(torch.finfo(torch.float64).tiny).log()
        log_weights, alpha = self._float64()
        logs = logs.expand(torch.broadcast_shapes(logs.shape, self.batch_shape + self.event_shape))
        densities = torch.einsum("nkc,...nc->...nk", alpha - 1, logs) - _log_beta(alpha)
        density = (log_weights + densities).logsumexp(-1)
        return density.to(torch.promote_types(value.dtype, self.log_weights.dtype))

    def as_tensors(self) -> dict[str, Tensor]:
        return {
            "log_weights": self.log_weights,
            "log_means": self.log_means,
            "log_concentrations": self.log_concentrations,
        }

    def measures(self) -> SimplexMeasures:
        """Exact; the differential entropy is the midpoint of :meth:`entropy_bounds`."""
        log_weights, alpha = self._float64()
        weights, each = log_weights.exp(), self.components.measures()
        mean = (weights[..., None] * each.mean).sum(-2)
        between = (each.mean - mean[:, None]).square().sum(-1)
        expected_log = alpha.digamma() - alpha.sum(-1, keepdim=True).digamma()
        return SimplexMeasures(
            self.log_weights.dtype,
            (log_weights[..., None] + each.log_mean).logsumexp(-2),
            (weights * each.aleatoric).sum(-1),
            (weights * (each.variance + between)).sum(-1),
            (weights[..., None] * expected_log).sum(-2),
            lambda: torch.stack(self.entropy_bounds()).mean(0),
        )

    def entropy_bounds(self) -> tuple[Tensor, Tensor]:
        r"""A lower and an upper bound on the differential entropy, ``(N,)`` each, float64.

        .. math::
            \sum_k w_k \Big( H[q_k] - \log \sum_j w_j e^{-D(q_k, q_j)} \Big)

        with the Bhattacharyya distance :math:`D = -\log \int \sqrt{q_k q_j}` below and
        :math:`D = KL(q_k\,\|\,q_j)` above; exact where components are equal or do not overlap.

        References:
            Kolchinsky and Tracey (2017), Estimating mixture entropy with pairwise distances, eq.
            10-11.
        """
        log_weights, alpha = self._float64()
        log_beta, total = _log_beta(alpha), alpha.sum(-1, keepdim=True)
        expected_log = alpha.digamma() - total.digamma()
        own = log_beta - ((alpha - 1) * expected_log).sum(-1)  # entropies of the components
        one, other = alpha[:, :, None], alpha[:, None]
        overlap = (log_beta[:, :, None] + log_beta[:, None]) / 2 - _log_beta((one + other) / 2)
        divergence = log_beta[:, None] - log_beta[:, :, None]
        divergence = divergence + ((one - other) * expected_log[:, :, None]).sum(-1)

        def entropy(distance: Tensor) -> Tensor:
            crowd = (log_weights[:, None] - distance.clamp_min(0.0)).logsumexp(-1)
            return (log_weights.exp() * (own - crowd)).sum(-1)

        return entropy(overlap), entropy(divergence)

    def _float64(self) -> tuple[Tensor, Tensor]:
        """Logarithms of the weights ``(N, K)``, and alpha ``(N, K, C)``."""
        log_mean = self.components.log_mean.double().log_softmax(-1)
        parts = in_float64(log_mean, self.components.log_concentration)
        return self.log_weights.double().log_softmax(-1), parts.concentration


def _log_beta(alpha: Tensor) -> Tensor:
    """Logarithm of the normalising constant of a Dirichlet, over the last axis."""
    return torch.lgamma(alpha).sum(-1) - torch.lgamma(alpha.sum(-1))
