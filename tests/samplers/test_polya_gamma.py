"""The Polya-Gamma kernel against quadrature, weighted draws and its conditional, and in MCMC."""

from __future__ import annotations

import math
import sys
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, Predictive
from pyro.ops.stats import effective_sample_size, split_gelman_rubin

from pyro_opu.samplers.polya_gamma import PolyaGammaGibbs, draw_polya_gamma
from pyro_opu.samplers.tempering import tempered

CORRELATED = torch.tensor([[1.0, 0.7], [0.7, 2.0]])


def plain(x, y=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.5).to_event(1))
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Bernoulli(logits=x @ w), obs=y)


def counted(x, y=None):
    """Two scalar sites, counts, an offset, prior means that are not zero."""
    a = pyro.sample("a", dist.Normal(0.5, 0.8))
    b = pyro.sample("b", dist.Normal(torch.tensor([-1.0]), 1.2).to_event(1))
    logits = x[:, 0] * a + x[:, 1] * b + 0.7
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Binomial(1 + torch.arange(len(x)) % 5, logits=logits), obs=y)


def correlated(x, y=None):
    w = pyro.sample("w", dist.MultivariateNormal(torch.tensor([1.0, 0.0]), CORRELATED))
    pyro.deterministic("twice", 2 * w)
    return pyro.sample("obs", dist.Bernoulli(logits=x @ w).to_event(1), obs=y)


def three_classes(x, y=None):
    """A reference class, and a prior that correlates the two blocks."""
    w = pyro.sample("w", dist.MultivariateNormal(torch.tensor([1.0, 0.0]), CORRELATED))
    logits = torch.stack([torch.full_like(x[:, 0], 0.3), x[:, 0] * w[0], x[:, 1] * w[1]], -1)
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Categorical(logits=logits), obs=y)


def two_columns(x, y=None):
    """Two classes of a Categorical, both moved by both latents."""
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.5).to_event(1))
    with pyro.plate("data", len(x)):
        logits = torch.stack([-x @ w, 0.5 * x @ w], -1)
        return pyro.sample("obs", dist.Categorical(logits=logits), obs=y)


def weighted(x, y=None):
    """Rows of weight 2.5, some masked out, and a prior to the power 0.5."""
    with poutine.scale(scale=0.5):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.5).to_event(1))
    with pyro.plate("data", len(x)), poutine.mask(mask=torch.arange(len(x)) % 3 > 0):
        with poutine.scale(scale=2.5):
            return pyro.sample("obs", dist.Bernoulli(logits=x @ w), obs=y)


def quadrature(model, x, y):
    """Posterior mean and sd of two latents, from the model's log joint on a grid."""
    line = torch.linspace(-9.0, 9.0, 150, dtype=torch.float64)
    a, b = (g.flatten() for g in torch.meshgrid(line, line, indexing="ij"))
    grid = torch.stack([a, b], -1)

    def log_joint(point):
        data = {"w": point, "a": point[0], "b": point[1:]}
        with pyro.validation_enabled(False):
            trace = poutine.trace(poutine.condition(model, data)).get_trace(x.double(), y)
            trace.compute_log_prob()
        return sum(n["log_prob_sum"] for n in trace.nodes.values() if n["type"] == "sample")

    weights = torch.vmap(log_joint)(grid).softmax(0).unsqueeze(-1)
    mean = (weights * grid).sum(0)
    return mean, (weights * (grid - mean) ** 2).sum(0).sqrt()


def stacked(samples):
    """All latents side by side, (chains, draws, P)."""
    return torch.cat([samples[n].flatten(2) if samples[n].ndim > 2 else samples[n][..., None]
                      for n in sorted(samples)], -1).double()  # fmt: skip


def run(model, *data, draws=1500, chains=4, warmup=100, kernel=None):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "num_chains", UserWarning)  # more than cores
        mcmc = MCMC(
            kernel or PolyaGammaGibbs(model), draws, warmup, num_chains=chains, disable_progbar=True
        )
        # One after another wherever the tests run: the same numbers on every machine.
        if chains > 1 and type(mcmc.sampler).__name__ != "_UnarySampler":
            mcmc.sampler.terminate()
            from pyro.infer.mcmc.api import _UnarySampler

            mcmc.sampler = _UnarySampler(mcmc.kernel, draws, warmup, chains, True)
        mcmc.run(*data)
    return mcmc


def data_for(model, rows=25):
    x = torch.randn(rows, 2)
    with torch.no_grad():
        return x, Predictive(model, num_samples=1)(x)["obs"].reshape(rows)


