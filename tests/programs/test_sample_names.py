"""Names and shapes of posterior samples are those of the model's latents, or refused."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from torch import Tensor

from pyro_opu.teachers import as_teacher

S, N, D = 6, 5, 2
W = torch.randn(S, D, generator=torch.Generator().manual_seed(0))
B = torch.linspace(-1, 1, S)
X = torch.randn(N, D, generator=torch.Generator().manual_seed(1))
EXPECTED = (W @ X.T + B[:, None]).sigmoid()


def model(x: Tensor, y: Tensor | None = None) -> None:
    weight = pyro.sample("weight", dist.Normal(torch.zeros(D), 1.0).to_event(1))
    bias = pyro.sample("bias", dist.Normal(0.0, 1.0))
    if y is not None:
        pyro.sample("noise", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        logits = pyro.deterministic("logits", x @ weight + bias)
        pyro.sample("obs", dist.Bernoulli(logits=logits), obs=y)


def probs(samples: dict[str, Tensor], source: Any = model) -> Tensor:
    return as_teacher(Predictive(source, samples)).probs(X)[..., 1]


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ({"wieght": W, "bias": B}, "weight"),
        ({"model.weight": W, "model.bias": B}, "weight"),
        ({"weight": W, "b": B}, "bias"),
        ({"weight": W, "guide_bias": B}, "bias"),
    ],
)
def test_a_name_that_the_model_lacks_is_refused_with_the_nearest(given: Any, near: str) -> None:
    with pytest.raises(ValueError, match=f"which the model lacks.*is it '{near}'"):
        probs(given)


def test_samples_of_what_only_scores_the_labels_change_nothing() -> None:
    torch.testing.assert_close(probs({"weight": W, "bias": B, "noise": B.exp()}), EXPECTED)


@pytest.mark.parametrize("rows", [N, 2, 11])
def test_deterministic_samples_are_left_out(rows: int) -> None:
    """Also those of the rows that the model was trained on."""
    given = {"weight": W, "bias": B, "logits": torch.zeros(S, rows)}
    torch.testing.assert_close(probs(given), EXPECTED)
    torch.testing.assert_close(
        as_teacher(Predictive(model, given)).probs(X, 3).sum(-1), torch.ones(3, N)
    )


def test_samples_of_observed_sites_are_left_out() -> None:
    labels = torch.ones(11)
    closed = lambda x: model(x, labels)  # noqa: E731
    given = {"weight": W, "bias": B, "noise": B.exp(), "obs": torch.zeros(S, 11)}
    torch.testing.assert_close(probs(given, closed), EXPECTED)


@pytest.mark.parametrize("chains", [2, 3])
def test_draws_by_chain_are_refused(chains: int) -> None:
    grouped = {
        "weight": W.reshape(chains, -1, D),
        "bias": B.reshape(chains, -1),
    }
    with pytest.raises(ValueError, match=rf"got {chains} chains of {S // chains}, grouped"):
        probs(grouped)


def test_draws_by_chain_of_a_number_that_broadcasts_are_refused() -> None:
    """Without a plate, and used by its sum, a grouped latent is no error of the model."""

    def sums(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("obs", dist.Bernoulli(logits=x[:, 0] * w.sum()).to_event(1))

    assert probs({"w": B}, sums).shape == (S, N)
    with pytest.raises(ValueError, match="2 chains of 3, grouped"):
        probs({"w": B.reshape(2, 3)}, sums)


def test_samples_with_an_axis_for_each_plate_are_taken() -> None:
    """As they are for Predictive(parallel=True)."""

    def one(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Bernoulli(logits=x[:, 0] * w))

    torch.testing.assert_close(probs({"w": B[:, None]}, one), probs({"w": B}, one))
