"""Covariates with an ``obs_mask``: missing values are drawn, as ``Predictive`` draws them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from torch import Tensor

from pyro_opu import as_teacher, batched, distill

S, SLOPE = 2000, 3.0
KNOWN = torch.tensor([True, False, False, True, False])
VALUES = torch.tensor([0.5, 0.0, 0.0, -1.0, 0.0])  # the filler is 0
X = {"c": VALUES, "known": KNOWN}


def slopes(draws: int = S) -> dict[str, Tensor]:
    return {"b": torch.full((draws,), SLOPE)}


def normal(c: Tensor, known: Tensor, y: Tensor | None = None) -> None:
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(c)):
        full = pyro.sample("full", dist.Normal(0.0, 1.0), obs=c, obs_mask=known)
        pyro.sample("y", dist.Bernoulli(logits=1.0 + b * full), obs=y)


def masked_outcome(c: Tensor, known: Tensor, y: Tensor | None = None) -> None:
    """Labels of other rows with a mask of theirs, beside."""
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    labels, mask = torch.zeros(50), torch.arange(50) % 2 == 0
    with pyro.plate("data", len(c)):
        full = pyro.sample("full", dist.Normal(0.0, 1.0), obs=c, obs_mask=known)
        pyro.sample("y", dist.Bernoulli(logits=1.0 + b * full), obs=labels, obs_mask=mask)


def vector(c: Tensor, known: Tensor, y: Tensor | None = None) -> None:
    """Two numbers, of which the second is always drawn."""
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(c)):
        pair = dist.Normal(torch.zeros(2), 1.0).to_event(1)
        full = pyro.sample("full", pair, obs=torch.stack([c, c], -1), obs_mask=known)
        pyro.sample("y", dist.Bernoulli(logits=1.0 + b * full[:, 0]), obs=y)


def upstream(c: Tensor, known: Tensor, y: Tensor | None = None) -> None:
    """What follows a missing value is missing with it."""
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(c)):
        full = pyro.sample("full", dist.Normal(0.0, 1.0), obs=c, obs_mask=known)
        twice = pyro.deterministic("twice", 2 * full, event_dim=0)
        pyro.sample("y", dist.Bernoulli(logits=1.0 + b * twice / 2), obs=y)


def expected() -> Tensor:
    """P(y = 1), by quadrature where the covariate is missing."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    drawn = torch.sigmoid(1.0 + SLOPE * torch.as_tensor(nodes))
    mean = float((drawn * torch.as_tensor(weights)).sum() / weights.sum())
    return torch.where(KNOWN, torch.sigmoid(1.0 + SLOPE * VALUES), torch.tensor(mean))


MODELS = {each.__name__: each for each in (normal, masked_outcome, vector, upstream)}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_missing_number_is_drawn(model: Callable[..., None]) -> None:
    found = as_teacher(Predictive(model, slopes())).probs(X)[..., 1]
    mean, spread = found.mean(0), found.std(0)
    torch.testing.assert_close(spread[KNOWN], torch.zeros(2), rtol=0, atol=1e-6)
    assert (spread[~KNOWN] > 0.2).all()
    error = 5 * spread / S**0.5 + 1e-5  # beyond once in a million numbers
    assert ((mean - expected()).abs() <= error).all()


def test_as_batched_and_predictive_say() -> None:
    predictive = Predictive(normal, slopes(), return_sites=["y"])
    taught = as_teacher(predictive).probs(X)[..., 1].mean(0)
    for answer in (predictive(**X), batched(predictive)(**X)):
        assert ((answer["y"].mean(0) - taught).abs() <= 5 * (0.5 / S**0.5)).all()


def smoker(c: Tensor, known: Tensor, y: Tensor | None = None) -> None:
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(c)):
        full = pyro.sample("full", dist.Bernoulli(0.3), obs=c, obs_mask=known)
        pyro.sample("y", dist.Bernoulli(logits=1.0 - b * full), obs=y)


def graded(c: Tensor, known: Tensor, y: Tensor | None = None) -> None:
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(c)):
        fn = dist.Categorical(torch.tensor([0.7, 0.3]))
        full = pyro.sample("full", fn, obs=c.long(), obs_mask=known)
        pyro.sample(
            "y", dist.Categorical(logits=torch.stack([0 * full, 1.0 - b * full], -1)), obs=y
        )


@pytest.mark.parametrize("model", [smoker, graded])
@pytest.mark.parametrize("order", [[0, 3, 1], [1, 2, 0], [0, 1, 3]])
def test_a_missing_class_is_summed_out(model: Callable[..., None], order: list[int]) -> None:
    """Whichever rows the model is looked at by."""
    rows = {"c": torch.tensor([1.0, 0.0, 0.0, 0.0])[order], "known": KNOWN[:4][order]}
    found = as_teacher(Predictive(model, slopes(3))).probs(rows)[..., 1]
    yes, no = torch.sigmoid(torch.tensor([1.0 - SLOPE, 1.0]))
    right = torch.stack([yes, 0.3 * yes + 0.7 * no, 0.3 * yes + 0.7 * no, no])[order]
    torch.testing.assert_close(found, right.expand(3, 3))


def test_of_a_real_y() -> None:
    def model(c: Tensor, known: Tensor, y: Tensor | None = None) -> None:
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(c)):
            full = pyro.sample("full", dist.Normal(2.0, 1.0), obs=c, obs_mask=known)
            pyro.sample("y", dist.Normal(b * full, 0.5), obs=y)

    predictive = Predictive(model, slopes(), return_sites=["y"])
    found = as_teacher(predictive, "y").draws(X)
    loc = torch.where(KNOWN, SLOPE * VALUES, torch.tensor(2.0 * SLOPE))
    assert ((found[..., 0].mean(0) - loc).abs() <= 5 * SLOPE / S**0.5).all()
    assert ((found[..., 0].std(0)[~KNOWN] - SLOPE).abs() <= 5 * SLOPE / (2 * S) ** 0.5).all()


def test_those_of_the_training_rows_in_the_posterior_are_drawn_anew() -> None:
    samples = slopes() | {"full_unobserved": torch.full((S, 40), 7.0)}
    teacher = as_teacher(Predictive(normal, samples))
    with pytest.warns(UserWarning, match=r"\['full_unobserved'\] are latents of the rows"):
        found = teacher.probs(X)[..., 1].mean(0)
    assert ((found - expected()).abs() <= 5 * 0.4 / S**0.5 + 1e-5).all()


def test_a_mask_of_other_rows_is_refused() -> None:
    def model(c: Tensor, y: Tensor | None = None) -> None:
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(c)):
            full = pyro.sample("full", dist.Normal(0.0, 1.0), obs=c, obs_mask=torch.arange(40) > 3)
            pyro.sample("y", dist.Bernoulli(logits=b * full), obs=y)

    with pytest.raises(ValueError, match="Nothing in it may have the size of the training rows"):
        as_teacher(Predictive(model, slopes(5))).probs(VALUES)


def test_a_student_of_it() -> None:
    kwargs: dict[str, Any] = {"num_steps": 4, "progress": False, "seed": 0}
    rows = {name: value.repeat(12) for name, value in X.items()}
    fast = distill(Predictive(normal, slopes(20), return_sites=["y"]), rows, **kwargs)
    assert fast(**X)["y"].shape == (20, 5)