TEMPERED = tempered(plain, likelihood=3.0, prior=0.5)


@pytest.mark.parametrize(
    "model",
    [
        plain,
        counted,
        three_classes,
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (weighted, correlated, two_columns, TEMPERED)
        ),
    ],
)
def test_posterior_against_quadrature(model):
    x, y = data_for(model)
    mean, sd = quadrature(model, x, y)
    count = 1200 if model is TEMPERED else 600  # which moves least at a step
    draws = stacked(run(model, x, y, draws=count).get_samples(group_by_chain=True))
    assert (split_gelman_rubin(draws) < 1.05).all()
    # 5.5 Monte Carlo standard errors: of 6 models x 4, one exceeds them by chance once in a million
    # seeds, and once in 70,000 if the effective sample size is a fifth too large.
    for values, expected in ((draws, mean), ((draws - mean) ** 2, sd**2)):
        error = values.flatten(0, 1).std(0) / effective_sample_size(values).sqrt()
        assert (error < 0.15 * values.flatten(0, 1).std(0)).all()  # the chains are long enough
        assert ((values.mean((0, 1)) - expected).abs() < 5.5 * error).all()


def moments(h, c):
    """Mean and variance of PG(h, c), c > 0, and the logarithm of E[exp(-omega / mean)]."""
    mean = h / (2 * c) * math.tanh(c / 2)
    variance = h / (4 * c**3) * (2 * math.tanh(c / 2) - c / math.cosh(c / 2) / math.cosh(c / 2))
    inner = math.sqrt((c**2 / 2 + 1 / mean) / 2)
    return mean, variance, h * (math.log(math.cosh(c / 2)) - math.log(math.cosh(inner)))


@pytest.mark.parametrize(
    ("h", "c"),
    [(0.5, 1e-3), (2.7, 1e-3), (12.5, -3.0), (6.0, 2.5), (1.0, 0.5), (49.5, 1.0), (800.0, -30.0),
     (1.0, 300.0), (2.5, 300.0)],
)  # fmt: skip
def test_polya_gamma_moments(h, c):
    """Of any shape and tilt, fractional, large and whole, against the closed forms."""
    n = 90_000
    generator = np.random.default_rng(0)
    found = draw_polya_gamma(np.full(n, h), np.full(n, c), generator)
    mean, variance, transform = moments(h, abs(c))
    spread = (found - found.mean()) ** 2
    # 5 standard errors: of 27 checks one exceeds them by chance once in 60,000 seeds.
    assert abs(found.mean() - mean) < 5 * found.std() / math.sqrt(n)
    assert abs(spread.mean() - variance) < 5 * spread.std() / math.sqrt(n)
    decayed = np.exp(-found / mean)
    assert abs(decayed.mean() - math.exp(transform)) < 5 * decayed.std() / math.sqrt(n)


def test_polya_gamma_rows_are_their_own():
    """Shapes and tilts of all kinds in one call, each draw in the place of its row."""
    h, c = np.array([1.0, 2.5, 1e6, 16.0, 17.0]), np.array([0.3, 400.0, 2.0, 900.0, 5.0])
    found = np.mean([draw_polya_gamma(h, c, np.random.default_rng(seed)) for seed in range(600)], 0)
    expected = [moments(*row)[0] for row in zip(h, c, strict=True)]
    # The first has the largest deviation, 0.8 of its mean: 5 standard errors, once in two million.
    np.testing.assert_allclose(found, expected, rtol=0.16)


def test_gaussian_conditional_is_exact(monkeypatch):
    """With the Polya-Gamma variables fixed, draws are N(m, V) of Polson et al."""
    import polyagamma

    x, y = data_for(counted)
    n = 1 + torch.arange(len(x)) % 5
    seen = []

    def fixed(h, z, **settings):
        seen.append((torch.as_tensor(h), torch.as_tensor(z)))
        return (0.1 + 0.02 * torch.arange(len(h), dtype=torch.float64)).numpy()

    monkeypatch.setattr(polyagamma, "random_polyagamma", fixed)
    kernel = PolyaGammaGibbs(counted)
    kernel.setup(0, x.double(), y)
    start = {"a": torch.tensor(0.4).double(), "b": torch.tensor([-0.3]).double()}
    draws = torch.stack(
        [torch.cat([v.reshape(1) for v in kernel.sample(start).values()]) for _ in range(2_000)]
    ).double()
    h, z = seen[0]
    torch.testing.assert_close(h, n.double())
    # 1e-6: the latents are float32, as is the model's prior.
    torch.testing.assert_close(z, x.double() @ torch.tensor([0.4, -0.3]).double() + 0.7, atol=1e-6,
                               rtol=0)  # fmt: skip
    omega = torch.from_numpy(fixed(h, z)).unsqueeze(-1)
    design, prior = x.double(), torch.tensor([0.8, 1.2]).double() ** -2
    covariance = torch.linalg.inv(design.T @ (omega * design) + prior.diag())
    mu0 = torch.tensor([0.5, -1.0]).double()
    kappa = y.double() - n / 2
    mean = covariance @ (design.T @ (kappa - omega[:, 0] * 0.7) + prior * mu0)
    # 5 standard errors of 2,000 independent draws.
    error = covariance.diag().sqrt() / math.sqrt(2_000)
    assert ((draws.mean(0) - mean).abs() < 5 * error).all()
    torch.testing.assert_close(draws.T.cov(), covariance, rtol=5 * math.sqrt(2 / 2_000), atol=8e-3)


