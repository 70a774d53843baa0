"""Inference for logistic regression: Laplace, variational guides, Polya-Gamma and NUTS."""

from __future__ import annotations

import math

import pyro
import pytest
import torch
from pyro.infer import MCMC, Predictive
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

from pyro_opu import as_teacher
from pyro_opu.models.laplace import laplace
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.variational import fit_svi
from pyro_opu.samplers.polya_gamma import PolyaGammaGibbs


def data(classes, rows=60, features=3):
    x = torch.randn(rows, features, dtype=torch.float64)
    logits = x @ torch.randn(features, classes, dtype=torch.float64)
    return x, torch.distributions.Categorical(logits=2 * logits).sample()


def negative_log_posterior(theta, x, y, classes, scale):
    """Of weight and bias as one vector, rows of [weight; bias]; the model's own log joint."""
    theta = theta.reshape(x.shape[1] + 1, -1)
    sites = {"weight": theta[:-1], "bias": theta[-1]}
    model = pyro.condition(logistic_regression(classes, scale), sites)
    labels = y.double() if classes == 2 else y
    with pyro.validation_enabled(False):
        trace = pyro.poutine.trace(model).get_trace(x, labels)
        trace.compute_log_prob()
    return -sum(n["log_prob_sum"] for n in trace.nodes.values() if n["type"] == "sample")


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("scale", [0.3, 1.0, 30.0])
def test_map_is_scikit_learns(classes, scale):
    from sklearn.linear_model import LogisticRegression

    x, y = data(classes)
    fit = laplace(x, y, classes, scale)
    # A column of ones, not an intercept: the model's bias has a prior too, the intercept has none.
    ones = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    reference = LogisticRegression(C=scale**2, fit_intercept=False, tol=1e-10, max_iter=10_000)
    found = torch.from_numpy(reference.fit(ones.numpy(), y.numpy()).coef_).T
    got = torch.cat([fit.weight, fit.bias[None]])
    # 1e-4: scikit-learn's L-BFGS; at scale 30 the posterior is nearly flat.
    torch.testing.assert_close(got, found, rtol=1e-4, atol=1e-4 * max(1.0, scale))


@pytest.mark.parametrize("classes", [2, 3])
def test_mode_and_curvature_are_the_models(classes):
    x, y = data(classes)
    fit = laplace(x, y, classes, 0.8)
    theta = torch.cat([fit.weight, fit.bias[None]]).flatten().requires_grad_()

    def target(theta):
        return negative_log_posterior(theta, x, y, classes, 0.8)

    (gradient,) = torch.autograd.grad(target(theta), theta)
    assert gradient.abs().max() < 1e-6  # the model's prior scale 0.8 is a float32 number
    hessian = torch.autograd.functional.hessian(target, theta.detach())
    torch.testing.assert_close(torch.linalg.inv(hessian), fit.covariance, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("classes", [2, 3])
def test_logits_are_those_of_the_guide(classes):
    x, y = data(classes)
    fit = laplace(x, y, classes, 1.0)
    torch.manual_seed(1)
    sites = Predictive(fit.guide, num_samples=2_000)()
    logits = x[:4] @ sites["weight"] + sites["bias"].unsqueeze(1)
    if classes == 2:
        logits = torch.cat([-logits / 2, logits / 2], -1)
    mean, covariance = fit.logits(x[:4])
    sd = covariance.diagonal(dim1=1, dim2=2).sqrt()
    # 5 standard errors at 2,000 draws.
    assert ((logits.mean(0) - mean).abs() < 5 * sd / math.sqrt(2_000)).all()
    for n in range(4):
        size = torch.outer(sd[n], sd[n])
        gap = (logits[:, n].T.cov() - covariance[n]) / size
        assert gap.abs().max() < 5 * math.sqrt(2 / 2_000)


def test_last_layer_of_a_network():
    torch.manual_seed(3)
    body = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh()).requires_grad_(False)
    x = torch.randn(100, 2)
    y = (x.prod(1) > 0).long()
    fit = laplace(body(x), y, 2)
    assert fit.probit(body(x)).shape == (100, 2)
    with pytest.raises(ValueError, match=r"must have shape \(N, 8\).*got \(100, 2\)"):
        fit.logits(x)


