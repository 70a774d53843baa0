r"""Expected log-likelihoods :math:`\mathrm{E} \log p(y \mid f)` of labels, f normal.

They bound :math:`\log \mathrm{E}\, p(y \mid f)` from below, which makes the sparse posterior the
nearest, in Kullback-Leibler divergence, to that of the full process (eqs. 4-8 of Hensman, Matthews,
Filippone, Ghahramani: MCMC for variationally sparse Gaussian processes, 2015).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import logsigmoid

from pyro_opu.checks import one_of, positive_int

Link = Literal["logit", "probit"]


def gauss_hermite(num_nodes: int) -> tuple[Tensor, Tensor]:
    r"""Nodes and weights, ``(Q,)`` in float64: :math:`\mathrm{E} g(z) \approx w \cdot g(z)`."""
    num_nodes = positive_int("num_nodes", num_nodes)
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    return torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())


def normal_points(num_points: int, dimensions: int) -> Tensor:
    """Fixed, evenly spread standard normal points ``(Q, C)``: a scrambled Sobol sequence.

    Every point has its mirror image, so that odd functions average to exactly zero.
    """
    num_points = positive_int("num_points", num_points, 2)
    dimensions = positive_int("dimensions", dimensions)
    sobol = torch.quasirandom.SobolEngine(dimensions, scramble=True, seed=0)
    uniform = sobol.draw(num_points // 2, dtype=torch.float64).clamp(1e-6, 1 - 1e-6)
    half = math.sqrt(2.0) * torch.erfinv(2.0 * uniform - 1.0)
    return torch.cat([half, -half])


class ExpectedBernoulli(TorchDistribution):
    r"""A label in {0, 1} scored by :math:`\mathrm{E}\log p(y|f)`, f normal, by Gauss-Hermite.

    A sample is a label of the model itself: f drawn, then y given f, with :math:`p = 1/(1+e^{-f})`
    for the link "logit" and :math:`p = \Phi(f)` for "probit". ``nodes`` and ``weights`` are those
    of :func:`gauss_hermite`.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # NaN is a divergence, not an error
    support = constraints.boolean

    def __init__(
        self, loc: Tensor, scale: Tensor, link: Link, nodes: Tensor, weights: Tensor
    ) -> None:
        self.loc, self.scale, self.link = loc, scale, link
        self.nodes, self.weights = nodes, weights
        super().__init__(loc.shape, validate_args=False)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> ExpectedBernoulli:
        loc, scale = self.loc.expand(batch_shape), self.scale.expand(batch_shape)
        return ExpectedBernoulli(loc, scale, self.link, self.nodes, self.weights)

    def log_prob(self, value: Tensor) -> Tensor:
        """Expected log-likelihood, the shape of ``value``."""
        latent = self.loc[..., None] + self.scale[..., None] * self.nodes
        signed = (2.0 * value - 1.0)[..., None] * latent
        log_prob = logsigmoid(signed) if self.link == "logit" else torch.special.log_ndtr(signed)
        return log_prob @ self.weights

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with torch.no_grad():
            return torch.bernoulli(inverse_link(_latent(self, sample_shape), self.link))


class ExpectedCategorical(TorchDistribution):
    r"""A label in 0..C-1 scored by :math:`\mathrm{E}\log\mathrm{softmax}(f)_y`, f normal.

    .. math:: \mu_y - \frac1Q \sum_q \log\sum_k \exp(\mu_k + \sigma_k z_{qk})

    with fixed ``points`` z ``(Q, C)`` of :func:`normal_points`.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}

    def __init__(self, loc: Tensor, scale: Tensor, points: Tensor) -> None:
        self.loc, self.scale, self.points = loc, scale, points
        super().__init__(loc.shape[:-1], validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.integer_interval(0, self.loc.shape[-1] - 1)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> ExpectedCategorical:
        shape = (*batch_shape, self.loc.shape[-1])
        return ExpectedCategorical(self.loc.expand(shape), self.scale.expand(shape), self.points)

    def log_prob(self, value: Tensor) -> Tensor:
        """Expected log-likelihood, the shape of ``value``."""
        latent = self.loc[..., None, :] + self.scale[..., None, :] * self.points
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        index = value.long().expand(shape)[..., None]
        chosen = self.loc.expand(*shape, -1).gather(-1, index).squeeze(-1)
        return chosen - latent.logsumexp(-1).mean(-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with torch.no_grad():
            return torch.distributions.Categorical(logits=_latent(self, sample_shape)).sample()


def inverse_link(latent: Tensor, link: Link) -> Tensor:
    """Probability of class 1 for a latent value."""
    one_of("link", link, get_args(Link))
    return latent.sigmoid() if link == "logit" else torch.special.ndtr(latent)


def _latent(label: ExpectedBernoulli | ExpectedCategorical, sample_shape: Sequence[int]) -> Tensor:
    shape = (*sample_shape, *label.loc.shape)
    return torch.normal(label.loc.expand(shape), label.scale.expand(shape))
