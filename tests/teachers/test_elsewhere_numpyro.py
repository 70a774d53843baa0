"""NumPyro's ``Predictive`` as a teacher."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch

from pyro_opu import as_teacher, distill
from pyro_opu.teachers import NumpyroTeacher

if importlib.util.find_spec("numpyro") is None:
    pytest.skip("NumPyro is not installed", allow_module_level=True)

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import Predictive

pytestmark = pytest.mark.usefixtures("brief")

S, D, C = 30, 3, 4
RANDOM = np.random.default_rng(0)
W, B = (RANDOM.normal(size=shape).astype("f4") for shape in ((S, D, C), (S, C)))
SAMPLES = {"w": jnp.asarray(W), "b": jnp.asarray(B)}
X = torch.randn(50, D, generator=torch.Generator().manual_seed(0))
#: Products in float32.
ROUNDING = {"rtol": 1e-4, "atol": 1e-5}
LOGITS = torch.einsum("nd,sdc->snc", X, torch.as_tensor(W)) + torch.as_tensor(B)[:, None]


def linear(x: Any) -> Any:
    w = numpyro.sample("w", dist.Normal(jnp.zeros((D, C)), 1.0).to_event(2))
    return x @ w + numpyro.sample("b", dist.Normal(jnp.zeros(C), 1.0).to_event(1))


def categorical(x: Any, y: Any = None) -> None:
    logits = numpyro.deterministic("logits", linear(x))
    with numpyro.plate("data", len(x)):
        numpyro.sample("obs", dist.Categorical(logits=logits), obs=y)


def by_event(x: Any, y: Any) -> None:
    """Labels without a default; probabilities; a mask."""
    probs = jax.nn.softmax(linear(x))
    fn = dist.Categorical(probs=probs).mask(jnp.ones(len(x), bool)).to_event(1)
    numpyro.sample("obs", fn, obs=y)


def binary(x: Any, y: Any = None) -> None:
    numpyro.sample("other", dist.Gamma(1.0, 1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("obs", dist.Bernoulli(logits=linear(x)[:, 0]), obs=y)


def line(x: Any, y: Any = None) -> None:
    mean = linear(x)[:, 0]
    with numpyro.plate("data", len(x)):
        numpyro.sample("obs", dist.Normal(mean, 0.5), obs=y)


@pytest.mark.parametrize("model", [categorical, by_event])
def test_class_probabilities_are_read_not_sampled(model: Any) -> None:
    teacher = as_teacher(Predictive(model, SAMPLES))
    assert isinstance(teacher, NumpyroTeacher)
    torch.testing.assert_close(teacher.log_probs(X), LOGITS.log_softmax(-1), **ROUNDING)
    assert teacher.max_draws == S and teacher.num_classes == C and teacher.of_chains
    assert teacher.probs(X[:1], 4).shape == (4, 1, C) and model.__name__ in repr(teacher)
    grouped = {name: value.reshape(3, 10, *value.shape[1:]) for name, value in SAMPLES.items()}
    chains = as_teacher(Predictive(model, grouped, batch_ndims=2))
    torch.testing.assert_close(chains.probs(X), teacher.probs(X))


def test_two_classes_keep_their_digits() -> None:
    teacher = as_teacher(Predictive(binary, SAMPLES))
    far = 30 * X
    logit = torch.einsum("nd,sd->sn", far, torch.as_tensor(W[..., 0])) + torch.as_tensor(B[:, :1])
    expected = torch.nn.functional.logsigmoid(torch.stack([-logit, logit], -1))
    torch.testing.assert_close(teacher.log_probs(far), expected, rtol=1e-4, atol=1e-4)
    assert float(expected.min()) < -90  # beyond float32 probabilities


def test_a_real_y() -> None:
    predictive = Predictive(line, SAMPLES)
    draws = as_teacher(predictive).draws(X)
    torch.testing.assert_close(draws[..., 0], LOGITS[..., 0], **ROUNDING)
    assert bool((draws[..., 1].exp() - 0.5).abs().max() < 1e-5)
    with pytest.raises(TypeError, match="outcome is a real y"):
        as_teacher(predictive).probs(X)
    fast = distill(predictive, X, num_steps=5, seed=0, progress=False)
    assert fast.uncertainty(X).epistemic.shape == (50,)
    assert isinstance(as_teacher(predictive), NumpyroTeacher)


@pytest.mark.slow
def test_a_student_and_several_inputs() -> None:
    offsets = jnp.asarray(RANDOM.normal(size=(S, 5)).astype("f4"))

    def grouped(x: Any, group: Any, y: Any = None) -> None:
        a = numpyro.sample("a", dist.Normal(jnp.zeros(5), 1.0).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("obs", dist.Bernoulli(logits=linear(x)[:, 0] + a[group]), obs=y)

    group = torch.arange(50) % 5
    predictive = Predictive(grouped, {**SAMPLES, "a": offsets})
    fast = distill(predictive, (X, group), num_steps=5, seed=0, progress=False)
    assert fast(X[:4], group[:4])["obs"].shape == (S, 4)
    logit = LOGITS[..., 0] + torch.tensor(np.asarray(offsets))[:, group]
    found = as_teacher(predictive).probs((X, group))[..., 1]
    torch.testing.assert_close(found, logit.sigmoid(), **ROUNDING)
    picked = as_teacher(
        Predictive(lambda n, x, y=None: categorical(x, y), SAMPLES), inputs=lambda n, x: x
    )
    torch.testing.assert_close(picked.probs(X), LOGITS.softmax(-1), **ROUNDING)


def test_refused() -> None:
    with pytest.raises(ValueError, match="sample_posterior"):
        as_teacher(Predictive(categorical, num_samples=5))
    with pytest.raises(ValueError, match="`site` must name .*'obs': 'Poisson'"):
        as_teacher(
            Predictive(
                lambda x: numpyro.sample("obs", dist.Poisson(jnp.exp(linear(x)[:, 0]))), SAMPLES
            )
        ).probs(X)

    def two(x: Any) -> None:
        logits = linear(x)
        for name in ("c", "d"):
            numpyro.sample(name, dist.Categorical(logits=logits))

    with pytest.raises(ValueError, match="`site` must name the observed site"):
        distill(Predictive(two, {"w": SAMPLES["w"], "b": SAMPLES["b"]}), X, progress=False)

    def several(x: Any) -> None:
        numpyro.sample("obs", dist.Bernoulli(logits=linear(x)).to_event(1))

    with pytest.raises(ValueError, match=r"one outcome per input; got batch shape \(50, 4\)"):
        as_teacher(Predictive(several, SAMPLES)).probs(X)
    chosen = as_teacher(Predictive(categorical, SAMPLES, return_sites=["obs"]), "obs")
    assert chosen.probs(X[:2]).shape == (S, 2, C)


class Flipped(dist.BernoulliLogits):
    """Reported wrong one time in ten."""

    def sample(self, key: Any, sample_shape: Any = ()) -> Any:
        probs = 0.1 + 0.8 * jax.nn.sigmoid(self.logits)
        return jax.random.bernoulli(key, probs, sample_shape + self.batch_shape).astype(int)

    def log_prob(self, value: Any) -> Any:
        return jnp.log(0.1 + 0.8 * jnp.exp(super().log_prob(value)))


class Wide(dist.Normal):
    def sample(self, key: Any, sample_shape: Any = ()) -> Any:
        return 10 * super().sample(key, sample_shape)

    def log_prob(self, value: Any) -> Any:
        return super().log_prob(value / 10)


def observing(of: Any) -> Any:
    def model(x: Any, y: Any = None) -> None:
        logits = linear(x)[:, 0]
        with numpyro.plate("data", len(x)):
            numpyro.sample("obs", of(logits), obs=y)

    return Predictive(model, SAMPLES)


def test_laws_are_read_by_their_own_methods() -> None:
    p = LOGITS[..., 0].sigmoid()
    found = as_teacher(observing(Flipped)).probs(X)[..., 1]
    torch.testing.assert_close(found, 0.1 + 0.8 * p, **ROUNDING)
    draws = as_teacher(observing(lambda z: dist.LogNormal(z / 9, 0.5))).draws(X)
    logs = LOGITS[..., 0] / 9
    torch.testing.assert_close(draws[..., 0], (logs + 0.125).exp(), **ROUNDING)
    variance = (2 * logs + 0.25).exp() * (np.exp(0.25) - 1)
    torch.testing.assert_close((2 * draws[..., 1]).exp(), variance, **ROUNDING)
    for of in (lambda z: Wide(z, 1.0), lambda z: dist.Cauchy(z, 1.0)):
        with pytest.raises(ValueError, match="`site` must name the observed site"):
            as_teacher(observing(of)).draws(X)


@pytest.mark.parametrize("model", [categorical, by_event])
def test_samples_by_chain_are_refused_without_batch_ndims(model: Any) -> None:
    grouped = {name: value.reshape(3, 10, *value.shape[1:]) for name, value in SAMPLES.items()}
    with pytest.raises(ValueError, match="got 3 chains of 10, grouped.*batch_ndims=2"):
        as_teacher(Predictive(model, grouped)).probs(X)


def test_names_are_compared_with_the_model() -> None:
    with pytest.raises(ValueError, match="got 'bias', which the model lacks.*is it 'b'"):
        as_teacher(Predictive(categorical, {"w": SAMPLES["w"], "bias": SAMPLES["b"]})).probs(X)
    more = {**SAMPLES, "noise": jnp.ones(S), "logits": jnp.zeros((S, 7, C))}
    found = as_teacher(Predictive(categorical, more)).probs(X)
    torch.testing.assert_close(found, LOGITS.softmax(-1), **ROUNDING)


def test_latents_that_the_samples_lack_are_named() -> None:
    with pytest.warns(UserWarning, match="lack the latent 'b', which all rows share"):
        teacher = as_teacher(Predictive(categorical, {"w": SAMPLES["w"]}))
        teacher.probs(X)
    assert teacher.latents == {"b": "shared by all rows, drawn anew"}

    def noisy(x: Any) -> None:
        numpyro.sample("apart", dist.Normal())
        logits = linear(x)[:, 0]
        with numpyro.plate("data", len(x)):
            z = numpyro.sample("z", dist.Normal())
            numpyro.sample("obs", dist.Bernoulli(logits=logits + z))

    teacher = as_teacher(Predictive(noisy, SAMPLES), "obs")
    with pytest.warns(UserWarning, match="lack the latent 'z', which each row has one of"):
        teacher.probs(X)
    assert teacher.latents == {"z": "one per row, drawn anew"}