def classes_of(num_classes):
    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(x.shape[1], num_classes), 1.0).to_event(2))
        b = pyro.sample("b", dist.Normal(torch.zeros(num_classes), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            return pyro.sample("obs", dist.Categorical(logits=x @ w + b), obs=y)

    return model


def softmax_by_weights(x, y, num_classes, size=50_000):
    """Latents ``(size, P)`` of ``classes_of``, b before w, and their weights around the mode."""
    design = torch.cat([torch.ones(len(x), 1), x], 1).double()
    shape = (design.shape[1], num_classes)

    def log_joint(latents):
        logits = design @ latents.unflatten(-1, shape)
        likelihood = logits.log_softmax(-1)[..., torch.arange(len(y)), y].sum(-1)
        return likelihood - latents.square().sum(-1) / 2

    mode = torch.zeros(math.prod(shape), dtype=torch.float64)
    for _ in range(20):  # Newton's steps
        precision = -torch.func.hessian(log_joint)(mode)
        mode = mode + torch.linalg.solve(precision, torch.func.grad(log_joint)(mode))
    wide = torch.distributions.MultivariateNormal(mode, 1.3 * torch.linalg.inv(precision))
    latents = wide.sample((size,))
    return latents, (log_joint(latents) - wide.log_prob(latents)).softmax(0).unsqueeze(-1)


@pytest.mark.slow
def test_softmax_against_weighted_draws():
    model = classes_of(3)
    x = torch.randn(30, 2)
    y = torch.randint(3, (30,))
    ours = stacked(run(model, x, y, draws=1500, chains=2).get_samples(group_by_chain=True))
    latents, weights = softmax_by_weights(x, y, 3)
    assert 1 / weights.square().sum() > 10_000
    mean = (weights * latents).sum(0)
    variance = (weights * (latents - mean).square()).sum(0)
    theirs = (weights * (latents - mean)).square().sum(0)
    error = (variance / effective_sample_size(ours) + theirs).sqrt()
    # 5 Monte Carlo standard errors: of 9 latents one exceeds them once in 200,000 seeds.
    assert ((ours.mean((0, 1)) - mean).abs() < 5 * error).all()
    # 20 %: Monte Carlo of a standard deviation at an effective size of 100 or more.
    assert (ours.flatten(0, 1).std(0) / variance.sqrt() - 1).abs().max() < 0.2


def test_zero_and_duplicated_columns_leave_the_prior():
    x = torch.randn(40, 1)
    y = (x[:, 0] + 0.5 * torch.randn(40) > 0).float()
    design = torch.cat([x, x, torch.zeros(40, 1)], 1)

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            return pyro.sample("obs", dist.Bernoulli(logits=x @ w), obs=y)

    w = run(model, design, y, draws=4000, chains=1).get_samples()["w"].double()
    # What the data do not see, w0 - w1 and w2, is drawn afresh from the prior: 4000 independent
    # draws, 5 standard errors.
    for seen_by_prior, sd in ((w[:, 0] - w[:, 1], math.sqrt(2)), (w[:, 2], 1.0)):
        assert seen_by_prior.mean().abs() < 5 * sd / math.sqrt(4000)
        assert abs(seen_by_prior.std() / sd - 1) < 5 / math.sqrt(2 * 4000)
    # w0 + w1 is one weight with prior variance 2.
    line = torch.linspace(-10, 15, 2001, dtype=torch.float64)
    signs = (2 * y - 1).double()
    log_joint = torch.nn.functional.logsigmoid(line[:, None] * (signs * x[:, 0].double()))
    weights = (log_joint.sum(-1) - line**2 / 4).softmax(0)
    mean = (weights * line).sum()
    total = (w[:, 0] + w[:, 1])[None]
    error = total.std() / effective_sample_size(total[..., None]).sqrt()
    assert (total.mean() - mean).abs() < 3.5 * error.squeeze()


@pytest.mark.slow
def test_softmax_with_a_column_of_zeros():
    model = classes_of(3)
    x = torch.cat([torch.randn(30, 1), torch.zeros(30, 1)], 1)
    y = torch.randint(3, (30,))
    w = run(model, x, y, draws=2000, chains=1).get_samples()["w"][:, 1]
    # Independent draws from the prior, 5 standard errors.
    assert w.mean(0).abs().max() < 5 / math.sqrt(2000)
    assert (w.std(0) - 1).abs().max() < 5 / math.sqrt(2 * 2000)


def test_large_features_and_certain_labels_stay_finite():
    x = 1e4 * torch.randn(50, 2)
    y = (x[:, 0] > 0).float()
    w = run(plain, x, y, draws=50, chains=1).get_samples()["w"]
    assert w.isfinite().all()
    assert (((x @ w.T) > 0).float().mean(1) == y).float().mean() > 0.95


@pytest.mark.parametrize("model", [plain, three_classes])
def test_seed_and_resuming_give_the_unbroken_run(model):
    x, y = data_for(model)
    state = torch.get_rng_state()
    whole = run(model, x, y, draws=30, chains=1, warmup=5).get_samples()["w"]
    torch.set_rng_state(state)
    kernel = PolyaGammaGibbs(model)
    first = run(model, x, y, draws=12, chains=1, warmup=5, kernel=kernel).get_samples()
    last = {name: value[-1] for name, value in first.items()}
    more = MCMC(kernel, 18, 0, initial_params=last, disable_progbar=True)
    more.run(x, y)
    assert torch.equal(torch.cat([first["w"], more.get_samples()["w"]]), whole)
    assert not torch.equal(run(model, x, y, draws=30, chains=1).get_samples()["w"], whole)


def test_scalar_sites_in_pyros_mcmc():
    x, y = data_for(counted)
    kernel = PolyaGammaGibbs(counted)
    mcmc = run(counted, x, y, draws=40, chains=3, warmup=2, kernel=kernel)
    grouped = mcmc.get_samples(group_by_chain=True)
    assert grouped["a"].shape == (3, 40) and grouped["b"].shape == (3, 40, 1)
    assert grouped["a"].dtype == torch.float32
    only = MCMC(kernel, 5, 0, save_params=["b", "a"], disable_progbar=True)
    only.run(x, y)
    assert only.get_samples()["b"].shape == (5, 1)


def test_starts_of_chains_are_used():
    x, y = data_for(plain)
    seen = []

    class Watched(PolyaGammaGibbs):
        def sample(self, params):
            seen.append(params["w"].clone())
            return super().sample(params)

    starts = torch.tensor([[5.0, -5.0], [7.0, 7.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyro.infer.mcmc.api import _UnarySampler

        mcmc = MCMC(Watched(plain), 3, 0, disable_progbar=True)
        mcmc.num_chains, mcmc._diagnostics = 2, [None] * 2
        mcmc.sampler = _UnarySampler(mcmc.kernel, 3, 0, 2, True, initial_params={"w": starts})
        mcmc.run(x, y)
    assert torch.equal(torch.stack(seen[::3]), starts)


@pytest.mark.slow
def test_chains_in_processes(monkeypatch):
    # Not "fork": a child of a process in which OpenMP has run several threads waits for them.
    monkeypatch.setattr("pyro.infer.mcmc.api.mp.cpu_count", lambda: 3)
    x, y = data_for(plain)
    kernel = PolyaGammaGibbs(plain)
    mcmc = MCMC(kernel, 20, 2, num_chains=2, mp_context="spawn", disable_progbar=True)
    mcmc.run(x, y)
    w = mcmc.get_samples(group_by_chain=True)["w"]
    assert w.shape == (2, 20, 2) and not torch.equal(w[0], w[1])


def test_one_class_only_warns():
    x = torch.randn(20, 2)
    with pytest.warns(UserWarning, match="all labels at site 'obs' are of one class, 1.*prior"):
        w = run(plain, x, torch.ones(20), draws=50, chains=1).get_samples()["w"]
    assert w.isfinite().all()
    with pytest.warns(UserWarning, match="of one class, 2"):
        run(three_classes, x, torch.full((20,), 2), draws=5, chains=1)


def with_latent(prior, shape=(2,)):
    def model(x, y=None):
        w = pyro.sample("w", prior)
        with pyro.plate("data", len(x)):
            return pyro.sample("obs", dist.Bernoulli(logits=(x * w).sum(-1)), obs=y)

    return model


def with_logits(function, likelihood=dist.Bernoulli):
    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            return pyro.sample("obs", likelihood(logits=function(x, w)), obs=y)

    return model


def hierarchical(x, y=None):
    scale = pyro.sample("a", dist.Normal(0.0, 1.0))
    w = pyro.sample("w", dist.Normal(torch.zeros(2), scale.exp()).to_event(1))
    pyro.sample("obs", dist.Bernoulli(logits=x @ w).to_event(1), obs=y)


def twice(x, y=None):
    plain(x, y)
    pyro.sample("more", dist.Normal(0.0, 1.0), obs=torch.tensor(0.0))


def subsampled(x, y=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x), subsample_size=2) as rows:
        pyro.sample("obs", dist.Bernoulli(logits=x[rows] @ w), obs=y[rows])


def no_latent(x, y=None):
    pyro.sample("obs", dist.Bernoulli(logits=x[:, 0]).to_event(1), obs=y)


X = torch.tensor([[1.0, 0.5], [-1.0, 2.0], [0.3, 0.2]])
Y = torch.tensor([0.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (plain, (X, torch.tensor([0.0, 2.0, 1.0])), r"from 0 to 1; got 2 in 1 of 3 rows"),
        (plain, (X, torch.tensor([0.0, torch.nan, 1.0])), r"from 0 to 1; got nan"),
        (plain, (X, torch.tensor([0.0, 0.5, 1.0])), r"whole numbers from 0 to 1; got 0\.5"),
        (counted, (X, torch.tensor([0.0, 3.0, 1.0])), r"from 0 to 2; got 3"),
        (three_classes, (X, torch.tensor([0, 3, 1])), r"from 0 to 2; got 3"),
        (three_classes, (X, torch.tensor([0, -1, 1])), r"from 0 to 2; got -1"),
        (plain, (X, Y[:, None]), r"shape \(3,\).*got \(3, 1\)"),
        (plain, (X, None), r"one observed site; got none\. Pass the labels"),
        (plain, (X,), r"one observed site; got none\. Pass the labels"),
        (twice, (X, Y), r"one observed site; got \['obs', 'more'\]"),
        (subsampled, (X, Y), r"all its data.*plate 'data'.*subsample_size"),
        (no_latent, (X, Y), r"Normal latents; got no latent"),
        (plain, (X.index_fill(0, torch.tensor([1]), torch.nan), Y), r"finite.*1 of 3.*row 1\)"),
        (plain, (X.index_fill(0, torch.tensor([1]), torch.inf), Y), r"finite.*1 of 3.*row 1\)"),
        (with_latent(dist.Laplace(0.0, 1.0)), (X, Y), r"must be Normal.*got Laplace at site 'w'"),
        (with_latent(dist.LogNormal(0.0, 1.0)), (X, Y), r"must be Normal.*got LogNormal"),
        (with_latent(dist.Normal(0.0, torch.inf)), (X, Y), r"finite and positive.*'w'"),
        (hierarchical, (X, Y), r"fixed parameters; got a mean or a scale"),
        (with_logits(lambda x, w: (x @ w) ** 3), (X, Y), r"affine in the latents"),
        (with_logits(lambda x, w: (x @ w).relu()), (X, Y), r"affine in the latents"),
        (with_logits(lambda x, w: x[:, 0] * w[0] * w[1]), (X, Y), r"affine in the latents"),
        (
            with_logits(lambda x, w: torch.stack([x @ w, 2 * x @ w, x[:, 1]], -1),
                        dist.Categorical),
            (X, Y.long()),
            r"overlapping blocks: a latent of site 'w' moves several",
        ),
        (with_logits(lambda x, w: x @ w, dist.ContinuousBernoulli), (X, Y), r"got Continuous"),
    ],
)  # fmt: skip
def test_failures(model, data, message):
    with pytest.raises(ValueError, match=message):
        run(model, *data, draws=2, chains=1)


def test_masked_latents_are_refused():
    with pytest.raises(ValueError, match=r"finite and positive, and no mask.*\['w'\]"):
        run(poutine.mask(plain, mask=torch.tensor(False)), X, Y, draws=2, chains=1)
    run(poutine.mask(plain, mask=True), X, Y, draws=2, chains=1)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "polyagamma", None)
    with pytest.raises(ImportError, match=r"pip install 'pyro-opu\[samplers\]'"):
        PolyaGammaGibbs(plain)
