"""Runs of any sampler in ArviZ's form, against loops, ArviZ and closed forms."""

from __future__ import annotations

import math
import sys
import warnings
from functools import cache
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from chains import in_turn
from either_arviz import NEW, az, groups
from pyro import poutine
from pyro.infer import HMC, MCMC, NUTS, Predictive
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from pyro.infer.mcmc.rwkernel import RandomWalkKernel
from pyro.infer.predictive import WeighedPredictive
from torch import Tensor

from pyro_opu.interop.arviz import to_inference_data
from pyro_opu.interop.groups import chains_of
from pyro_opu.models.logistic_regression import logistic_regression

N = 30
binary = logistic_regression(2)


def data(classes: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(N, 2, generator=generator)
    noise = torch.randn(N, classes, generator=generator)
    y = (x @ torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]])[:, :classes] + noise).argmax(-1)
    return x, y.float() if classes == 2 else y


def sampled(kernel: Any, *args: Any, draws: int = 20, chains: int = 1, **kwargs: Any) -> MCMC:
    return in_turn(kernel, draws, 20, *args, chains=chains, **kwargs)


@cache
def two_chains() -> MCMC:
    """100 draws of NUTS, compiled, in each of two chains."""
    pyro.set_rng_seed(0)
    kernel = NUTS(binary, jit_compile=True, ignore_jit_warnings=True)
    return in_turn(kernel, 100, 100, *data(), chains=2)


def looped(model: Any, samples: dict[str, Tensor], *args: Any) -> tuple[np.ndarray, np.ndarray]:
    """Pointwise log-likelihood (S, N) of site "obs" and log joint (S,), a model run per draw."""
    pointwise, joint = [], []
    for s in range(len(next(iter(samples.values())))):
        conditioned = poutine.condition(model, {k: v[s] for k, v in samples.items()})
        trace = poutine.trace(conditioned).get_trace(*args)
        trace.compute_log_prob()
        node = trace.nodes["obs"]
        pointwise.append(node["fn"].log_prob(node["value"]))
        joint.append(trace.log_prob_sum())
    return torch.stack(pointwise).numpy(), torch.stack(joint).numpy()


# InferenceData --------------------------------------------------------------------------------


def test_every_group_of_a_compiled_run_of_two_chains() -> None:
    mcmc, (x, y) = two_chains(), data()
    found = to_inference_data(mcmc, probs=True)
    assert found.posterior["weight"].dims[:2] == ("chain", "draw")
    assert found.posterior["weight"].shape == (2, 100, 2, 1)
    grouped = mcmc.get_samples(group_by_chain=True)
    for name in ("weight", "bias"):
        np.testing.assert_array_equal(found.posterior[name], grouped[name].numpy())
    assert found.posterior.attrs["chains"] == "chains of an MCMC run"
    # The same by hand: Bernoulli with logit z has log-density y z - log(1 + e^z).
    z = torch.einsum("nd,csdo->csn", x, grouped["weight"]) + grouped["bias"]
    pointwise = y * z - torch.nn.functional.softplus(z)
    assert found.log_likelihood["obs"].dims == ("chain", "draw", "data")
    # float32, sums of a few terms
    np.testing.assert_allclose(found.log_likelihood["obs"], pointwise.numpy(), atol=1e-5)
    normal = dist.Normal(0.0, 1.0)
    prior = sum(normal.log_prob(value).flatten(2).sum(-1) for value in grouped.values())
    lp = pointwise.sum(-1) + prior
    np.testing.assert_allclose(found.sample_stats["lp"], lp.numpy(), rtol=1e-5)
    np.testing.assert_allclose(found.posterior_predictive["probs"][..., 1], z.sigmoid(), atol=1e-6)
    assert found.posterior_predictive["probs"].dims == ("chain", "draw", "data", "class")
    labels = found.posterior_predictive["obs"]
    assert labels.dims == ("chain", "draw", "data") and set(np.unique(labels)) == {0.0, 1.0}
    # 6000 labels: their mean is that of the probabilities to 5 sigma, 0.5 / sqrt(6000) each.
    assert abs(float(labels.mean()) - float(z.sigmoid().mean())) < 5 * 0.5 / math.sqrt(6000)
    np.testing.assert_array_equal(found.observed_data["obs"], y.numpy())
    np.testing.assert_array_equal(found.constant_data["x"], x.numpy())
    assert list(found.constant_data) == ["x"] and found.constant_data["x"].dims[0] == "data"
    assert found.sample_stats["diverging"].shape == (2, 100)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "kernel",
    [
        lambda model: NUTS(model, jit_compile=True, ignore_jit_warnings=True),
        lambda model: HMC(model, step_size=0.1, num_steps=3),
        RandomWalkKernel,
    ],
    ids=["NUTS", "HMC", "RandomWalk"],
)
def test_any_kernel_against_the_loop(kernel: Any, classes: int) -> None:
    model, (x, y) = logistic_regression(classes), data(classes)
    mcmc = sampled(kernel(model), x, y=y)
    found = to_inference_data(mcmc, probs=True)
    pointwise, joint = looped(model, mcmc.get_samples(), x, y)
    np.testing.assert_allclose(found.log_likelihood["obs"][0], pointwise, atol=1e-5)
    np.testing.assert_allclose(found.sample_stats["lp"][0], joint, rtol=1e-5)
    assert ("diverging" in found.sample_stats) == ("RandomWalk" not in type(mcmc.kernel).__name__)
    assert found.posterior_predictive["probs"].shape == (1, 20, N, classes)
    assert found.posterior_predictive["obs"].values.max() < classes


