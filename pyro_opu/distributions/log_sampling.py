"""Draws of a Dirichlet in log space."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_opu.rng import drawing

HALF = (torch.float16, torch.bfloat16)


def at_least_float32(x: Tensor) -> Tensor:
    """The tensor, in float32 if it is in half precision."""
    return x.float() if x.dtype in HALF else x


def log_dirichlet_rsample(log_alpha: Tensor, sample_shape: Sequence[int] = ()) -> Tensor:
    r"""Draw the logarithm of Dirichlet vectors, with pathwise gradients.

    .. math:: \log\pi = \mathrm{log\_softmax}(z), \qquad
              z_k = \log G_k + \tfrac{1}{\alpha_k}\log U_k, \qquad
              G_k \sim \mathrm{Gamma}(\alpha_k + 1),\; U_k \sim \mathrm{Uniform}(0, 1)

    so that :math:`e^{z_k} \sim \mathrm{Gamma}(\alpha_k)` without leaving log space: for
    :math:`\alpha_k = 10^{-6}` a typical :math:`z_k` is :math:`-10^6`, where the Gamma variate
    itself underflows in any precision. In float32 the draws are right from ``alpha`` = 1e-6 to 1e8.
    Gradients are of first order only; for small ``alpha`` their variance grows as 1 / alpha.

    Args:
        log_alpha: ``(*B, C)``. Half precision is computed, and returned, in float32. Components
            below about -79 (float32) are raised to it, so that no infinity reaches the gradient.
        sample_shape: Leading shape of independent draws.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> mean = torch.tensor([0.7, 0.2, 0.1])
        >>> log_pi = log_dirichlet_rsample(mean.log() + math.log(1e-4), (10_000,))
        >>> corners = (log_pi > -0.01).float().mean(0)  # class k wins a share m_k of the corners
        >>> bool((corners - mean).abs().max() < 0.02)
        True

    References:
        Marsaglia, Tsang: A simple method for generating gamma variables (2000), section 6.
        Figurnov, Mohamed, Mnih: Implicit reparameterization gradients (2018).
    """
    log_alpha = at_least_float32(log_alpha)
    dtype, shape = log_alpha.dtype, torch.Size(sample_shape) + log_alpha.shape
    # Room for -log U (at most 37 in float64) on top of 1 / alpha, below the overflow threshold.
    log_alpha = log_alpha.clamp(min=math.log(torch.finfo(dtype).tiny) + 8.0)
    with drawing(log_alpha.device) as generator:
        gamma = torch._standard_gamma((log_alpha.exp() + 1.0).expand(shape), generator)
        # -log U is an exponential variate, never infinite. In float32 it may be coarse near zero
        # (steps of 6e-8), which would now and then hand a corner to a class of probability 1e-20.
        exponential = log_alpha.new_empty(shape, dtype=torch.float64)
        minus_log_u = exponential.exponential_(generator=generator).to(dtype)
    # Not a division by alpha: its gradient has alpha squared, which underflows.
    return torch.log_softmax(gamma.log() - minus_log_u * (-log_alpha).exp(), dim=-1)
