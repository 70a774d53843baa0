"""Reverse KL to a Dirichlet made from the draws, for distillation with many classes."""

from __future__ import annotations

import torch
from pyro.distributions import Dirichlet
from torch import Tensor
from torch.distributions import kl_divergence

from pyro_opu.checks import ArgumentError
from pyro_opu.distributions.dirichlet import as_predictive
from pyro_opu.objectives.base import Objective


class ProxyDirichlet(Objective):
    r"""Reverse KL divergence to a proxy Dirichlet, divided by the proxy's precision, in nats.

    With the proxy :math:`\beta = \tilde\beta_0 \bar\pi + 1` (:func:`.proxy_parts`) and the
    student's :math:`\alpha(x)` raised by one, too,

    .. math::
        \mathbb{E}_x \Big[ -\sum_k \bar\pi_k\, \mathbb{E}_q \log \pi_k
        + \frac{1}{\tilde\beta_0}\, \mathrm{KL}\big(q \,\|\, \mathrm{Dir}(1)\big) \Big], \qquad
        q = \mathrm{Dir}(\alpha(x) + 1)

    which is :math:`\mathrm{KL}(q \,\|\, \mathrm{Dir}(\beta)) / \tilde\beta_0` but for a constant.
    Its minimum is :math:`\alpha = \tilde\beta_0 \bar\pi`: a Dirichlet teacher is copied in its
    mean, and with one half to all of its concentration. The ones are for training alone. Gradients
    stay bounded where classes are many and their probabilities small. It is computed in float64.

    References:
        Ryabinin, Malinin and Gales (2021), Scaling Ensemble Distribution Distillation to Many
        Classes with Proxy Targets, section 4. The authors' code divides the second term by
        :math:`\tilde\beta_0 + C`, with a minimum where the concentration is C above the proxy's.
    """

    def parts(self, student: Dirichlet, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        mean, spread = proxy_parts(draws)
        alpha = as_predictive(student).log_alpha.double().exp() + 1
        expected_log = torch.digamma(alpha) - torch.digamma(alpha.sum(-1, keepdim=True))
        raised = torch.distributions.Dirichlet(alpha, validate_args=False)
        flat = torch.distributions.Dirichlet(torch.ones_like(alpha), validate_args=False)
        reconstruction = -(mean * expected_log).sum(-1).mean()
        prior = (spread * kl_divergence(raised, flat)).mean()
        return {"reconstruction": reconstruction.to(draws.dtype), "prior": prior.to(draws.dtype)}


def proxy_parts(draws: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean ``(N, C)`` and inverse precision ``(N,)`` of the proxy of draws ``(S, N, C)``.

    .. math::
        \bar\pi = \tfrac1S \sum_s \pi_s, \qquad
        \frac{1}{\tilde\beta_0} = \frac{2}{C - 1} \sum_k \bar\pi_k
        \Big( \log\bar\pi_k - \tfrac1S \sum_s \log\pi_{sk} \Big)

    By Stirling's formula, right for draws of a Dirichlet with large :math:`\alpha` and otherwise
    too low, by at most one half. Zeros are raised to the smallest normal number. Both are float64.

    Raises:
        ValueError: one draw, which has no spread.

    References:
        Minka (2000), Estimating a Dirichlet distribution.
    """
    if len(draws) < 2:
        raise ArgumentError(
            f"`draws` must hold at least two draws per input; got shape {tuple(draws.shape)}. Pass "
            "num_draws=2 or more."
        )
    mean = draws.double().mean(0)
    tiny = torch.finfo(draws.dtype).tiny
    mean_log = draws.clamp_min(tiny).double().log().mean(0)
    gap = (mean * (mean.clamp_min(tiny).log() - mean_log)).sum(-1)
    return mean, gap.clamp_min(0) * 2 / (draws.shape[-1] - 1)