@pytest.mark.skipif(NEW, reason="ArviZ 1 has no from_pyro")
def test_arviz_itself_is_wrong_for_vector_latents() -> None:
    """Why the log-likelihood is our own: should this fail, ArviZ or Pyro has changed."""

    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        logits = pyro.deterministic("logits", (x * w).sum(-1))
        pyro.sample("obs", dist.Bernoulli(logits=logits), obs=y)

    for draws in (N, 20):
        mcmc = sampled(NUTS(model), *data(), draws=draws)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = az.from_pyro(mcmc, log_likelihood=True)
        ours = to_inference_data(mcmc)
        pointwise, _ = looped(model, mcmc.get_samples(), *data())
        np.testing.assert_allclose(ours.log_likelihood["obs"][0], pointwise, atol=1e-5)
        assert ours.log_likelihood["obs"].dims == ("chain", "draw", "obs_dim_0")
        if draws == N:  # silently one number per draw, draw s at input s
            diagonal = theirs.log_likelihood["obs"][0]
            np.testing.assert_allclose(diagonal, pointwise.diagonal(), atol=1e-5)
        else:
            assert "log_likelihood" not in theirs.groups()
        assert set(theirs.observed_data) == {"logits", "obs"} and set(ours.observed_data) == {"obs"}


def test_divergences_are_where_the_kernel_says() -> None:
    def funnel() -> None:
        scale = pyro.sample("scale", dist.Normal(0.0, 3.0))
        with pyro.plate("things", 5):
            pyro.sample("x", dist.Normal(0.0, (scale / 2).exp()))

    kernel = HMC(funnel, step_size=1.0, num_steps=5, adapt_step_size=False, adapt_mass_matrix=False)
    mcmc = sampled(kernel, draws=100, chains=2)
    found = to_inference_data(mcmc)
    assert found.posterior["x"].dims == ("chain", "draw", "things")
    positions = mcmc.diagnostics()["divergences"]
    counts = []
    for chain in range(2):
        places = np.flatnonzero(found.sample_stats["diverging"][chain])
        assert places.tolist() == sorted(positions[f"chain {chain}"])
        counts.append(len(places))
    assert sum(counts) > 0


def test_scales_and_masks() -> None:
    """A tempered likelihood is no likelihood; a masked row has none."""
    x, y = data()
    keep = torch.arange(N) >= 5

    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with poutine.scale(scale=0.5), pyro.plate("data", len(x)), poutine.mask(mask=keep):
            pyro.sample("obs", dist.Bernoulli(logits=x @ w), obs=y)

    mcmc = sampled(NUTS(model), x, y)
    found = to_inference_data(mcmc)
    w = mcmc.get_samples()["w"]
    pointwise = dist.Bernoulli(logits=w @ x.T).log_prob(y) * keep
    np.testing.assert_allclose(found.log_likelihood["obs"][0], pointwise.numpy(), atol=1e-5)
    lp = 0.5 * pointwise.sum(-1) + dist.Normal(0.0, 1.0).log_prob(w).sum(-1)
    np.testing.assert_allclose(found.sample_stats["lp"][0], lp.numpy(), rtol=1e-5)


