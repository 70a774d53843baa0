"""Covariance functions of Gaussian processes, with priors for their hyper-parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_opu.checks import check_bool, in_range, positive_int

#: Hyper-parameters of a kernel by the name of their sites.
Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class Kernel:
    r"""A squared exponential plus a constant and, with ``linear``, a linear part.

    .. math::
        k(x, x') = \sigma^2 \exp\Bigl(-\tfrac12 \sum_d (x_d - x'_d)^2 / \ell_d^2\Bigr)
                   + \tau^2 \, x \cdot x' + c^2, \\
        \log \ell_d \sim N(\log \sqrt D, 1), \quad
        \log \sigma^2 \sim N(\log 10, 1), \quad \log \tau \sim N(\log 0.3, 1)

    for features of unit variance: at the medians two inputs at their usual distance,
    :math:`\sqrt{2D}`, are correlated by 1/e. ``ard`` gives each of the D ``features`` a lengthscale
    of its own; ``constant`` is :math:`c^2`, the prior variance of a constant mean. Everything
    broadcasts over leading axes of the hyper-parameters.

    Example:
        >>> kernel = Kernel(2, ard=False, linear=False, constant=0.0)
        >>> here = {"lengthscale": torch.tensor(1.0), "variance": torch.tensor(4.0)}
        >>> kernel(torch.zeros(1, 2), torch.tensor([[0.0, 0.0], [1.0, 1.0]]), here)
        tensor([[4.0000, 1.4715]])
    """

    features: int
    ard: bool = False
    linear: bool = True
    constant: float = 1.0

    def __post_init__(self) -> None:
        positive_int("features", self.features)
        check_bool("ard", self.ard)
        check_bool("linear", self.linear)
        in_range("constant", self.constant, 0, advice="Pass 0 to do without.")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the hyper-parameters' sites."""
        return ("lengthscale", "variance", "slope") if self.linear else ("lengthscale", "variance")

    def unpack(self, values: Tensor) -> Parameters:
        """Hyper-parameters by site, from one vector ``(K,)`` in the order of ``names``."""
        count = self.features if self.ard else 1
        lengthscale = values[:count] if self.ard else values[0]
        rest = dict(zip(self.names[1:], values[count:], strict=True))
        return {"lengthscale": lengthscale, **rest}

    def medians(self, like: Tensor) -> Tensor:
        """Medians ``(K,)`` of the hyper-parameters under their priors."""
        lengthscales = [math.sqrt(self.features)] * (self.features if self.ard else 1)
        return like.new_tensor(lengthscales + ([10.0, 0.3] if self.linear else [10.0]))

    def priors(self, like: Tensor) -> dict[str, dist.TorchDistribution]:
        """Priors by site: "lengthscale" ``(D,)`` with ``ard``, the others ``()``."""
        middle = {name: value.log() for name, value in self.unpack(self.medians(like)).items()}
        return {
            name: dist.LogNormal(value, torch.ones_like(value)).to_event(value.ndim)
            for name, value in middle.items()
        }

    def sample(self, like: Tensor) -> Parameters:
        """The hyper-parameters as Pyro sites."""
        return {name: pyro.sample(name, prior) for name, prior in self.priors(like).items()}

    def log_prior(self, parameters: Parameters) -> Tensor:
        """Log-density of the *logarithms* of the hyper-parameters, summed."""
        priors = self.priors(parameters["variance"])
        parts = [priors[k].log_prob(value) + value.log().sum() for k, value in parameters.items()]
        return torch.stack(parts).sum()

    def __call__(self, a: Tensor, b: Tensor, parameters: Parameters) -> Tensor:
        """Covariances ``(*B, N, M)`` of rows ``(N, D)`` with rows ``(M, D)``."""
        product, lengthscale = a @ b.mT, parameters["lengthscale"]
        log_variance = parameters["variance"].log()[..., None, None]
        # Few operations: under many draws each is a pass over memory.
        if self.ard:
            left = a / lengthscale[..., None, :]
            right = left if a is b else b / lengthscale[..., None, :]
            exponent = log_variance - 0.5 * _squared_distances(left, right, left @ right.mT)
        else:  # all hyper-parameters share the distances of the rows
            distances = _squared_distances(a, b, product)
            scale = -0.5 / lengthscale.square()[..., None, None]
            exponent = torch.addcmul(log_variance, distances, scale)
        covariance = exponent.exp()
        if self.linear:
            slope = parameters["slope"].square()[..., None, None]
            covariance = torch.addcmul(covariance, product, slope)
        return covariance + self.constant if self.constant else covariance

    def diagonal(self, a: Tensor, parameters: Parameters) -> Tensor:
        """Variances of rows, ``(*B, N)``: the diagonal of ``kernel(a, a, parameters)``."""
        variance = (parameters["variance"][..., None] + self.constant) * a.new_ones(len(a))
        if self.linear:
            variance = variance + parameters["slope"].square()[..., None] * a.square().sum(-1)
        return variance


def _squared_distances(a: Tensor, b: Tensor, product: Tensor) -> Tensor:
    """Squared distances of rows; rounding may leave them a little below zero.

    Within one set in float64: in float32 nothing is left of the distance of two near rows far from
    the origin, and with a short lengthscale the covariance is then not positive.
    """
    if a is not b:
        ends = a.square().sum(-1)[..., None] + b.square().sum(-1)[..., None, :]
        return ends - 2.0 * product
    wide = a.double()
    squares = wide.square().sum(-1)
    distances = squares[..., None] + squares[..., None, :] - 2.0 * wide @ wide.mT
    return distances.to(a.dtype)
