"""Bayesian last layers: exact regression, variational fits that find it, Laplace for classes."""

from __future__ import annotations

import warnings

import pytest
import torch
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import nn

from pyro_opu import as_teacher, laplace_bridge, probit_predictive
from pyro_opu.metrics.distances import energy_distance
from pyro_opu.models.last_layer import (
    last_layer_laplace,
    last_layer_network,
    last_layer_regression,
    on_features,
    split_last_layer,
)
from pyro_opu.models.likelihoods import regression
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.neural_network import dropout_network, fit_network, perceptron
from pyro_opu.models.variational import fit_svi

DOUBLE = torch.float64


class TestSplit:
    def test_trunk_and_head_are_the_network(self):
        network, x = dropout_network((4, 8, 3)).train(), torch.randn(5, 4)
        trunk, head = split_last_layer(network)
        torch.testing.assert_close(head(trunk(x)), network.eval()(x))
        assert not any(p.requires_grad for p in trunk.parameters())
        assert all(p.requires_grad for p in network.parameters())


def regression_data(rows=60):
    x = torch.randn(rows, 2, dtype=DOUBLE)
    return x, torch.sin(x[:, 0]) + x[:, 1] + 0.3 * torch.randn(rows, dtype=DOUBLE)


class TestRegression:
    def test_is_the_conditional_of_a_joint_normal(self):
        """Slowly: theta and y are jointly normal; condition theta, and f(x'), on y."""
        network, (x, y) = perceptron((2, 4, 1)).double(), regression_data()
        posterior = last_layer_regression(network, x, y, precision=4.0, scale=0.7)
        new = torch.randn(5, 2, dtype=DOUBLE)
        features = [
            torch.cat([network[:-1](z), z.new_ones(len(z), 1)], 1).detach() for z in (x, new)
        ]
        phi, phi_new = features
        of_y = 0.49 * phi @ phi.T + torch.eye(60, dtype=DOUBLE) / 4.0
        gain = 0.49 * phi.T @ torch.linalg.inv(of_y)
        mean = gain @ y
        covariance = 0.49 * torch.eye(5, dtype=DOUBLE) - 0.49 * gain @ phi
        torch.testing.assert_close(posterior.mean, mean)
        torch.testing.assert_close(posterior.covariance, covariance)
        found = posterior.predict(new)
        torch.testing.assert_close(found[0], phi_new @ mean)
        torch.testing.assert_close(found[1], (phi_new @ covariance @ phi_new.T).diagonal())

    @pytest.mark.slow
    def test_the_variational_fit_finds_it(self, beta=0.25):
        """Full covariance and normal noise: the bound is highest at the exact posterior.

        With a bound tempered by beta, at that of noise with 1 / beta times the precision.
        """
        network = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)).double()
        # Features of little correlation: with much of it Adam needs many more steps.
        network[0].weight.data = torch.tensor([[1.0, 0.5], [-0.3, 1.0]], dtype=DOUBLE)
        x, y = regression_data()
        trunk, head = last_layer_network(network, prior=0.5, likelihood=regression(4.0))
        guide = AutoMultivariateNormal(head, init_scale=0.1)
        settings = {"learning_rate": 0.05, "final_rate": 0.002, "num_particles": 2, "seed": 0}
        fit_svi(head, guide, trunk(x), y, steps=1200, beta=beta, **settings)
        exact = last_layer_regression(network, x, y, precision=4.0 / beta, scale=0.5)
        factor = (guide.scale[:, None] * guide.scale_tril).detach()
        scale = exact.covariance.diagonal().sqrt()
        # Noise of Adam's last steps, in posterior scales.
        assert ((guide.loc.detach() - exact.mean).abs() < 0.2 * scale).all()
        correlation = exact.covariance / torch.outer(scale, scale)
        torch.testing.assert_close(
            factor @ factor.mT / torch.outer(scale, scale), correlation, rtol=0.0, atol=0.15
        )


@pytest.fixture
def classifier():
    """A network of 3 classes trained a little on three blobs, and the blobs."""
    y = torch.arange(150) % 3
    centres = torch.tensor([[0.0, 2.0], [-2.0, -1.0], [2.0, -1.0]])
    x = centres[y] + torch.randn(150, 2)
    return fit_network(perceptron((2, 6, 3)), x, y, epochs=30, learning_rate=1e-2), x, y


class TestLaplace:
    def test_hessian_and_mode_by_autograd(self, classifier):
        """Gradient zero at the mode, and minus the inverse of the Hessian the covariance."""
        network, x, y = classifier
        trunk, fit = last_layer_laplace(network, x, y, scale=2.0)
        phi = trunk(x).double()
        phi = torch.cat([phi, torch.ones(150, 1, dtype=DOUBLE)], 1)

        def log_joint(theta):
            logits = phi @ theta.reshape(7, 3)
            return logits.log_softmax(-1)[range(150), y].sum() - theta.square().sum() / 8.0

        theta = torch.cat([fit.weight, fit.bias[None]]).double().flatten()
        # The mode is rounded to float32, curvature is below 100.
        assert torch.func.grad(log_joint)(theta).abs().max() < 1e-3
        hessian = torch.func.hessian(log_joint)(theta)
        inverse = torch.linalg.inv(-hessian)
        torch.testing.assert_close(fit.covariance, inverse, rtol=1e-4, atol=1e-5)  # same rounding

    def test_logits_bridge_probit_and_draws(self, classifier):
        network, x, y = classifier
        trunk, fit = last_layer_laplace(network, x, y)
        new = 3.0 * torch.randn(40, 2)
        model = on_features(trunk, logistic_regression(3))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            predictive = Predictive(model, guide=fit.guide, num_samples=4000)
            draws = as_teacher(predictive).probs(new)
        mean, covariance = fit.logits(trunk(new))
        exact = torch.distributions.MultivariateNormal(mean, covariance).sample((4000,))
        # Five standard errors of the means over 4,000 draws each; 120 comparisons.
        probs = exact.softmax(-1)
        error = ((probs.var(0) + draws.var(0)) / 4000).sqrt()
        assert ((draws.mean(0) - probs.mean(0)).abs() < 5 * error + 1e-5).all()
        torch.testing.assert_close(fit.probit(trunk(new)), probit_predictive(mean, covariance))
        torch.testing.assert_close(fit.bridge(trunk(new)), laplace_bridge(mean, covariance))

    @pytest.mark.slow
    def test_variational_and_laplace_are_near(self, classifier):
        """150 rows for 21 weights: both are near the posterior, and so near each other."""
        network, x, y = classifier
        trunk, head = last_layer_network(network)
        guide = AutoMultivariateNormal(head, init_scale=0.1)
        fit = fit_svi(head, guide, trunk(x), y, steps=800, learning_rate=0.03, seed=0)
        whole = Predictive(on_features(trunk, head), guide=fit.guide, num_samples=400)
        variational = as_teacher(whole).probs(x)
        trunk, laplace = last_layer_laplace(network, x, y)
        model = on_features(trunk, logistic_regression(3))
        predictive = Predictive(model, guide=laplace.guide, num_samples=400)
        other = as_teacher(predictive).probs(x)
        plug_in = network(x).softmax(-1).detach().expand(400, -1, -1)
        near = energy_distance(variational, other).mean()
        assert near < 0.02 and near < 0.5 * energy_distance(variational, plug_in).mean()
