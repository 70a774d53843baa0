"""Distances between draws: known answers, slow obvious loops, identities, failures."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import pyro_opu.utils.chunks
from pyro_opu.metrics.distances import energy_distance, kl_divergence, kl_from_log, wasserstein1

CONCENTRATIONS = [[1.0, 1.0], [0.2, 3.0], [2.0, 0.5, 7.0], [0.05, 0.05, 1.0, 4.0]]


def draws(
    alpha: list[float], num_draws: int, num_inputs: int, dtype: torch.dtype = torch.float64
) -> Tensor:
    alpha_tensor = torch.tensor(alpha, dtype=dtype)
    return torch.distributions.Dirichlet(alpha_tensor).sample((num_draws, num_inputs))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def slow_energy_distance(p: Tensor, q: Tensor) -> Tensor:
    """Every pair, one after the other."""
    out = []
    for n in range(p.shape[1]):
        x, y = p[:, n], q[:, n]
        across = np.mean([float((a - b).abs().sum()) for a in x for b in y])
        within_x = np.mean([float((a - b).abs().sum()) for a, b in permutations(x, 2)])
        within_y = np.mean([float((a - b).abs().sum()) for a, b in permutations(y, 2)])
        out.append(2 * across - within_x - within_y)
    return torch.tensor(out)


@pytest.mark.parametrize("alpha", CONCENTRATIONS)
@pytest.mark.parametrize(("num_p", "num_q"), [(2, 2), (5, 5), (4, 9)])
def test_energy_distance_equals_the_loop_over_pairs(
    alpha: list[float], num_p: int, num_q: int
) -> None:
    p, q = draws(alpha, num_p, 3), draws([1.0] * len(alpha), num_q, 3)
    # Rounding in float64.
    torch.testing.assert_close(
        energy_distance(p, q), slow_energy_distance(p, q).to(p), atol=1e-12, rtol=0
    )


@pytest.mark.parametrize("chunk_size", [1, 2, 7, 100])
def test_chunks_do_not_change_the_answer(chunk_size: int) -> None:
    p, q = draws([1.0, 2.0, 3.0], 6, 7), draws([3.0, 2.0, 1.0], 6, 7)
    torch.testing.assert_close(energy_distance(p, q, chunk_size=chunk_size), energy_distance(p, q))
    p, q = p[..., :2] / p[..., :2].sum(-1, True), q[..., :2] / q[..., :2].sum(-1, True)
    torch.testing.assert_close(wasserstein1(p, q, chunk_size=chunk_size), wasserstein1(p, q))


def test_many_inputs_cross_the_default_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = draws([1.0, 2.0, 3.0], 6, 50), draws([3.0, 2.0, 1.0], 6, 50)
    whole = energy_distance(p, q)
    monkeypatch.setattr(pyro_opu.utils.chunks, "_ELEMENTS_AT_ONCE", 200)
    torch.testing.assert_close(energy_distance(p, q), whole)


def test_energy_distance_in_float32_keeps_small_values() -> None:
    p, q = draws([30.0, 60.0, 10.0], 400, 8), draws([30.0, 63.0, 10.0], 400, 8)
    # Rounding of probabilities near one half in float32 (6e-8), summed over classes.
    torch.testing.assert_close(
        energy_distance(p.float(), q.float()).double(), energy_distance(p, q), atol=1e-6, rtol=0
    )


def test_energy_distance_of_point_masses() -> None:
    p = torch.tensor([0.7, 0.2, 0.1]).expand(3, 4, 3)
    q = torch.tensor([0.1, 0.2, 0.7]).expand(2, 4, 3)
    torch.testing.assert_close(energy_distance(p, q), torch.full((4,), 2 * 1.2))
    torch.testing.assert_close(energy_distance(p, p), torch.zeros(4))


def test_two_classes_agree_with_scipy_and_with_the_assignment() -> None:
    p, q = draws([1.0, 2.0], 11, 5), draws([2.0, 2.0], 11, 5)
    line = wasserstein1(p, q)
    for n in range(5):
        assert line[n].item() == pytest.approx(
            2 * stats.wasserstein_distance(p[:, n, 0], q[:, n, 0])
        )
    # A third class of probability zero changes nothing, and goes through the other branch.
    padded = [torch.cat([t, torch.zeros(11, 5, 1, dtype=t.dtype)], -1) for t in (p, q)]
    torch.testing.assert_close(wasserstein1(*padded), line)


def test_assignment_equals_the_best_of_all_permutations() -> None:
    p, q = draws([1.0, 2.0, 0.5], 5, 4), draws([1.0, 0.5, 3.0], 5, 4)
    for n, distance in enumerate(wasserstein1(p, q)):
        costs = [
            (p[:, n] - q[list(order), n]).abs().sum(-1).mean() for order in permutations(range(5))
        ]
        assert distance.item() == pytest.approx(float(min(costs)))


@pytest.mark.parametrize("distance", [energy_distance, wasserstein1])
@pytest.mark.parametrize("alpha", CONCENTRATIONS)
def test_symmetric_and_blind_to_the_order_of_draws_and_classes(
    distance, alpha: list[float]
) -> None:
    p, q = draws(alpha, 12, 3), draws([1.0] * len(alpha), 12, 3)
    expected = distance(p, q)
    torch.testing.assert_close(distance(q, p), expected)
    torch.testing.assert_close(distance(p[torch.randperm(12)], q), expected)
    torch.testing.assert_close(distance(p.flip(-1), q.flip(-1)), expected)


def test_wasserstein_of_the_same_draws_is_zero() -> None:
    for alpha in CONCENTRATIONS:
        p = draws(alpha, 20, 3)
        torch.testing.assert_close(
            wasserstein1(p, p[torch.randperm(20)]), torch.zeros(3, dtype=p.dtype)
        )


def test_inputs_are_independent_of_each_other() -> None:
    p, q = draws([1.0, 2.0, 3.0], 8, 4), draws([3.0, 2.0, 1.0], 8, 4)
    for distance in (energy_distance, wasserstein1):
        one_by_one = torch.cat([distance(p[:, n : n + 1], q[:, n : n + 1]) for n in range(4)])
        torch.testing.assert_close(distance(p, q), one_by_one)


def test_kl_known_answers() -> None:
    p = torch.tensor([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)
    q = torch.tensor([[0.25, 0.75], [0.5, 0.5], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    expected = torch.tensor([0.0, np.log(2), np.inf, 0.0], dtype=torch.float64)
    torch.testing.assert_close(kl_divergence(p, q), expected)
    torch.testing.assert_close(kl_from_log(p.log(), q.log()), expected)


def test_kl_equals_torch_and_is_not_negative() -> None:
    p, q = draws([0.5, 1.0, 2.0], 1, 50)[0], draws([1.0, 1.0, 1.0], 1, 50)[0]
    categorical = torch.distributions.Categorical
    expected = torch.distributions.kl_divergence(categorical(probs=p), categorical(probs=q))
    torch.testing.assert_close(kl_divergence(p, q), expected)
    torch.testing.assert_close(kl_from_log(p.log(), q.log()), expected)
    assert (expected > 0).all()


def test_gradient_of_kl_from_log_is_finite_at_an_impossible_class() -> None:
    logits = torch.tensor([[-300.0, 0.0, 1.0]], requires_grad=True)
    kl_from_log(
        torch.tensor([[-torch.inf, -0.5, -0.9327]]), logits.log_softmax(-1)
    ).sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
