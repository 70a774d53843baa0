"""Latents that the posterior lacks: noise of the rows is summed out, all others are named."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

import pyro_opu
from pyro_opu.teachers import as_teacher
from pyro_opu.teachers.finished import finished_teacher

S, N = 40, 9
generator = torch.Generator().manual_seed(0)
X = torch.randn(N, 1, generator=generator)
W = 1 + 0.1 * torch.randn(S, generator=generator)
SLOPES = W[:, None] * X[:, 0]
#: Nodes of a fine grid of a standard normal, and their weights.
GRID = torch.linspace(-8, 8, 4001)
WEIGHTS = torch.softmax(-(GRID**2) / 2, 0)


def weight() -> Tensor:
    return pyro.sample("w", dist.Normal(0.0, 1.0))


def over_grid(probability: Callable[[Tensor], Tensor]) -> Tensor:
    """The mean ``(S, N)`` over a standard normal of a function of it, ``(S, N, 1)`` given."""
    return (probability(GRID) * WEIGHTS).sum(-1)


def labels(fn: dist.Distribution, apply: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Any:
    """A label whose logit depends on w, x and a latent of the row."""

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = weight()
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", fn)
            pyro.sample("obs", dist.Bernoulli(logits=apply(w, x[:, 0], z)), obs=y)

    return model


def by_event(x: Tensor) -> None:
    """Noise with a scale of every row, without a plate."""
    z = pyro.sample("z", dist.Normal(torch.zeros(len(x)), (x[:, 0] / 2).exp()).to_event(1))
    pyro.sample("obs", dist.Bernoulli(logits=weight() * x[:, 0] + z).to_event(1))


def with_mean(x: Tensor) -> None:
    """A latent response: its mean is that of the regression, its scale the same at all rows."""
    w = weight()
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Normal(w * x[:, 0], torch.full((len(x),), 2.0)))
        pyro.sample("obs", dist.Bernoulli(logits=z))


def with_classes(x: Tensor) -> None:
    """A normal beside a class of the row."""
    w = weight()
    with pyro.plate("data", len(x)):
        k = pyro.sample("k", dist.Bernoulli(0.25))
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("obs", dist.Bernoulli(logits=w * x[:, 0] + z + k))


def vectors(x: Tensor) -> None:
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Normal(torch.zeros(2), torch.tensor([0.6, 0.8])).to_event(1))
        pyro.sample("obs", dist.Bernoulli(logits=weight() * x[:, 0] + z.sum(-1)))


def plain(scale: float | Tensor) -> Tensor:
    return over_grid(lambda z: (SLOPES[..., None] + scale * z).sigmoid())


NOISY: dict[str, tuple[Any, Callable[[], Tensor]]] = {
    "a logit": (labels(dist.Normal(0.0, 2.0), lambda w, x, z: w * x + z), lambda: plain(2.0)),
    "a factor": (
        labels(dist.LogNormal(0.0, 0.5), lambda w, x, z: w * x * z),
        lambda: over_grid(lambda z: (SLOPES[..., None] * (0.5 * z).exp()).sigmoid()),
    ),
    "a scale of the row": (by_event, lambda: plain((X / 2).exp())),
    "a latent response": (with_mean, lambda: plain(2.0)),
    "beside a class": (
        with_classes,
        lambda: (
            0.75 * plain(1.0) + 0.25 * over_grid(lambda z: (1 + SLOPES[..., None] + z).sigmoid())
        ),
    ),
    "two numbers": (vectors, lambda: plain(1.0)),
}


@pytest.mark.parametrize("name", NOISY)
def test_noise_of_the_rows_is_summed_out(name: str) -> None:
    model, expected = NOISY[name]
    teacher = as_teacher(Predictive(model, {"w": W}), "obs")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = teacher.probs(X)[..., 1]
    torch.testing.assert_close(found, expected(), rtol=0, atol=2e-5)
    assert set(teacher.latents.values()) == {"summed out"}


def below(t: Tensor) -> Tensor:
    return torch.special.ndtr(t)


def utility(x: Tensor) -> None:
    """A label of whether a latent response is positive."""
    w = weight()
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Normal(w * x[:, 0], torch.full((len(x),), 2.0)))
        pyro.sample("obs", dist.Bernoulli((z > 0).float()))


def threshold(x: Tensor) -> None:
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("obs", dist.Bernoulli(torch.where(weight() * x[:, 0] + z > 0.3, 0.9, 0.1)))


def levels(x: Tensor) -> None:
    """The upper of three ordered levels of a latent response, with a class of the row."""
    w = weight()
    with pyro.plate("data", len(x)):
        k = pyro.sample("k", dist.Bernoulli(0.25))
        z = pyro.sample("z", dist.Normal(w * x[:, 0] + k, torch.ones(len(x))))
        level = (z > -1).long() + (z > 1).long()
        pyro.sample("obs", dist.Bernoulli((level == 2).float()))


STEPS: dict[str, tuple[Any, Callable[[], Tensor], float]] = {
    "a latent utility": (utility, lambda: below(SLOPES / 2), 0.011),
    "a threshold": (threshold, lambda: 0.1 + 0.8 * below(SLOPES - 0.3), 0.009),
    "levels": (levels, lambda: 0.75 * below(SLOPES - 1) + 0.25 * below(SLOPES), 0.022),
}


@pytest.mark.filterwarnings("ignore:the latents")
@pytest.mark.parametrize("name", STEPS)
def test_steps_are_summed_by_equal_parts(name: str) -> None:
    """Of Q equal parts a threshold cuts one: half of 1 / Q, where Gauss and Hermite err by .1."""
    model, expected, most = STEPS[name]
    found = as_teacher(Predictive(model, {"w": W}), "obs").probs(X)[..., 1]
    torch.testing.assert_close(found, expected(), rtol=0, atol=most)


def test_the_error_of_a_quadrature_is_told() -> None:
    with pytest.warns(UserWarning, match=r"\['z'\] of the rows are summed out by a quadrature"):
        as_teacher(Predictive(utility, {"w": W}), "obs").probs(X)


@pytest.mark.filterwarnings("ignore:the posterior lacks")
@pytest.mark.parametrize("fn", [dist.Normal(0.0, 1.0), dist.LogNormal(0.0, 0.5)])
@pytest.mark.parametrize("seed", range(4))
def test_a_latent_that_acts_in_steps_is_found(seed: int, fn: Any) -> None:
    """Whatever values it is drawn at: most are on one side of the threshold."""

    def model(x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", fn)
            pyro.sample("obs", dist.Bernoulli((weight() * x[:, 0] + z > 2).float()))

    pyro.set_rng_seed(seed)
    teacher = as_teacher(Predictive(model, {"w": W}), "obs")
    teacher.prepare(torch.zeros(3, 1))
    assert set(teacher.latents) == {"z"}


@pytest.mark.filterwarnings("ignore:the latents")
def test_a_real_y_in_steps_keeps_its_variance() -> None:
    def model(x: Tensor) -> None:
        w = weight()
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(w * x[:, 0], torch.ones(len(x))))
            pyro.sample("obs", dist.Normal(3 * (z > 0).float(), 0.5))

    teacher = finished_teacher(Predictive(model, {"w": W}), X)
    mean, log_scale = teacher.draws(X).unbind(-1)
    p = below(SLOPES)
    torch.testing.assert_close(mean, 3 * p, rtol=0, atol=0.035)
    torch.testing.assert_close((2 * log_scale).exp(), 0.25 + 9 * p * (1 - p), rtol=0, atol=0.1)


def test_a_steep_logit_is_summed_by_the_better_rule() -> None:
    teacher = as_teacher(
        Predictive(labels(dist.Normal(0.0, 8.0), lambda w, x, z: w * x + z), {"w": W})
    )
    torch.testing.assert_close(teacher.probs(X)[..., 1], plain(8.0), rtol=0, atol=4e-3)


def test_the_spread_of_noise_is_aleatoric() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = weight()
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("obs", dist.Normal(w * x[:, 0] + z, 0.1), obs=y)

    teacher = finished_teacher(Predictive(model, {"w": W}), X)
    mean, log_scale = teacher.draws(X).unbind(-1)
    torch.testing.assert_close(mean, SLOPES)
    torch.testing.assert_close((2 * log_scale).exp(), torch.full((S, N), 1.01))


@pytest.mark.parametrize(
    "fn",
    [dist.Categorical(torch.tensor([0.5, 0.5])), dist.Normal(0.0, 10.0), dist.Gamma(2.0, 2.0)],
    ids=lambda fn: type(fn).__name__,
)
def test_a_latent_that_all_rows_share_is_named(fn: Any) -> None:
    """It is drawn for every draw, and the same at all rows."""

    def model(x: Tensor, y: Tensor | None = None) -> None:
        pyro.sample("apart", dist.Normal(0.0, 1.0))  # on which nothing depends
        w, z = weight(), pyro.sample("z", fn)
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Bernoulli(logits=w * x[:, 0] + z), obs=y)

    teacher = as_teacher(Predictive(model, {"w": W}))
    with pytest.warns(UserWarning, match="lacks the latent") as caught:
        no, yes = teacher.log_probs(X).unbind(-1)
    found = yes - no - SLOPES
    assert [str(each.message).split("'")[1] for each in caught] == ["z"]
    assert teacher.latents == {"z": "shared by all rows, drawn anew"}
    torch.testing.assert_close(found, found[:, :1].expand(S, N), rtol=1e-3, atol=1e-3)
    assert float(found[:, 0].std()) > 0.1


def test_a_guide_without_a_latent_is_named_too() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        b, w = pyro.sample("b", dist.Normal(0.0, 5.0)), weight()
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Bernoulli(logits=w * x[:, 0] + b), obs=y)

    guide = AutoNormal(poutine.block(model, expose=["w"]))
    guide(X)
    with pytest.warns(UserWarning, match="lacks the latent 'b', which all rows share"):
        as_teacher(Predictive(model, guide=guide, num_samples=5)).probs(X)


def process(x: Tensor, **infer: bool) -> None:
    """Mean and scale differ between the inputs, as those of a function that has been learnt."""
    w = weight()
    with pyro.plate("data", len(x)):
        f = pyro.sample("f", dist.Normal(w * x[:, 0], 0.1 + x[:, 0].abs()), infer=infer)
        pyro.sample("obs", dist.Bernoulli(logits=f))


def test_the_value_of_a_process_is_drawn_and_named() -> None:
    teacher = as_teacher(Predictive(process, {"w": W}))
    with pytest.warns(UserWarning, match="lacks the latent 'f', of which each row has one"):
        found = teacher.probs(X)[..., 1].logit() - SLOPES
    assert teacher.latents == {"f": "one per row, drawn anew"}
    # The deviation of 9 x 40 standard normals is within 0.2 of 1 but for one time in 10,000.
    assert abs(float((found / (0.1 + X[:, 0].abs())).std()) - 1) < 0.2


def test_alike_rows_do_not_tell_noise_from_a_process() -> None:
    teacher = as_teacher(Predictive(process, {"w": W}))
    with pytest.warns(UserWarning, match="lacks the latent 'f'"):
        teacher.probs(X[:1])


@pytest.mark.parametrize("meant", [True, False])
def test_the_model_may_say_what_a_latent_is(meant: bool) -> None:
    model = lambda x: process(x, epistemic=meant)  # noqa: E731
    teacher = as_teacher(Predictive(model, {"w": W}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = teacher.probs(X)[..., 1]
    if meant:
        assert teacher.latents == {"f": "one per row, drawn anew"}
        return
    expected = plain(0.1 + X.abs())
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


def test_values_of_several_rows_together_are_drawn_without_a_warning() -> None:
    def model(x: Tensor) -> None:
        covariance = torch.exp(-((x - x.T) ** 2)) + 1e-3 * torch.eye(len(x))
        f = pyro.sample("f", dist.MultivariateNormal(weight() * x[:, 0], covariance))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Bernoulli(logits=f))

    teacher = as_teacher(Predictive(model, {"w": W}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = teacher.probs(X)[..., 1].logit() - SLOPES
    assert 0.5 < float(found.std()) < 1.5 and "f" in teacher.latents


def test_many_numbers_of_a_row_are_drawn_with_a_warning() -> None:
    def model(x: Tensor) -> None:
        w = weight()
        with pyro.plate("data", len(x)):
            k = pyro.sample("k", dist.Bernoulli(0.5))
            z = pyro.sample("z", dist.Normal(torch.zeros(8), 1.0).to_event(1))
            pyro.sample("obs", dist.Bernoulli(logits=w * x[:, 0] + z.sum(-1) + k))

    teacher = as_teacher(Predictive(model, {"w": W}))
    with pytest.warns(UserWarning, match=r"\['z'\].* take 131,072 values together, more than"):
        teacher.probs(X)
    assert teacher.latents == {"k": "summed out", "z": "one per row, drawn anew"}


def test_the_report_names_them() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        b, w = pyro.sample("b", dist.Normal(0.0, 1.0)), weight()
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("obs", dist.Bernoulli(logits=w * x[:, 0] + b + z), obs=y)

    predictive = Predictive(model, {"w": W}, return_sites=["obs"])
    with pytest.warns(UserWarning, match="lacks the latent 'b'"):
        fast = pyro_opu.distill(predictive, torch.randn(40, 1), num_steps=2, seed=0, progress=False)
    assert fast.report["latents"] == {"b": "shared by all rows, drawn anew", "z": "summed out"}
    assert "latents   b shared by all rows, drawn anew; z summed out" in str(fast.report)
