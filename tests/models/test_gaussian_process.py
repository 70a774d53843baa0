"""Sparse Gaussian processes against dense formulas, quadrature, contrib.gp and the exact one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive
from scipy.integrate import quad
from scipy.special import log_expit, log_ndtr
from scipy.stats import multivariate_normal, norm

import pyro_opu
from pyro_opu.models import gaussian_process as module
from pyro_opu.models import pseudo_observations
from pyro_opu.models.factored import factored
from pyro_opu.models.gaussian_process import gaussian_process
from pyro_opu.models.kernels import Kernel
from pyro_opu.models.pseudo_observations import Transported, transport_to_posterior
from pyro_opu.models.quadrature import (
    ExpectedBernoulli,
    ExpectedCategorical,
    gauss_hermite,
    normal_points,
)
from pyro_opu.models.sgpmc import sgpmc

DOUBLE = torch.float64


def inputs(rows, features=2, dtype=DOUBLE):
    return torch.randn(rows, features, dtype=dtype)


def some_parameters(model):
    """Hyper-parameters off their medians, and values v."""
    medians = model.kernel.medians(model.inducing)
    parameters = model.kernel.unpack(medians * torch.linspace(0.4, 0.9, len(medians)).to(medians))
    shape = (len(model.inducing),) if model.outputs == 1 else (model.outputs, len(model.inducing))
    return parameters, torch.randn(shape, dtype=medians.dtype)


def slow_kernel(a, b, lengthscale, variance, slope, constant):
    """The kernel, entry by entry."""
    out = torch.empty(len(a), len(b), dtype=a.dtype)
    for i in range(len(a)):
        for j in range(len(b)):
            squared = (((a[i] - b[j]) / lengthscale) ** 2).sum()
            out[i, j] = variance * torch.exp(-squared / 2) + slope**2 * (a[i] * b[j]).sum()
    return out + constant


def slow_conditional(model, x, parameters, v):
    """Mean and covariance of f at x given u = L v, by dense inverses and numpy."""
    k = lambda a, b: model.kernel(a, b, parameters).numpy()  # noqa: E731
    z = model.inducing
    kzz = k(z, z)
    kzz += module.JITTER[z.dtype] * kzz.diagonal().mean() * np.eye(len(z))
    u = np.linalg.cholesky(kzz) @ v.numpy()
    weights = k(x, z) @ np.linalg.inv(kzz)
    return torch.from_numpy(weights @ u), torch.from_numpy(k(x, x) - weights @ k(z, x))


def latent(model, x, parameters, v):
    """The distribution of site "f" in a prediction."""
    data = {**parameters, "v": v}
    return poutine.trace(poutine.condition(model, data)).get_trace(x).nodes["f"]["fn"]


@pytest.mark.parametrize("ard", [True, False])
@pytest.mark.parametrize("linear", [True, False])
def test_kernel_is_the_formula(ard, linear):
    kernel, a, b = Kernel(3, ard, linear, 0.7), inputs(4, 3), inputs(5, 3)
    parameters = kernel.unpack(torch.rand(len(kernel.medians(a)), dtype=DOUBLE) + 0.5)
    slope = parameters["slope"] if linear else torch.tensor(0.0)
    expected = slow_kernel(a, b, parameters["lengthscale"], parameters["variance"], slope, 0.7)
    torch.testing.assert_close(kernel(a, b, parameters), expected)
    torch.testing.assert_close(
        kernel.diagonal(a, parameters), kernel(a, a, parameters).diagonal(), rtol=1e-12, atol=0
    )
    stacked = {name: torch.stack([value, 2 * value]) for name, value in parameters.items()}
    torch.testing.assert_close(kernel(a, b, stacked)[0], expected)
    assert kernel(a, b, stacked).shape == (2, 4, 5)
    trace = poutine.trace(kernel.sample).get_trace(a)
    assert set(kernel.names) == {n for n, node in trace.nodes.items() if node["type"] == "sample"}


@pytest.mark.parametrize("num_classes", [2, 3])
def test_conditional_is_the_dense_formula(num_classes):
    x, z = inputs(7), inputs(5)
    model = gaussian_process(z, num_classes, joint_rows=6)
    parameters, v = some_parameters(model)
    expected = [slow_conditional(model, x, parameters, each) for each in v.reshape(-1, 5)]
    for rows in (6, 7):  # joint, and beyond
        fn = latent(model, x[:rows], parameters, v)
        assert fn.event_shape == (model.outputs, rows)
        assert isinstance(fn.base_dist, dist.MultivariateNormal) == (rows == 6)
        for k, (loc, covariance) in enumerate(expected):
            torch.testing.assert_close(fn.mean[k], loc[:rows], rtol=1e-6, atol=1e-6)
            variance = covariance.diagonal()[:rows]
            # The jitter of 1e-8 of the prior variance, about 10, is on the joint's diagonal.
            torch.testing.assert_close(
                fn.variance.expand(fn.event_shape)[k], variance, rtol=1e-6, atol=1e-6
            )
            if rows == 6:
                full = fn.base_dist.covariance_matrix.expand(model.outputs, rows, rows)[k]
                torch.testing.assert_close(full, covariance[:rows, :rows], rtol=1e-6, atol=1e-6)


def test_probit_draws_have_closed_form_moments():
    x = inputs(5)
    model = gaussian_process(inputs(4), 2, link="probit")
    parameters, v = some_parameters(model)
    loc, covariance = slow_conditional(model, x, parameters, v)
    variance = covariance.diagonal()
    number = 4000
    samples = {name: value.expand(number, *value.shape) for name, value in parameters.items()}
    samples["v"] = v.expand(number, -1)
    probs = pyro_opu.as_teacher(Predictive(model, samples)).probs(x)[..., 1]
    scaled = loc / (1 + variance).sqrt()
    mean = norm.cdf(scaled.numpy())
    # E Phi(f)^2 is the chance that two standard normals of correlation var / (1 + var) are below.
    square = [
        multivariate_normal([0, 0], [[1, r], [r, 1]]).cdf([h, h])
        for h, r in zip(scaled.tolist(), (variance / (1 + variance)).tolist(), strict=True)
    ]
    error = probs.std(0) / number**0.5
    assert ((probs.mean(0) - torch.from_numpy(mean)).abs() < 5 * error).all()
    of_square = (probs**2).std(0) / number**0.5  # Monte Carlo at 4,000 draws, 5 sigma
    assert (((probs**2).mean(0) - torch.tensor(square)).abs() < 5 * of_square).all()


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_quadrature_agrees_with_scipy(link):
    nodes, weights = gauss_hermite(20)
    log_cdf = log_expit if link == "logit" else log_ndtr
    for loc, scale in [(0.3, 0.1), (-1.0, 1.0), (2.0, 3.0), (-3.0, 2.0)]:
        fn = ExpectedBernoulli(torch.tensor([loc]), torch.tensor([scale]), link, nodes, weights)
        for y in (0.0, 1.0):
            sign = 2 * y - 1

            def integrand(z, sign=sign, loc=loc, scale=scale):
                return norm.pdf(z) * log_cdf(sign * (loc + scale * z))

            exact = quad(integrand, -12, 12)[0]
            # The error of 20 nodes where log p bends sharply, at scale 3; 1e-9 at scale 0.1.
            assert fn.log_prob(torch.tensor([y])).item() == pytest.approx(exact, rel=2e-3)


def test_quadrature_for_classes_agrees_with_monte_carlo():
    loc, scale = torch.randn(4, 3, dtype=DOUBLE), torch.rand(4, 3, dtype=DOUBLE) + 0.3
    y = torch.tensor([0, 1, 2, 1])
    fn = ExpectedCategorical(loc, scale, normal_points(64, 3))
    f = loc + scale * torch.randn(200000, 4, 3, dtype=DOUBLE)
    reference = f.log_softmax(-1)[:, range(4), y]
    # Monte Carlo at 200,000 draws is within 0.01 (5 sigma), 64 fixed points within 0.01.
    torch.testing.assert_close(fn.log_prob(y), reference.mean(0), rtol=0, atol=0.02)
    torch.testing.assert_close(fn.log_prob(y), fn.log_prob(y), rtol=0, atol=0)
    assert fn.log_prob(y.expand(5, 4)).shape == (5, 4)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_labels_are_sampled_by_their_probabilities(num_classes):
    model = gaussian_process(inputs(3), num_classes)
    loc = torch.linspace(-1, 1, model.outputs * 2, dtype=DOUBLE).reshape(model.outputs, 2)
    fn = model.expected(loc, torch.ones_like(loc))
    labels = fn.sample((20000,))
    f = (loc + torch.randn(20000, *loc.shape, dtype=DOUBLE)).mT
    share = f.softmax(-1)[..., 1].mean(0) if num_classes > 2 else f.sigmoid().mean((0, -1))
    # Two Monte Carlo means of 20,000, 5 sigma each.
    assert ((labels == 1).double().mean(0) - share).abs().max() < 10 * 0.5 / 20000**0.5


@pytest.mark.parametrize("num_classes", [2, 3])
def test_draws_in_parallel_are_the_draws_one_by_one(num_classes):
    """Samples with an axis for the plate, ``(S, 1, M)``, as the parallel mode needs; S = N too."""
    x = inputs(6)
    y = torch.arange(6) % num_classes
    for ard in (True, False):
        model = gaussian_process(inputs(4), num_classes, ard=ard, joint_rows=6)
        for draws in (5, 6):
            with torch.no_grad():
                samples = Predictive(model, {}, num_samples=draws)(x)
            latents = {k: v for k, v in samples.items() if k not in ("obs", "f")}
            together = Predictive(model, latents, parallel=True).get_vectorized_trace(x, y)
            found = together.nodes["obs"]["fn"].log_prob(y)
            assert found.shape == (draws, 6)
            for s in range(draws):
                one = {name: value[s, 0] for name, value in latents.items()}
                trace = poutine.trace(poutine.condition(model, one)).get_trace(x, y)
                torch.testing.assert_close(found[s], trace.nodes["obs"]["fn"].log_prob(y))
            labels = Predictive(model, latents, parallel=True)(x)["obs"]
            assert labels.shape == (draws, 6)


def test_transport_is_a_change_of_variables():
    x = inputs(12)
    y = (x[:, 0] > 0).double()
    for num_classes in (2, 3):
        model = gaussian_process(x[:3], num_classes)
        labels = y if num_classes == 2 else torch.arange(12) % 3
        transport = transport_to_posterior(model, x, labels)

        def flat(noise, transport=transport):
            latents, _ = transport(noise)
            return torch.cat([value.flatten() for value in latents.values()])

        points = torch.randn(2, transport.size, dtype=DOUBLE)
        exact = [torch.linalg.slogdet(torch.func.jacfwd(flat)(p))[1] for p in points]
        given = [transport(p)[1] for p in points]
        torch.testing.assert_close(exact[0] - exact[1], given[0] - given[1], rtol=1e-6, atol=1e-6)


def test_best_gaussian_maximizes_the_bound():
    """Moving mean or precision off the fixed point lowers the evidence bound."""
    x = inputs(30)
    y = (x[:, 0] + 0.5 * torch.randn(30, dtype=DOUBLE) > 0).double()
    model = gaussian_process(x[:5], 2)
    transport = transport_to_posterior(model, x, y)
    at_center = transport.parameters(torch.zeros(len(transport.center), dtype=DOUBLE))
    projection = model.projection(x, at_center)
    left = model.variance(x, projection, at_center)
    mean, factor = transport.values(at_center)
    precision = (factor @ factor.mT).squeeze(0)

    def bound(mean, precision):
        covariance = torch.linalg.inv(precision)
        variance = left + (projection @ covariance * projection).sum(-1)
        fit = model.expected((projection @ mean)[None], variance[None]).log_prob(y).sum()
        q = torch.distributions.MultivariateNormal(mean, covariance)
        p = torch.distributions.MultivariateNormal(
            torch.zeros(5, dtype=DOUBLE), torch.eye(5, dtype=DOUBLE)
        )
        return fit - torch.distributions.kl_divergence(q, p)

    best = bound(mean[0], precision)
    for _ in range(10):
        shift = 0.1 * torch.randn(5, dtype=DOUBLE)
        assert bound(mean[0] + shift, precision) < best
    for factor in (0.8, 0.95, 1.05, 1.25):
        assert bound(mean[0], factor * precision) < best


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("joint_rows", [0, 10])
def test_factored_draws_answer_as_the_model_does(num_classes, joint_rows, monkeypatch):
    """Also in parallel, where draws have an axis for the plate; no factor is computed again."""
    model = gaussian_process(inputs(4), num_classes, joint_rows=joint_rows)
    parameters, _ = some_parameters(model)
    shrink = torch.linspace(0.5, 1.0, 7, dtype=DOUBLE)
    draws = {name: value * shrink for name, value in parameters.items()}
    draws["v"] = torch.stack([some_parameters(model)[1] for _ in range(7)])
    quick, more = factored(model, draws)
    x = inputs(5)

    def answers(model, draws):
        pyro.set_rng_seed(1)
        one_by_one = Predictive(model, draws, return_sites=["f", "obs"])(x)
        spread = {name: value[:, None] for name, value in draws.items()}
        together = Predictive(model, spread, parallel=True)(x)["obs"]
        probs = pyro_opu.as_teacher(Predictive(model, draws)).probs(x, 7)
        return {**one_by_one, "in parallel": together, "teacher": probs}

    expected = answers(model, draws)
    calls = []
    compute = type(model).lower
    monkeypatch.setattr(
        type(model), "lower", lambda self, given: calls.append(given) or compute(self, given)
    )
    found = answers(quick, more)
    assert len(calls) < 7  # Pyro looks at a model by running it without draws, and so do we
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_duplicated_inducing_points_and_extreme_parameters():
    z = inputs(5, dtype=torch.float32)
    z = torch.cat([z, z, z])
    x = torch.cat([z, inputs(20, dtype=torch.float32)])
    y = (x[:, 0] > 0).float()
    model = gaussian_process(z, 2)
    result = sgpmc(model, x, y, num_samples=5, warmup_steps=5)
    probs = pyro_opu.as_teacher(Predictive(model, result.samples)).probs(x)
    assert torch.isfinite(probs).all()
    transported = Transported(transport_to_posterior(model, x, y))
    for size in (1e3, 1e8):  # far beyond: any number or NaN, which HMC takes for a divergence
        noise = size * torch.randn(transported.transport.size)
        poutine.trace(poutine.condition(transported, {"noise": noise})).get_trace(x, y)


def test_near_rows_far_from_the_origin_have_a_covariance_with_a_factor():
    """In float32 products of rows of norm 28 have no digits left for a distance of 1e-3."""
    far = 20 * inputs(8, dtype=torch.float32).sign().repeat(5, 1)
    model = gaussian_process(far + 1e-3 * torch.randn_like(far), 2, linear=False)
    short = {name: torch.tensor(0.3) for name in model.kernel.names}
    lower = model.lower(short)
    truth = model.kernel(*[model.inducing.double()] * 2, {k: v.double() for k, v in short.items()})
    jitter = 1e-4 * truth.diagonal().mean()  # what the factor has more; the rest is rounding
    gap = (lower @ lower.mT - truth.float() - jitter * torch.eye(40)).abs().max()
    assert gap < 1e-5 * truth.max()


def test_a_step_to_where_the_bound_is_no_number_is_taken_back(monkeypatch):
    def bound(transport, shift, x, y):
        value = -100 * (shift - 0.5).square().sum()
        return value if float(shift.detach()) < 0.8 else value * torch.nan

    monkeypatch.setattr(pseudo_observations, "_bound", bound)
    transport = SimpleNamespace(center=torch.zeros(1), spread=torch.eye(1))
    found = pseudo_observations._climb(transport, torch.zeros(1), torch.zeros(1))
    # The first step is as long as 1; ten iterations of a quadratic end near its top.
    torch.testing.assert_close(found, torch.tensor([0.5]), atol=0.01, rtol=0)
