"""Sparse Gaussian processes: draws of HMC and NUTS, and the variational guide."""

from __future__ import annotations

import pickle
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import HMC, MCMC, NUTS, Predictive, Trace_ELBO

import pyro_opu
from pyro_opu.models import sgpmc as module
from pyro_opu.models.gaussian_process import gaussian_process, inducing_points
from pyro_opu.models.pseudo_observations import Transported, transport_to_posterior
from pyro_opu.models.sgpmc import sgpmc, svgp

DOUBLE = torch.float64


def inputs(rows, features=2, dtype=DOUBLE):
    return torch.randn(rows, features, dtype=dtype)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_svgp_predicts_through_a_guide(num_classes):
    x = inputs(60, dtype=torch.float32)
    y = (x[:, 0] * 2).clamp(-1, 1).round().long() + 1
    y = y.clamp(max=1) if num_classes == 2 else y
    model = gaussian_process(inducing_points(x, 0.2), num_classes)
    guide = svgp(model, x, y, num_steps=20, batch_size=32)
    teacher = pyro_opu.as_teacher(Predictive(model, guide=guide, num_samples=50))
    probs = teacher.probs(x)
    assert probs.shape == (50, 60, num_classes)
    assert not list(pyro.get_param_store())
    # Separable but for a soft edge; chance is a half or a third.
    assert (probs.mean(0).argmax(-1) == y).float().mean() > 0.8


@pytest.mark.slow
def test_svgp_starts_at_the_transport_and_climbs_the_bound():
    x = inputs(60)
    y = (x.prod(-1) + 0.3 * torch.randn(60, dtype=DOUBLE) > 0).double()
    model = gaussian_process(x[:10], 2)
    elbo = pyro.infer.Trace_ELBO(num_particles=400)
    start = svgp(model, x, y, num_steps=0)
    fitted = svgp(model, x, y, num_steps=300)
    first, last = (elbo.loss(model, guide, x, y) for guide in (start, fitted))
    long = pyro.infer.autoguide.AutoMultivariateNormal(model, init_scale=0.3)
    inference = pyro.infer.SVI(model, long, pyro.optim.Adam({"lr": 0.02}), pyro.infer.Trace_ELBO())
    for _ in range(600):
        inference.step(x, y)
    reference = elbo.loss(model, long, x, y)
    # Monte Carlo at 400 particles: 0.15 in each; the start is not linear in the right place.
    assert last < reference + 0.5
    assert last - 0.3 < first < reference + 2.0


@pytest.mark.slow
def test_sgpmc_by_nuts_agrees_with_hmc():
    count, x = 120, inputs(12)
    y = (x[:, 0] > 0.3).double()
    model = gaussian_process(x[:4], 2)
    runs = [
        sgpmc(model, x, y, num_samples=count, warmup_steps=30, trajectory_length=length)
        for length in (2.2, None)
    ]
    assert type(runs[0].mcmc.kernel) is HMC and type(runs[1].mcmc.kernel) is NUTS
    first, second = (run.samples["v"] for run in runs)
    # Four draws are worth at least one: 5 sigma of the difference of two means.
    gap = (first.mean(0) - second.mean(0)) / (first.std(0) * (8 / count) ** 0.5)
    assert gap.abs().max() < 5


@pytest.mark.parametrize("num_classes", [2, 3])
def test_sgpmc_draws_chains_and_teacher(num_classes, recwarn):
    x = inputs(30, dtype=torch.float32)
    y = torch.arange(30) % num_classes
    model = gaussian_process(x[:4], num_classes, joint_rows=10)
    result = sgpmc(model, x, y, num_samples=6, warmup_steps=5, num_chains=2)
    assert result.samples["v"].shape == ((12, 4) if num_classes == 2 else (12, 3, 4))
    assert result.samples["lengthscale"].shape == (12,)
    assert set(result.mcmc.diagnostics()["divergences"]) == {"chain 0", "chain 1"}
    predictive = Predictive(model, result.samples)
    teacher = pyro_opu.as_teacher(predictive)
    for rows in (1, 4, 12, 30):
        probs = teacher.probs(x[:rows])
        assert probs.shape == (12, rows, num_classes)
        torch.testing.assert_close(probs.sum(-1), torch.ones(12, rows))
    assert not [w for w in recwarn if "draw by draw" in str(w.message)]  # all through vmap
    assert predictive(x)["obs"].shape == (12, 30)
    pickle.loads(pickle.dumps(Transported(transport_to_posterior(model, x, y))))