def test_other_sites_than_class_labels() -> None:
    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Normal(x @ w, 0.1), obs=y)
            pyro.sample("one", dist.OneHotCategorical(logits=torch.zeros(3)), obs=onehot)

    x, _ = data()
    onehot = torch.eye(3)[torch.arange(N) % 3]
    mcmc = sampled(NUTS(model), x, x[:, 0])
    found = to_inference_data(
        mcmc, probs=True, coords={"feature": ["a", "b"]}, dims={"w": ["feature"]}
    )
    assert found.posterior["w"].sel(feature="b").shape == (1, 20)
    assert found.log_likelihood["one"].dims == ("chain", "draw", "data")
    np.testing.assert_allclose(found.log_likelihood["one"], math.log(1 / 3), rtol=1e-5)
    assert found.posterior_predictive["one"].shape == (1, 20, N, 3)
    assert found.posterior_predictive["obs"].shape == (1, 20, N)
    assert found.posterior_predictive["probs"].shape == (1, 20, N, 3)
    assert list(found.constant_data) == ["x"]  # y is observed


def test_models_that_vmap_cannot_run_are_looped() -> None:
    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        sign = 1.0 if w[0] > 0 else -1.0
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Bernoulli(logits=sign * (x @ w)), obs=y)

    run = Predictive(model, {"w": torch.randn(7, 2)})
    with pytest.warns(UserWarning, match="draw by draw") as caught:
        found = to_inference_data(run, *data())
    assert len([w for w in caught if "draw by draw" in str(w.message)]) == 1
    pointwise, _ = looped(model, run.posterior_samples, *data())
    np.testing.assert_allclose(found.log_likelihood["obs"][0], pointwise, atol=1e-5)


def test_blocks_of_draws_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = to_inference_data(two_chains())
    monkeypatch.setattr("pyro_opu.interop.runs.NUMBERS", 7 * 2 * N)
    parts = to_inference_data(two_chains())
    np.testing.assert_allclose(parts.log_likelihood["obs"], whole.log_likelihood["obs"], atol=1e-6)
    assert parts.posterior_predictive["obs"].shape == whole.posterior_predictive["obs"].shape


