"""The two ways to one list of measures: closed forms of a Dirichlet, estimates from draws.

Both classes have the same properties, in the same order, and cache what several of them share. The
formulas and what is estimated are in :mod:`pyro_opu.uncertainty`, which is the public face.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from pyro_opu.distributions.dirichlet import PredictiveDirichlet, as_predictive


class DirichletMeasures:
    """Closed forms; every property is float64 and of the batch shape."""

    def __init__(self, dirichlet: torch.distributions.Dirichlet) -> None:
        predictive = as_predictive(dirichlet)
        self.dtype = predictive.log_mean.dtype
        # A float32 row sums to 1 within 1e-7 only, too coarse to subtract entropies: do it again.
        self.log_mean = predictive.log_mean.double().log_softmax(-1)
        self.mean = self.log_mean.exp()
        self.log_alpha_0 = predictive.log_concentration.double()

    @cached_property
    def total(self) -> Tensor:
        return -(self.mean * self.log_mean).sum(-1)

    @cached_property
    def epistemic(self) -> Tensor:
        log_alpha_0 = self.log_alpha_0.unsqueeze(-1)
        gap = _digamma_gap(self.log_mean + log_alpha_0) - _digamma_gap(log_alpha_0)
        return (self.mean * gap).sum(-1).clamp(min=0.0)

    @property
    def aleatoric(self) -> Tensor:
        return (self.total - self.epistemic).clamp(min=0.0)

    @property
    def expected_pairwise_kl(self) -> Tensor:
        return (self.mean.shape[-1] - 1) * (-self.log_alpha_0).exp()

    @property
    def variance(self) -> Tensor:
        return -(self.mean * self.log_mean.expm1()).sum(-1) / (self.concentration + 1.0)

    @property
    def max_probability(self) -> Tensor:
        return self.mean.amax(-1)

    @property
    def differential_entropy(self) -> Tensor:
        return PredictiveDirichlet(self.log_mean, self.log_alpha_0, validate_args=False).entropy()

    @property
    def concentration(self) -> Tensor:
        return self.log_alpha_0.exp()


_LOG_SERIES_FROM = 3.5  # a = 33


def _digamma_gap(log_a: Tensor) -> Tensor:
    """``digamma(a + 1) - log(a)``, positive, without the cancellation at large ``a``."""
    inverse = (-log_a).clamp(max=-_LOG_SERIES_FROM).exp()
    square = inverse * inverse
    # The next term, 1 / (132 a^10), is below 1e-17 here.
    series = inverse / 2 - square * (
        1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240))
    )
    direct = torch.digamma(log_a.clamp(max=_LOG_SERIES_FROM).exp() + 1.0) - log_a
    return torch.where(log_a > _LOG_SERIES_FROM, series, direct)


class DrawMeasures:
    """Estimates from draws; every property is float64 and of shape (N,)."""

    def __init__(self, draws: Tensor) -> None:
        _check_draws(draws)
        self.draws = draws.float() if draws.dtype in (torch.float16, torch.bfloat16) else draws
        self.dtype = self.draws.dtype

    @property
    def spread(self) -> Tensor:
        """The draws, for a measure of how they differ."""
        if len(self.draws) < 2:
            raise ValueError(
                "`source` must hold at least 2 draws (S, N, C) for a measure of their spread; got "
                f"shape {tuple(self.draws.shape)}. Draw more, or ask for total_uncertainty, "
                "aleatoric_uncertainty or max_probability."
            )
        return self.draws

    def _mean_over_draws(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Average of a function of points, in float64 blocks that stay in cache (2 MB)."""
        first, *rest = self.draws.split(max(1, 2**18 // max(1, self.draws[0].numel())))
        total = function(first.double()).sum(0)
        for block in rest:
            total = total + function(block.double()).sum(0)
        return total / len(self.draws)

    @cached_property
    def mean(self) -> Tensor:
        return self._mean_over_draws(lambda p: p)

    @cached_property
    def total(self) -> Tensor:
        return torch.special.entr(self.mean).sum(-1)

    @cached_property
    def aleatoric(self) -> Tensor:
        return self._mean_over_draws(lambda p: torch.special.entr(p).sum(-1))

    @property
    def epistemic(self) -> Tensor:
        _ = self.spread
        return (self.total - self.aleatoric).clamp(min=0.0)

    @property
    def expected_pairwise_kl(self) -> Tensor:
        count, tiny = len(self.spread), torch.finfo(self.dtype).tiny
        mean_log = self._mean_over_draws(lambda p: p.clamp(min=tiny).log())
        cross_entropy = -(self.mean * mean_log).sum(-1)
        return ((cross_entropy - self.aleatoric) * count / (count - 1)).clamp(min=0.0)

    @cached_property
    def variance(self) -> Tensor:
        count = len(self.spread)
        square = self._mean_over_draws(lambda p: (p - self.mean).square().sum(-1))
        return square * (count / (count - 1))

    @property
    def max_probability(self) -> Tensor:
        return self.mean.amax(-1)

    @cached_property
    def concentration(self) -> Tensor:
        within = self._mean_over_draws(lambda p: (p * (1.0 - p)).sum(-1))
        return torch.where(self.variance > 0, within / self.variance, torch.inf)

    @property
    def differential_entropy(self) -> Tensor:
        alpha_0, log_mean = self.concentration, self.mean.log()
        value = PredictiveDirichlet(log_mean, alpha_0.log(), validate_args=False).entropy()
        return torch.where((alpha_0 > 0) & alpha_0.isfinite(), value, -torch.inf)


def _check_draws(draws: Tensor) -> None:
    expected = "`source` must be draws (S, N, C) on the simplex, C >= 2"
    if not draws.is_floating_point() or draws.dim() != 3 or draws.shape[-1] < 2 or not len(draws):
        raise ValueError(
            f"{expected}; got shape {tuple(draws.shape)}, {draws.dtype}. "
            "Add the missing axis with unsqueeze, or pass return_sites=('probs',) to Predictive."
        )
    draws = draws.detach()
    sums = draws.sum(-1)
    if sums.isnan().any():
        raise ValueError(
            f"{expected}; got NaN in {int(sums.isnan().sum())} of {sums.numel()} rows. "
            "Look at the posterior samples that made them."
        )
    # The rounding of a row in the draws' own precision, and what a careless normalisation leaves.
    tolerance = max(1e-3, 8 * torch.finfo(draws.dtype).eps)
    error = (sums - 1.0).abs()
    if error.numel() and (error.max() > tolerance or draws.amin() < 0):
        raise ValueError(
            f"{expected}; got rows off from sum 1 by up to {error.max().item():.3g}, smallest "
            f"entry {draws.amin().item():.3g}. Apply softmax to logits first."
        )
