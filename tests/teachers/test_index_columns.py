"""Columns of x that are indices to the model: found before made-up values are asked about."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import pytest
import torch
from flat import distill_flat
from pyro.infer import Predictive
from torch import Tensor

from pyro_opu import as_teacher
from pyro_opu.transfer import HeldOut, Jitter, Shuffle, default_transfer
from pyro_opu.transfer.indices import index_columns

S, GROUPS = 6, 5
SHORT = {"num_steps": 4, "batch_size": 64, "progress": False, "seed": 0}


def rows(*columns: Tensor) -> Tensor:
    return torch.stack(columns, -1)


def data() -> Tensor:
    """A group, a measurement, a count, and a binary column."""
    return rows(
        torch.randint(GROUPS, (80,)).float(),
        torch.randn(80),
        torch.poisson(torch.full((80,), 4.0)),
        torch.randint(2, (80,)).float(),
    )


def by_group(x: Tensor, y: Tensor | None = None) -> Tensor:
    a = pyro.sample("a", dist.Normal(torch.zeros(GROUPS, 3), 1.0).to_event(2))
    w = pyro.sample("w", dist.Normal(torch.zeros(3, 3), 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        logits = a[x[:, 0].long()] + 0.3 * x[:, 1:] @ w
        return pyro.sample("obs", dist.Categorical(logits=logits), obs=y)


def grouped() -> Predictive:
    return Predictive(by_group, {"a": torch.randn(S, GROUPS, 3), "w": torch.randn(S, 3, 3)})


def test_an_index_is_found_and_the_policy_named() -> None:
    x, posterior = data(), grouped()
    state = torch.get_rng_state()
    assert index_columns(as_teacher(posterior).stream, x) == [0]
    with pytest.raises(ValueError, match=r"columns \[0\] as indices.*transfer=HeldOut\(\)"):
        distill_flat(posterior, x, **SHORT)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("policy", [HeldOut(), Shuffle()])
def test_the_policies_that_are_named_ask_about_indices_alone(policy: HeldOut | Shuffle) -> None:
    x, seen = data(), []

    def teacher(x: Tensor) -> Tensor:
        seen.append(x[:, 0])
        torch.manual_seed(0)
        return (torch.randn(S, GROUPS, 3)[:, x[:, 0].long()] + x[:, 1:2]).softmax(-1)

    with torch.random.fork_rng(devices=[]):
        distill_flat(teacher, x, transfer=policy, **SHORT)
    assert set(torch.cat(seen).tolist()) <= set(range(GROUPS))


def test_no_index_that_does_not_exist_is_asked_about() -> None:
    """On a GPU one such question ends the process's use of it."""
    x, seen = data(), []

    def teacher(x: Tensor, num_draws: int) -> Tensor:
        seen.append(x)
        assert x[:, 0].min() >= 0 and x[:, 0].max() < GROUPS
        return (torch.randn(num_draws, GROUPS, 3)[:, x[:, 0].long()]).softmax(-1)

    assert index_columns(as_teacher(teacher).stream, x) == [0] and seen


def linear(x: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(S, x.shape[1], 3, generator=generator) / (1 + x.abs().amax(0)[:, None])


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("counts and binary columns", lambda: data()),
        ("one-hot columns", lambda: torch.eye(7)[torch.randint(7, (60,))]),
        ("pixels", lambda: torch.randint(256, (50, 64)).float()),
        ("large whole numbers", lambda: torch.randint(10_000, (50, 2)).float()),
        ("larger ones", lambda: torch.randint(10**7, (50, 2)).float()),
    ],
)
def test_whole_numbers_that_enter_as_numbers_are_let_through(
    name: str, make: Callable[[], Tensor]
) -> None:
    x = make()
    w = linear(x)
    network = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 20), torch.nn.ReLU())
    width = torch.randn(S, 20, 3)
    for teacher in (
        lambda x: (x @ w).softmax(-1),
        lambda x: (network(x / (1 + x.amax())) @ width).softmax(-1),
        lambda x: torch.full((S, len(x), 3), 1 / 3),  # says the same everywhere
    ):
        assert index_columns(as_teacher(teacher).stream, x) == [], name


def test_tokens_and_images() -> None:
    table = torch.randn(S, 30, 3)

    def tokens(x: Tensor) -> Tensor:
        return table[:, x.long()].sum(2).softmax(-1)

    x = torch.randint(30, (40, 12)).float()
    assert index_columns(as_teacher(tokens).stream, x) == list(range(12))
    images = torch.randint(2, (10, 1, 8, 8)).float()
    assert index_columns(as_teacher(lambda x: tokens(x.flatten(1))).stream, images) == []


def test_regression() -> None:
    """In whatever units y has."""
    a = 1e-3 * torch.randn(S, GROUPS)

    def teacher(x: Tensor) -> tuple[Tensor, Tensor]:
        return a[:, x[:, 0].long()], torch.full((S, len(x)), 1e-3)

    with pytest.raises(ValueError, match=r"columns \[0\] as indices"):
        distill_flat(teacher, data(), **SHORT)


def test_an_index_error_is_explained() -> None:
    """Of a policy that was asked for, and where the default is asked for by name."""
    for policy in (Jitter(), default_transfer(data())):
        with pytest.raises(ValueError, match=r"raised IndexError.*transfer=HeldOut\(\)"):
            distill_flat(grouped(), data(), transfer=policy, **SHORT)


@pytest.mark.parametrize("policy", [HeldOut(), Shuffle()])
def test_a_closed_form_is_looked_for_at_indices_alone(policy: HeldOut | Shuffle) -> None:
    """Two classes, of which the draws are affine in the other column at each index."""
    x, weights = data(), torch.randn(S, GROUPS)

    def teacher(x: Tensor) -> Tensor:
        assert set(x[:, 0].tolist()) <= set(range(GROUPS))
        logits = weights[:, x[:, 0].long()] + x[:, 1]
        return torch.stack([-logits, logits], -1).softmax(-1)

    fast = distill_flat(teacher, x, transfer=policy, **SHORT)
    assert fast.report["start"] == "scratch"
