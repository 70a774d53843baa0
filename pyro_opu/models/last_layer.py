"""Networks that are Bayesian in their last layer: trained features, normal weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.checks import (
    ArgumentError,
    ArgumentTypeError,
    check_callable,
    check_targets,
    positive_float,
)
from pyro_opu.models.laplace import Laplace, laplace, with_ones
from pyro_opu.models.likelihoods import Likelihood, classification
from pyro_opu.models.neural_network import Model, Prior, bayesian_network, class_count


def split_last_layer(network: nn.Sequential) -> tuple[nn.Sequential, nn.Linear]:
    """Copy the layers before the last, frozen and in evaluation mode, and the last ``Linear``."""
    last = network[-1] if isinstance(network, nn.Sequential) and len(network) else None
    if not isinstance(last, nn.Linear):
        raise ArgumentTypeError(
            "`network` must be a nn.Sequential that ends with a Linear layer; got a "
            f"{type(network).__name__} that ends with {last}. Pass Sequential(trunk, head)."
        )
    trunk = copy.deepcopy(network[:-1]).eval().requires_grad_(False)
    return trunk, copy.deepcopy(last)


def on_features(trunk: nn.Module, model: Callable[..., object]) -> Model:
    """A model of inputs made from a model of features, ``model(trunk(x), y)``.

    Guides and samples of ``model``, fitted on ``trunk(x)`` computed once, fit the result too.
    """
    check_callable("trunk", trunk, "x -> features")
    check_callable("model", model, "(features, y=None)")
    return partial(_run, trunk, model)


def _run(trunk: nn.Module, model: Callable[..., Any], x: Tensor, y: Tensor | None = None) -> Tensor:
    return model(trunk(x), y)


def last_layer_network(
    network: nn.Sequential, *, prior: float | Prior = 1.0, likelihood: Likelihood = classification
) -> tuple[nn.Sequential, Model]:
    """The trunk of a trained network and the Bayesian model of its last layer, on features.

    The model ``(features, y=None)`` has the sites "weight" ``(K, F)``, "bias" ``(K,)`` and "obs"; a
    full-covariance normal is fitted to it by its evidence bound (eqs. 21-22 of Li 2022):

        trunk, head = last_layer_network(network)
        fit = fit_svi(head, AutoMultivariateNormal(head), trunk(x), y)
        predictive = Predictive(on_features(trunk, head), guide=fit.guide, num_samples=500)

    Strongly correlated features take Adam many steps: see whether ``fit.elbo`` still rises.
    """
    trunk, head = split_last_layer(network)
    return trunk, bayesian_network(head, prior=prior, likelihood=likelihood)


@dataclass(frozen=True, eq=False)
class LastLayerRegression:
    r"""Normal posterior :math:`N(\mu, \Sigma)` of a linear last layer on the features ``trunk(x)``.

    ``mean`` and ``covariance`` are of the F weights and then the bias, in float64.
    """

    trunk: nn.Module
    mean: Tensor
    covariance: Tensor

    @torch.no_grad()
    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Mean and variance of :math:`f(x) = \phi(x) \cdot \theta^L`, ``(N,)``, without noise."""
        phi = with_ones(self.trunk(x))
        variance = ((phi @ self.covariance) * phi).sum(-1)
        return (phi @ self.mean).to(x.dtype), variance.to(x.dtype)


@torch.no_grad()
def last_layer_regression(
    network: nn.Sequential, x: Tensor, y: Tensor, *, precision: float = 1.0, scale: float = 1.0
) -> LastLayerRegression:
    r"""The exact posterior of the last layer under normal noise: linear regression on features.

    .. math::
        \Sigma^{-1} = \lambda \Phi^\top \Phi + \sigma^{-2} I, \quad
        \mu = \lambda \Sigma \Phi^\top y

    with :math:`\lambda` the ``precision`` of the noise and :math:`\sigma` the ``scale`` of the
    prior of weights and bias (section 3.1 of Li 2022). The network has one output.
    """
    trunk, head = split_last_layer(network)
    if class_count(network, x) != 1:
        raise ArgumentError(
            f"`network` must have one output; got {head.out_features}. Fit each output by itself."
        )
    y = check_targets(y, len(x))
    positive_float("precision", precision, "Pass that of the model.")
    positive_float("scale", scale, "Pass that of the model.")
    phi = with_ones(trunk(x.detach()))
    inverse = precision * phi.mT @ phi + torch.eye(phi.shape[1]).to(phi) / scale**2
    covariance = torch.cholesky_inverse(torch.linalg.cholesky(inverse))
    mean = precision * covariance @ (phi.mT @ y.double())
    return LastLayerRegression(trunk, mean, covariance)


def last_layer_laplace(
    network: nn.Sequential, x: Tensor, y: Tensor, *, scale: float = 1.0
) -> tuple[nn.Sequential, Laplace]:
    """The trunk of a classifier, and :func:`~pyro_opu.models.laplace.laplace` on its features.

        trunk, fit = last_layer_laplace(network, x, y)
        fit.probit(trunk(x_new))      # mean probabilities in closed form
        fit.bridge(trunk(x_new))      # a Dirichlet in closed form
        model = on_features(trunk, logistic_regression(num_classes))
        Predictive(model, guide=fit.guide, num_samples=500)      # Monte Carlo

    Section 3.1 of Li (2022). Memory grows as :math:`8 (CF)^2` bytes, 130 MB for 400 features and 10
    classes.
    """
    trunk, head = split_last_layer(network)
    class_count(network, x)
    with torch.no_grad():
        return trunk, laplace(trunk(x), y, head.out_features, scale)
