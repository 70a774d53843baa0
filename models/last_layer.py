"""Networks that are Bayesian in their last layer: features from a trained trunk, normal weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from models.laplace import Laplace, laplace, with_ones
from models.likelihoods import Likelihood, classification
from models.neural_network import Model, Prior, bayesian_network
from pyro_opu.checks import check_callable, check_inputs, check_tensor, positive_float


def split_last_layer(network: nn.Sequential) -> tuple[nn.Sequential, nn.Linear]:
    """The layers before the last, frozen and in evaluation mode, and the last; copies.

    Args:
        network: A trained ``nn.Sequential`` that ends with ``Linear(F, K)``.

    Returns:
        ``trunk: x (N, ...) -> features (N, F)`` and the last layer.

    Raises:
        TypeError: ``network`` is no such sequence.

    Example:
        >>> from models.neural_network import dropout_network
        >>> trunk, head = split_last_layer(dropout_network((4, 8, 3)))
        >>> trunk(torch.zeros(5, 4)).shape, head
        (torch.Size([5, 8]), Linear(in_features=8, out_features=3, bias=True))
    """
    last = network[-1] if isinstance(network, nn.Sequential) and len(network) else None
    if not isinstance(last, nn.Linear):
        raise TypeError(
            "`network` must be a nn.Sequential that ends with a Linear layer; got a "
            f"{type(network).__name__} that ends with {last}. Pass Sequential(trunk, head)."
        )
    trunk = copy.deepcopy(network[:-1]).eval().requires_grad_(False)
    return trunk, copy.deepcopy(last)


def on_features(trunk: nn.Module, model: Callable[..., Any]) -> Model:
    """A model of inputs made from a model of features, ``model(trunk(x), y)``.

    Guides and samples of ``model``, fitted on ``trunk(x)`` computed once, fit the result too.

    Args:
        trunk: ``x (N, ...) -> features (N, F)``, frozen.
        model: ``model(features, y=None)``, such as a ``bayesian_network`` of one linear layer or
            a ``logistic_regression``.
    """
    check_callable("trunk", trunk, "x -> features")
    check_callable("model", model, "(features, y=None)")
    return partial(_run, trunk, model)


def _run(trunk: nn.Module, model: Callable[..., Any], x: Tensor, y: Tensor | None = None) -> Tensor:
    """The model of :func:`on_features`."""
    return model(trunk(x), y)


def last_layer_network(
    network: nn.Sequential,
    *,
    prior: float | Prior = 1.0,
    likelihood: Likelihood = classification,
) -> tuple[nn.Sequential, Model]:
    r"""The trunk of a trained network and the Bayesian model of its last layer, on features.

    .. math:: q(\theta) = \delta(\theta^{1:L-1})\, q(\theta^L)

    To fit a full-covariance normal q to the last layer's weights by its evidence bound (eq. 22):

        trunk, head = last_layer_network(network)
        fit = fit_svi(head, AutoMultivariateNormal(head), trunk(x), y)
        predictive = Predictive(on_features(trunk, head), guide=fit.guide, num_samples=500)

    Strongly correlated features take Adam many steps, in the directions that the data hardly fix;
    look whether ``fit.elbo`` still rises. :func:`last_layer_regression` and
    :func:`last_layer_laplace` need no steps.

    Args:
        network: Trained, as :func:`split_last_layer` takes it.
        prior: As for :func:`~models.neural_network.bayesian_network`.
        likelihood: Likewise.

    Returns:
        The trunk, and the model ``(features, y=None)`` with sites "weight" ``(K, F)``, "bias"
        ``(K,)`` and "obs".

    References:
        Eqs. 21-22 of Li's lecture notes on Bayesian neural networks (2022).
    """
    trunk, head = split_last_layer(network)
    return trunk, bayesian_network(head, prior=prior, likelihood=likelihood)


@dataclass(frozen=True, eq=False)
class LastLayerRegression:
    r"""The normal posterior of a linear last layer, :math:`\theta^L \sim N(\mu, \Sigma)`.

    Attributes:
        trunk: ``x -> features (N, F)``.
        mean: :math:`\mu`, ``(F + 1,)``, weights and then the bias; float64.
        covariance: :math:`\Sigma`, ``(F + 1, F + 1)``.
    """

    trunk: nn.Module
    mean: Tensor
    covariance: Tensor

    @torch.no_grad()
    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Mean and variance of :math:`f(x) = \phi(x) \cdot \theta^L`, both ``(N,)``, no noise.

        Args:
            x: Inputs ``(N, ...)``.
        """
        phi = with_ones(self.trunk(x))
        variance = ((phi @ self.covariance) * phi).sum(-1)
        return (phi @ self.mean).to(x.dtype), variance.to(x.dtype)


