"""Sorted draws against all pairs, and against the distance that sorts both sides every time."""

from __future__ import annotations

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import beta

from pyro_opu.metrics import marginals
from pyro_opu.metrics.distances import energy_distance
from pyro_opu.metrics.marginals import Marginals, distance_from_dirichlet

N, C = 7, 3


def draws(count: int, sharpness: float = 1.0) -> torch.Tensor:
    return (sharpness * torch.randn(count, N, C, dtype=torch.float64)).softmax(-1)


def test_distance_to_the_draws_against_all_pairs() -> None:
    some, points = draws(20), draws(5)
    expected = (points[:, None] - some[None]).abs().sum(-1).mean(1)
    torch.testing.assert_close(Marginals(some).distance(points), expected)


def test_cdf_counts_the_draws_below() -> None:
    some, points = draws(20), draws(5)
    expected = (some[None] < points[:, None]).double().mean(1)
    torch.testing.assert_close(Marginals(some).cdf(points), expected, check_dtype=False)


def test_spread_against_all_pairs_of_different_draws() -> None:
    some = draws(20)
    pairs = (some[:, None] - some[None]).abs().sum(-1).sum((0, 1))
    torch.testing.assert_close(Marginals(some).spread, pairs / (20 * 19))


@pytest.mark.parametrize("sharpness", [0.0, 0.01, 1.0, 20.0])
def test_energy_distance_is_that_of_all_draws_together(sharpness: float) -> None:
    p, q = draws(400), draws(30, sharpness)
    q[:3] = p[:3]  # ties
    found = Marginals(p).energy_distance(q)
    between = (p[:, None] - q[None]).abs().sum(-1).mean((0, 1))
    torch.testing.assert_close(found, 2 * between - Marginals(p).spread - Marginals(q).spread)
    torch.testing.assert_close(Marginals(q).energy_distance(p), found)


def test_blocks_of_inputs_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = draws(40), draws(30)
    at_once = Marginals(p)
    expected = at_once.energy_distance(q), at_once.spread, at_once.table
    monkeypatch.setattr(marginals, "BLOCK_NUMBERS", 40 * C * 2)  # two inputs, the last one alone
    by_blocks = Marginals(p)
    found = by_blocks.energy_distance(q), by_blocks.spread, by_blocks.table
    assert all(map(torch.equal, found, expected))


def test_small_distances_keep_their_digits_in_float32() -> None:
    """Near zero, where the best iterate is chosen: 1e-7 is the rounding of the draws themselves."""
    p, q = draws(2000, 1e-3), draws(256, 1e-3)
    exact = energy_distance(p, q)
    found = Marginals(p.float()).energy_distance(q.float())
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-7)


@pytest.mark.parametrize(("a", "b"), [(2.0, 3.5), (30.0, 4.0), (0.2, 0.05), (0.5, 2.0)])
@pytest.mark.parametrize("y", [0.0, 0.37, 0.999, 1.0])
def test_distance_from_two_classes_by_quadrature(a: float, b: float, y: float) -> None:
    cdf = beta(a, b).cdf
    to_y = quad(cdf, 0, y)[0] + quad(lambda t: 1 - cdf(t), y, 1)[0]
    own = 2 * quad(lambda t: cdf(t) * (1 - cdf(t)), 0, 1)[0]
    alpha = torch.tensor([[a, b]], dtype=torch.float64)
    found = distance_from_dirichlet(alpha, torch.tensor([[[y, 1 - y]]], dtype=torch.float64))
    # The classes mirror one another. Quadrature of a cdf that is steep at an end: 1e-7.
    assert found.tolist() == pytest.approx([2 * (2 * to_y - own)], abs=1e-6)


def test_distance_from_a_dirichlet_at_the_ends() -> None:
    """Of one that is sure of a class it is twice the distance from the corner."""
    corner = torch.eye(C, dtype=torch.float64) * (1 + 1e-7)  # as float32 may round it
    for alpha in ([1e3, 1e-30, 0.0], [1e-12, 1e-30, 1e-30], [1e12, 1e-3, 1e-3]):
        there = distance_from_dirichlet(torch.tensor([alpha] * C), corner[None])
        assert there.tolist() == pytest.approx([0.0, 4.0, 4.0], abs=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_distance_from_a_dirichlet_by_any_number_of_threads(rows: int) -> None:
    alpha = torch.rand(rows, C) * 9
    some = torch.distributions.Dirichlet(alpha).sample((50,))
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(distance_from_dirichlet(alpha, some))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
