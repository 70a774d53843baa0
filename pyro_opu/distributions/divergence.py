"""Divergences between answers, as ``torch.distributions.kl_divergence`` asks for them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence, register_kl

from pyro_opu.distributions.dirichlet import PredictiveDirichlet, SimplexDistribution
from pyro_opu.distributions.logistic_normal import LogisticNormal
from pyro_opu.distributions.normal_sticks import NormalSticks
from pyro_opu.rng import seeded

#: Draws of an estimate; one seed makes it the same at every call.
DRAWS = 1024


@register_kl(SimplexDistribution, SimplexDistribution)
def estimated(p: SimplexDistribution, q: SimplexDistribution) -> Tensor:
    """Estimate from draws of ``p``, ``(N,)``; both need a density."""
    with seeded(0):
        draws = p.rsample((DRAWS,))
    return (p.log_prob(draws) - q.log_prob(draws)).mean(0)


@register_kl(PredictiveDirichlet, PredictiveDirichlet)
def _of_dirichlets(p: PredictiveDirichlet, q: PredictiveDirichlet) -> Tensor:
    return kl_divergence(p._float64, q._float64).to(p.log_mean.dtype)


@register_kl(LogisticNormal, LogisticNormal)
def _of_logistic_normals(p: LogisticNormal, q: LogisticNormal) -> Tensor:
    return kl_divergence(p._ratios(), q._ratios()).to(p.logits.dtype)


@register_kl(NormalSticks, NormalSticks)
def _of_sticks(p: NormalSticks, q: NormalSticks) -> Tensor:
    """Exact where both break the sticks in one order, and estimated elsewhere."""
    one, two = p.sticks, q.sticks
    ours, theirs = (
        Normal(each.of.mean, each.deviation, validate_args=False) for each in (one, two)
    )
    exact = kl_divergence(ours, theirs).sum(-1).to(p.log_mean.dtype)
    same = (one.order == two.order).all(-1)
    return exact if same.all() else torch.where(same, exact, estimated(p, q))