def test_a_seed_fixes_the_labels_and_leaves_the_generator() -> None:
    before = torch.get_rng_state()
    one, same, other = (to_inference_data(two_chains(), seed=s) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert one.posterior_predictive.equals(same.posterior_predictive)
    assert not one.posterior_predictive.equals(other.posterior_predictive)


def test_groups_can_be_left_out() -> None:
    calls = []

    def model(x: Tensor, y: Tensor) -> Tensor:
        calls.append(1)
        return binary(x, y)

    mcmc = sampled(RandomWalkKernel(model), *data())
    calls.clear()
    found = to_inference_data(mcmc, log_likelihood=False, posterior_predictive=False)
    assert groups(found) == {"posterior"} and not calls
    found = to_inference_data(mcmc, log_likelihood=False)
    assert "log_likelihood" not in groups(found) and "lp" in found.sample_stats
    found = to_inference_data(mcmc, posterior_predictive=False)
    assert "posterior_predictive" not in groups(found)


def test_a_kernel_without_a_model() -> None:
    kernel = HMC(potential_fn=lambda z: (z["a"] ** 2).sum() / 2, step_size=0.5)
    mcmc = MCMC(kernel, 20, 5, initial_params={"a": torch.zeros(3)}, disable_progbar=True)
    mcmc.run()
    found = to_inference_data(mcmc)
    assert groups(found) == {"posterior", "sample_stats"}
    assert list(found.sample_stats) == ["diverging"]


# A Predictive ---------------------------------------------------------------------------------


def test_posterior_samples_with_data() -> None:
    mcmc = two_chains()
    run = Predictive(binary, mcmc.get_samples())
    one = to_inference_data(run, *data())
    assert one.posterior.sizes["chain"] == 1 and one.posterior.sizes["draw"] == 200
    assert one.posterior.attrs["chains"] == "posterior samples cut into 1 chain(s)"
    x, y = data()
    two, whole = to_inference_data(run, x, y=y, num_chains=2), to_inference_data(mcmc)
    assert two.posterior.equals(whole.posterior) and two.log_likelihood.equals(whole.log_likelihood)
    assert "diverging" not in two.sample_stats


@pytest.mark.parametrize("kind", [AutoNormal, AutoMultivariateNormal])
def test_a_guide_is_one_chain_of_independent_draws(kind: Any) -> None:
    guide = kind(binary, init_scale=0.5)
    guide(*data())
    run = Predictive(binary, guide=guide, num_samples=400)
    found = to_inference_data(run, *data(), seed=0)
    assert set(found.posterior) == {"bias", "weight"}  # no auxiliary site of the guide
    assert found.posterior["weight"].shape == (1, 400, 2, 1)
    assert "independent draws of a guide" in found.posterior.attrs["chains"]
    # 400 draws of scale 0.5: the deviation is known to 5 sigma, 5 / sqrt(800) of it.
    deviations = found.posterior["weight"].values.reshape(400, 2).std(0)
    np.testing.assert_allclose(deviations, 0.5, rtol=5 / math.sqrt(800))
    samples = {k: torch.tensor(v.values[0]) for k, v in found.posterior.items()}
    pointwise, _ = looped(binary, samples, *data())
    np.testing.assert_allclose(found.log_likelihood["obs"][0], pointwise, atol=1e-5)


# The other ArviZ ------------------------------------------------------------------------------


def test_without_arviz(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match=r"pip install 'pyro-opu\[arviz\]'"):
        to_inference_data(two_chains())


# Failures -------------------------------------------------------------------------------------


def test_bad_runs() -> None:
    before = MCMC(NUTS(binary), 5, 5)
    with pytest.raises(ValueError, match="`run` must have sampled; got an MCMC before"):
        to_inference_data(before)
    with pytest.raises(TypeError, match="`run` must be a pyro.infer.MCMC .*; got int"):
        chains_of(3)  # type: ignore[arg-type]
    run = Predictive(binary, {"weight": torch.zeros(6, 2, 1), "bias": torch.zeros(6, 1)})
    with pytest.raises(ValueError, match="does not know the data.*to_inference_data"):
        to_inference_data(run)
    for chains in (0, 4, True):
        with pytest.raises(ValueError, match=f"`num_chains` must be a positive .*; got {chains}"):
            chains_of(run, chains)
    unlike = Predictive(binary, {"v": torch.zeros(6), "w": torch.zeros(4)})
    with pytest.raises(ValueError, match="must hold as many draws of every site"):
        chains_of(unlike)
    with pytest.raises(ValueError, match="must hold posterior samples"):
        to_inference_data(Predictive(binary, num_samples=10), *data())
    guide = AutoNormal(poutine.block(binary, hide=["obs"]))
    with pytest.raises(TypeError, match="got a WeighedPredictive"):
        to_inference_data(WeighedPredictive(binary, guide=guide, num_samples=4), *data())


def test_models_that_cannot_be_evaluated() -> None:
    run = Predictive(binary, {"weight": torch.zeros(6, 2, 1)})
    with pytest.raises(ValueError, match=r"draws of every latent site; its model has \['bias'\]"):
        to_inference_data(run, *data())
    run = Predictive(binary, two_chains().get_samples())
    with pytest.raises(ValueError, match=r"its model has \['obs'\] besides. Pass the labels"):
        to_inference_data(run, data()[0])

    def subsampled(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(x), subsample_size=7) as rows:
            pyro.sample("obs", dist.Bernoulli(logits=x[rows] @ w), obs=y[rows])

    run = Predictive(subsampled, {"w": torch.zeros(6, 2)})
    with pytest.raises(ValueError, match="its plate 'data' draws 7 of 30 at random"):
        to_inference_data(run, *data())
    found = to_inference_data(run, *data(), log_likelihood=False, posterior_predictive=False)
    assert groups(found) == {"posterior"}