def exact_predictions(kernel, x, y, new, size):
    """P(y = 1) at new inputs ``(size, len(new))`` under the prior, and the draws' weights, exact.

    A weight is the likelihood of y where f, the whole process, was drawn, over the sum of them.
    """
    parameters = {name: p.expand((size,)).sample() for name, p in kernel.priors(x).items()}
    rows = torch.cat([x, new])
    covariance = kernel(rows, rows, parameters)
    jitter = 1e-8 * covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    lower = torch.linalg.cholesky(covariance + jitter * torch.eye(len(rows)).to(x))
    f = (lower @ torch.randn(size, len(rows), 1).to(x))[..., 0]
    log_likelihood = dist.Bernoulli(logits=f[:, : len(x)]).log_prob(y).sum(-1)
    return f[:, len(x) :].sigmoid(), log_likelihood.softmax(0)[:, None]


@pytest.mark.slow
def test_sgpmc_is_the_exact_process_where_all_inputs_are_inducing():
    x = inputs(10, 1)
    y = (torch.sin(2 * x[:, 0]) > torch.randn(10, dtype=DOUBLE) * 0.5).double()
    new = torch.tensor([[-2.0], [-0.7], [0.1], [0.9], [3.0]], dtype=DOUBLE)
    model = gaussian_process(x, 2, joint_rows=0)
    exact, weights = exact_predictions(model.kernel, x, y, new, 50_000)
    result = sgpmc(model, x, y, num_samples=400, warmup_steps=50)
    mine = pyro_opu.as_teacher(Predictive(model, result.samples)).probs(new)[..., 1]
    center = (weights * exact).sum(0)
    squares = ((exact - center).square(), (mine - center).square())
    for truth, draws in ((exact, mine), squares):  # their means, and their variances
        mean = (weights * truth).sum(0)
        variance = (weights * (truth - mean).square()).sum(0)
        worth = pyro.ops.stats.effective_sample_size(draws[None], 0, 1)
        # 5 standard errors: of the mean of correlated draws, and of that of weighted ones.
        error = variance / worth + (weights * (truth - mean)).square().sum(0)
        assert worth.min() > 150
        assert ((draws.mean(0) - mean).abs() < 5 * error.sqrt()).all()


@pytest.mark.parametrize(("bad_steps", "error"), [(2, False), (30, True)])
def test_svgp_leaves_out_steps_without_a_gradient(
    bad_steps: int, error: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One draw without a Cholesky factor is no harm; most of them are an error that says so."""
    x = torch.linspace(-1, 1, 40)[:, None]
    model = gaussian_process(x[::8], 2)
    steps, whole = [], Trace_ELBO.differentiable_loss

    def loss(*args: Any) -> torch.Tensor:
        steps.append(1)
        return whole(*args) * (torch.nan if len(steps) <= bad_steps else 1.0)

    monkeypatch.setattr(Trace_ELBO, "differentiable_loss", loss)
    if error:
        with pytest.raises(FloatingPointError, match="30 of 60 steps of svgp"):
            svgp(model, x, (x[:, 0] > 0).float(), num_steps=60)
    else:
        guide = svgp(model, x, (x[:, 0] > 0).float(), num_steps=60)
        assert torch.isfinite(guide.loc).all() and torch.isfinite(guide.scale_tril).all()


@pytest.mark.parametrize(("started", "context"), [(False, None), (True, "spawn")])
def test_chains_are_not_forked_once_cuda_has_begun(monkeypatch, started, context):
    """A forked process can run no gradients after those of CUDA."""
    given = {}

    def watched(*args, **options):
        given.update(options)
        return MCMC(*args, **options)

    monkeypatch.setattr(module, "MCMC", watched)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: started)
    monkeypatch.setattr(pyro.infer.mcmc.api.mp, "cpu_count", lambda: 1)  # one after another
    model = gaussian_process(inputs(3), 2)
    with pytest.warns(UserWarning, match="num_chains=2 is more than available_cpu"):
        sgpmc(model, inputs(6), torch.arange(6) % 2, num_samples=2, warmup_steps=1, num_chains=2)
    assert given["mp_context"] == context