def moments(samples):
    flat = torch.cat([samples["weight"].flatten(1), samples["bias"].flatten(1)], 1)
    return flat.mean(0), flat.std(0)


@pytest.mark.slow
def test_all_ways_agree_on_much_data():
    """300 rows, 3 weights: the posterior is nearly Gaussian, all ways are close to it."""
    x, y = data(2, rows=300, features=2)
    x, y = x.float(), y.float()
    model = logistic_regression(2)
    mcmc = MCMC(PolyaGammaGibbs(model), 1000, 50, disable_progbar=True)
    mcmc.run(x, y)
    mean, sd = moments(mcmc.get_samples())

    def drawn(guide):
        sites = ("weight", "bias")
        return Predictive(guide, num_samples=2000, return_sites=sites)(x)

    full = fit_svi(model, AutoMultivariateNormal(model), x, y, learning_rate=0.05).guide
    for name, guide in (("laplace", laplace(x, y, 2).guide), ("full", full)):
        got, spread = moments(drawn(guide))
        # 0.3 sd: skewness, Monte Carlo (0.07 at an effective size of 350 and 2,000 draws),
        # optimisation; 15 % of the sd: the same.
        assert ((got - mean).abs() < 0.3 * sd).all(), name
        assert (spread / sd - 1).abs().max() < 0.15, name
    field, spread = moments(
        drawn(fit_svi(model, AutoNormal(model), x, y, learning_rate=0.05).guide)
    )
    assert ((field - mean).abs() < 0.4 * sd).all()
    # Mean field keeps the conditional standard deviations, 1 / sqrt(H_ii), which are smaller.
    precision = torch.linalg.inv(laplace(x, y, 2).covariance)
    torch.testing.assert_close(spread, precision.diag().rsqrt().float(), rtol=0.15, atol=0.0)


@pytest.mark.slow
def test_fitted_guides_of_one_class_do_not_mix():
    model = logistic_regression(2, 5.0)
    x = torch.randn(100, 1)
    y = (x[:, 0] > 0).float()
    guides = [
        fit_svi(model, AutoNormal(model), x, z, steps=200, learning_rate=0.02).guide
        for z in (y, 1 - y)
    ]
    assert len(pyro.get_param_store()) == 0  # nothing is left in the global store
    for _ in range(2):  # in turns
        for guide, sign in zip(guides, (1, -1), strict=True):
            weight = Predictive(guide, num_samples=100)(x)["weight"]
            assert (sign * weight.mean()) > 0.5
    assert len(pyro.get_param_store()) == 0


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("way", ["laplace", "mean-field", "full-rank", "polya-gamma"])
def test_every_way_is_a_teacher(way, classes):
    x, y = data(classes)
    x, labels = x.float(), y.float() if classes == 2 else y
    model = logistic_regression(classes)
    if way == "polya-gamma":
        mcmc = MCMC(PolyaGammaGibbs(model), 12, 5, disable_progbar=True)
        mcmc.run(x, labels)
        samples = mcmc.get_samples()
        probs = as_teacher(Predictive(model, samples)).probs(x)
    else:
        if way == "laplace":
            guide = laplace(x, y, classes).guide
        else:
            auto = AutoNormal if way == "mean-field" else AutoMultivariateNormal
            guide = fit_svi(model, auto(model), x, labels, steps=20, learning_rate=0.02).guide
        predictive = Predictive(
            model, guide=guide, num_samples=12, return_sites=("weight", "bias", "obs")
        )
        assert predictive(x)["obs"].shape == (12, 60)
        teacher = as_teacher(predictive)
        assert teacher.probs(x).shape == (12, 60, classes)
        samples = Predictive(guide, num_samples=12)(x)
        probs = as_teacher(Predictive(model, samples)).probs(x)
    logits = x @ samples["weight"] + samples["bias"].reshape(12, 1, -1)
    if classes == 2:
        logits = torch.cat([torch.zeros_like(logits), logits], -1)
    torch.testing.assert_close(probs, logits.softmax(-1), rtol=1e-4, atol=1e-5)  # float32
