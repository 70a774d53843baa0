"""Discrete latents of each row: the same epistemic part whether they are sampled or summed out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive, config_enumerate
from torch import Tensor

import pyro_opu
from pyro_opu import as_teacher
from pyro_opu.programs import enumerated

S, N, D, C = 60, 12, 2, 3
generator = torch.Generator().manual_seed(0)
X = torch.randn(N, D, generator=generator)
W = torch.randn(S, D, generator=generator)
EXPERTS = torch.randn(S, C, D, generator=generator)
FLIP = torch.tensor([0.1, 0.3])  # probability that a label is reported wrong, by class
POSTERIOR = {"w": W, "experts": EXPERTS}


def weights() -> tuple[Tensor, Tensor]:
    w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
    return w, pyro.sample("experts", dist.Normal(torch.zeros(C, D), 1.0).to_event(2))


def flipped(x: Tensor, y: Tensor | None = None) -> None:
    w, _ = weights()
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Bernoulli(logits=x @ w))
        pyro.sample("obs", dist.Bernoulli(z + FLIP[z.long()] * (1 - 2 * z)), obs=y)


def flipped_summed_out(x: Tensor, y: Tensor | None = None) -> None:
    w, _ = weights()
    p = torch.sigmoid(x @ w)
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Bernoulli(p * (1 - FLIP[1]) + (1 - p) * FLIP[0]), obs=y)


def experts(x: Tensor, y: Tensor | None = None) -> None:
    w, own = weights()
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Categorical(logits=x @ own.T), infer={"enumerate": "parallel"})
        pyro.sample("obs", dist.Bernoulli(logits=(x * own[z]).sum(-1)), obs=y)


def experts_summed_out(x: Tensor, y: Tensor | None = None) -> None:
    w, own = weights()
    logits = x @ own.T
    p = (logits.softmax(-1) * logits.sigmoid()).sum(-1)
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Bernoulli(p), obs=y)


def chained(x: Tensor, y: Tensor | None = None) -> None:
    """A latent that another depends on, and the answer only through that one."""
    w, _ = weights()
    with pyro.plate("data", len(x)):
        first = pyro.sample("first", dist.Bernoulli(logits=x @ w))
        pyro.sample("apart", dist.Bernoulli(0.5))
        z = pyro.sample("z", dist.Bernoulli(FLIP[first.long()]))
        pyro.sample("obs", dist.Categorical(torch.stack([0.8 - 0.5 * z, 0.2 + 0.5 * z], -1)), obs=y)


def chained_summed_out(x: Tensor, y: Tensor | None = None) -> None:
    w, _ = weights()
    p = torch.sigmoid(x @ w)
    z = p * FLIP[1] + (1 - p) * FLIP[0]
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Categorical(torch.stack([0.8 - 0.5 * z, 0.2 + 0.5 * z], -1)), obs=y)


def in_events(x: Tensor, y: Tensor | None = None) -> None:
    """Without a plate, and one-hot."""
    _, own = weights()
    z = pyro.sample("z", dist.OneHotCategorical(logits=x @ own.T).to_event(1))
    pyro.sample("obs", dist.Bernoulli(logits=(z * (x @ own.T)).sum(-1)).to_event(1), obs=y)


def counts(teacher: Any) -> dict[str, int]:
    """Values over which latents are summed."""
    return {name: values.count for name, values in teacher._mixture.latents.items()}


PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "noisy labels": (flipped, flipped_summed_out),
    "mixture of experts": (experts, experts_summed_out),
    "a chain": (chained, chained_summed_out),
    "one-hot in events": (in_events, experts_summed_out),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_the_same_epistemic_part_with_the_latent_sampled_and_summed_out(pair: Any) -> None:
    sampled, by_hand = (as_teacher(Predictive(each, POSTERIOR), "obs") for each in pair)
    torch.testing.assert_close(sampled.probs(X), by_hand.probs(X))
    measures = [pyro_opu.uncertainty(each.probs(X)) for each in (sampled, by_hand)]
    torch.testing.assert_close(measures[0].epistemic, measures[1].epistemic)
    torch.testing.assert_close(sampled.probs(X[:1], 7).sum(-1), torch.ones(7, 1))


def test_it_differs_from_that_of_sampled_latents() -> None:
    """Else the test above would hold without any sum."""
    teacher = as_teacher(Predictive(flipped, POSTERIOR))
    teacher.probs(X)
    assert counts(teacher) == {"z": 2}
    summed = pyro_opu.uncertainty(teacher.probs(X)).epistemic.mean()
    teacher._mixture = enumerated.Mixture()
    sampled = pyro_opu.uncertainty(teacher.probs(X)).epistemic.mean()
    assert sampled > 1.5 * summed


def test_only_latents_on_which_the_answer_depends_are_summed_out() -> None:
    teacher = as_teacher(Predictive(chained, POSTERIOR), "obs")
    teacher.probs(X)
    assert counts(teacher) == {"first": 2, "z": 2}


def test_a_mixture_of_normals_has_its_moments() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        _, own = weights()
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Categorical(logits=x @ own.T))
            pyro.sample("obs", dist.Normal((x * own[z]).sum(-1), 0.5 + z), obs=y)

    mean, log_scale = as_teacher(Predictive(model, POSTERIOR)).draws(X).unbind(-1)
    means = torch.einsum("nd,scd->snc", X, EXPERTS)
    parts = dist.MixtureSameFamily(
        dist.Categorical(logits=means), dist.Normal(means, 0.5 + torch.arange(C))
    )
    torch.testing.assert_close(mean, parts.mean)
    torch.testing.assert_close((2 * log_scale).exp(), parts.variance)


def test_many_values_are_drawn_with_a_warning() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        weights()
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Categorical(torch.ones(enumerated.MOST_VALUES + 1)))
            pyro.sample("obs", dist.Bernoulli(z / 100), obs=y)

    with pytest.warns(UserWarning, match=r"latents \['z'\].* take 65 values.*count as epistemic"):
        as_teacher(Predictive(model, POSTERIOR)).probs(X)


def test_a_student_of_noisy_labels_answers() -> None:
    predictive = Predictive(flipped, {"w": 0.1 * W}, return_sites=["obs"])
    fast = pyro_opu.distill(predictive, X, num_steps=20, progress=False, seed=0)
    assert fast(X)["obs"].shape == (S, N)


def test_the_latent_is_not_proposed_as_the_site() -> None:
    """One of normals behind a label, two labels, and one that ``return_sites`` names."""

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w, own = weights()
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Bernoulli(logits=x @ w))
            pyro.sample("score", dist.Normal(z, 1.0), obs=y)
            pyro.sample("label", dist.Categorical(logits=x @ own.T), obs=y)
            pyro.sample("other", dist.Bernoulli(0.1 + 0.5 * z), obs=y)

    every = (
        r"is score \(real\), label \(classes\), other \(classes\)\. .* name one site, as_teacher"
    )
    with pytest.raises(TypeError, match=every):
        as_teacher(Predictive(model, POSTERIOR)).probs(X)
    both = as_teacher(Predictive(model, POSTERIOR, return_sites=["other", "score"]))
    assert both.draws(X).shape == (S, N, 4) and both.observed == ("score", "other")
    named = as_teacher(Predictive(model, POSTERIOR, return_sites=["z", "other"]))
    assert named.probs(X).shape == (S, N, 2) and named.observed == ("other",)
    p = torch.sigmoid(X @ W.T).T
    torch.testing.assert_close(named.probs(X)[..., 1], 0.1 + 0.5 * p)


def test_an_observed_site_may_be_marked_for_enumeration() -> None:
    marked = config_enumerate(flipped)
    found = as_teacher(Predictive(marked, {"w": W, "experts": EXPERTS}))
    expected = as_teacher(Predictive(flipped_summed_out, {"w": W, "experts": EXPERTS}))
    assert torch.allclose(found.probs(X), expected.probs(X), atol=1e-6)  # rounding