@torch.no_grad()
def last_layer_regression(
    network: nn.Sequential,
    x: Tensor,
    y: Tensor,
    *,
    precision: float = 1.0,
    scale: float = 1.0,
) -> LastLayerRegression:
    r"""The exact posterior of the last layer under normal noise: linear regression on features.

    .. math::
        \Sigma^{-1} = \lambda \Phi^\top \Phi + \sigma^{-2} I, \quad
        \mu = \lambda \Sigma \Phi^\top y

    It is what the evidence bound of a full-covariance guide is highest at.

    Args:
        network: Trained, one output, as :func:`split_last_layer` takes it.
        x: Inputs ``(N, ...)``.
        y: Targets ``(N,)``.
        precision: :math:`\lambda` of the noise.
        scale: :math:`\sigma` of the prior of weights and bias.

    Returns:
        The posterior.

    Raises:
        TypeError: ``x`` is no floating tensor.
        ValueError: not one target per input, not one output; ``precision`` or ``scale`` not
            positive.

    Example:
        >>> from models.neural_network import perceptron
        >>> x = torch.randn(50, 4)
        >>> posterior = last_layer_regression(perceptron((4, 8, 1)), x, x.sum(-1))
        >>> mean, variance = posterior.predict(x)
        >>> mean.shape, variance.shape
        (torch.Size([50]), torch.Size([50]))

    References:
        Section 3.1 of Li's lecture notes on Bayesian neural networks (2022).
    """
    trunk, head = split_last_layer(network)
    if check_tensor("y", y, "(N,)").shape != check_inputs(x).shape[:1] or head.out_features != 1:
        raise ValueError(
            f"`y` must have shape ({len(x)},) and `network` one output; got {tuple(y.shape)} and "
            f"{head.out_features} outputs. Fit each output by itself."
        )
    check_inputs(y, "y", features=False)
    positive_float("precision", precision, "Pass that of the model.")
    positive_float("scale", scale, "Pass that of the model.")
    phi = with_ones(trunk(x))
    inverse = precision * phi.mT @ phi + torch.eye(phi.shape[1]).to(phi) / scale**2
    covariance = torch.cholesky_inverse(torch.linalg.cholesky(inverse))
    mean = precision * covariance @ (phi.mT @ y.double())
    return LastLayerRegression(trunk, mean, covariance)


def last_layer_laplace(
    network: nn.Sequential, x: Tensor, y: Tensor, *, scale: float = 1.0
) -> tuple[nn.Sequential, Laplace]:
    r"""The Laplace approximation of a classifier's last layer, full covariance.

    .. math::
        \Sigma^{-1} = \sum_n \phi_n \phi_n^\top \otimes
        \bigl(\mathrm{diag}(\pi_n) - \pi_n \pi_n^\top\bigr) + \sigma^{-2} I

    at the maximum a posteriori weights: logistic regression on the features, whose Gauss-Newton
    matrix is its Hessian. The normal logits are exact given that posterior; from there on

        trunk, fit = last_layer_laplace(network, x, y)
        fit.probit(trunk(x_new))      # mean probabilities in closed form
        fit.bridge(trunk(x_new))      # a Dirichlet in closed form
        model = on_features(trunk, logistic_regression(num_classes))
        Predictive(model, guide=fit.guide, num_samples=500)      # Monte Carlo

    Time grows as :math:`N C^2 F^2 + (CF)^3` per step of Newton's method, memory as
    :math:`8 (CF)^2` bytes, 130 MB for 400 features and 10 classes.

    Args:
        network: A trained classifier, as :func:`split_last_layer` takes it.
        x: Inputs ``(N, ...)``.
        y: Labels ``(N,)``.
        scale: :math:`\sigma` of the prior of the last layer's weights and biases.

    Returns:
        The trunk, and the approximation on its features.

    Raises:
        ValueError: as :func:`~models.laplace.laplace`.

    Example:
        >>> from models.neural_network import perceptron
        >>> x = torch.randn(50, 4)
        >>> trunk, fit = last_layer_laplace(perceptron((4, 8, 3)), x, torch.arange(50) % 3)
        >>> fit.bridge(trunk(x)).shape
        torch.Size([50, 3])

    References:
        MacKay: The evidence framework applied to classification networks (1992).
        Section 3.1 of Li's lecture notes on Bayesian neural networks (2022).
    """
    trunk, head = split_last_layer(network)
    with torch.no_grad():
        return trunk, laplace(trunk(x), y, head.out_features, scale)
