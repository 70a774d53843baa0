"""What the benchmark of the Laplace bridge on MNIST computes beside the library's own parts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Dirichlet

from papers.laplace_answers import auroc, measured, methods, mmc, read, sampled
from papers.laplace_mnist import KEYS, tables, widening
from papers.laplace_speed import (
    BINS,
    beta_shares,
    of_dirichlets,
    one_test,
    summary,
)
from pyro_opu import inverse_laplace_bridge, laplace_bridge
from pyro_opu.rng import seeded


def law(alpha: Tensor) -> tuple[Tensor, Tensor]:
    """The normal logits of Dirichlets, made regular by a shift that the softmax does not see."""
    mean, covariance = inverse_laplace_bridge(alpha, full=True)
    return mean, covariance + 0.01


def test_laws_of_dirichlets_come_back() -> None:
    with seeded(0):
        alpha = laplace_bridge(*of_dirichlets(4))
    assert alpha.shape == (100, 4)
    # float32 sums of entries up to a hundred times the smallest.
    assert 1 - 1e-3 < alpha.min() < 2 and 60 < alpha.max() < 100.1


@pytest.mark.parametrize("full", [True, False])
def test_draws_have_the_law_of_the_logits(full: bool) -> None:
    root = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.5, 0.0], [-0.3, 0.2, 0.8]]).double()
    covariance = (root @ root.mT).expand(2, 3, 3)
    mean = torch.tensor([[0.0, 1.0, -1.0], [2.0, 0.0, 0.5]]).double()
    given = covariance if full else covariance.diagonal(dim1=1, dim2=2)
    with seeded(0):
        logs = sampled(mean, given, 40_000).log()
    contrast = torch.tensor([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]]).double()
    expected = covariance if full else torch.diag_embed(given)
    for n in range(2):
        found = logs[:, n] @ contrast.mT
        # Monte Carlo: four errors of a mean of 40,000 draws with variances below 2, 0.03.
        torch.testing.assert_close(found.mean(0), contrast @ mean[n], atol=0.03, rtol=0)
        # A covariance's error is about its size times sqrt(2 / 40,000); four of them, 0.06.
        close = contrast @ expected[n] @ contrast.mT
        torch.testing.assert_close(found.mT.cov(), close, atol=0.06, rtol=0)


def test_bins_are_counted() -> None:
    with seeded(0):
        draws = Dirichlet(torch.ones(2, 3)).sample((30,))
    draws[0, 0] = torch.tensor([1.0, 0.0, 0.0])  # the ends belong to the outermost bins
    average, counts = summary(draws)
    expected = torch.zeros(2, 3, BINS, dtype=torch.float64)
    for point in draws:
        for n in range(2):
            for c in range(3):
                expected[n, c, min(int(point[n, c] * BINS), BINS - 1)] += 1
    assert counts.equal(expected)
    torch.testing.assert_close(average, draws.double().mean(0))


def test_beta_shares_are_those_of_draws() -> None:
    alpha = torch.tensor([[0.4, 2.0, 5.0], [30.0, 1.0, 1.0]]).double()
    shares = beta_shares(alpha)
    torch.testing.assert_close(shares.sum(-1), torch.ones(2, 3).double())
    with seeded(0):
        _, counts = summary(Dirichlet(alpha).sample((50_000,)))
    # Monte Carlo: a share of 50,000 draws is off by at most 0.0022, four of them.
    torch.testing.assert_close(counts / 50_000, shares, atol=0.009, rtol=0)


def test_speed_test_ranks_as_known() -> None:
    """Logits that the bridge is made for: more samples are better, the bridge beats a hundred."""
    alpha = torch.tensor([[200.0, 100.0, 60.0], [90.0, 150.0, 100.0]])
    with seeded(0):
        rows = one_test(*law(alpha), 10_000)
    of = {(row["answer"], row["samples"]): row for row in rows}
    counts = [row["samples"] for row in rows if row["answer"] == "sampling"]
    assert counts == [1, 3, 10, 30, 100, 300, 1000]
    for measure in ("KL of the mean", "KL of histograms"):
        assert of["sampling", 1][measure] > 3 * of["sampling", 30][measure]
        assert of["sampling", 30][measure] > 3 * of["sampling", 1000][measure] > 0
        assert of["bridge", 0][measure] < of["sampling", 100][measure]
        assert of["bridge", 0][measure] < of["normalised bridge", 0][measure]
    assert all(row["time, s"] > 0 for row in rows)


def test_measures_of_draws_and_of_their_dirichlet_agree() -> None:
    alpha = torch.tensor([[8.0, 1.0, 1.0], [2.0, 2.0, 2.0]])
    with seeded(0):
        drawn = measured(Dirichlet(alpha).sample((20_000,)))
    exact = measured(Dirichlet(alpha))
    assert exact["by max-probability"].tolist() == pytest.approx([0.2, 2 / 3], abs=1e-6)  # float32
    assert mmc(exact) == pytest.approx((0.8 + 1 / 3) / 2, abs=1e-6)
    assert exact["by concentration"].exp().tolist() == pytest.approx([1 / 10, 1 / 6])
    for name, value in exact.items():
        # Monte Carlo: moments of 20,000 draws, and a logarithm of their quotient.
        torch.testing.assert_close(drawn[name], value.to(drawn[name]), atol=0.03, rtol=0)


def test_small_largest_probabilities_are_told_apart() -> None:
    """1 - max would be 0 for both in float32."""
    found = read(methods(2)["MAP network"], torch.tensor([[30.0, 0], [40.0, 0]]), torch.ones(2, 2))
    assert found["by max-probability"][0] > found["by max-probability"][1] > 0
    assert list(found) == ["mean", "by max-probability"]


def test_auroc_is_in_per_cent() -> None:
    assert auroc(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0])) == 87.5


def test_widening_reaches_its_target() -> None:
    mean, variance = torch.tensor([[6.0, 0.0, 1.0]] * 50), torch.full((50, 3), 0.1)
    with seeded(0):
        factor = widening(mean, variance, 0.8)
        draws = sampled(mean, factor * variance, 2000)
        assert factor > 10
        # Monte Carlo of 50 times 200 draws whose largest probabilities vary by 0.3, four errors.
        assert mmc(measured(draws)) == pytest.approx(0.8, abs=0.015)
        assert widening(torch.zeros(5, 3), torch.ones(5, 3), 0.9) == pytest.approx(1.0, abs=1e-3)


def test_means_over_seeds_have_the_papers_figures_beside_them() -> None:
    row = {"posterior": "diagonal", "method": "bridge", "test set": "KMNIST", "MMC": 0.5}
    other = {**row, "posterior": "kron"}
    runs: dict[str, list] = {title: [] for title in KEYS}
    detection = [{"seed": 0, **row}, {"seed": 0, **other}, {"seed": 1, **row, "MMC": 0.7}]
    found = tables({**runs, "Detection": detection})["Detection"]
    assert found[0] == {
        **{**row, "seeds": 2}, "MMC": "0.6 ± 0.14", "MMC, paper": 0.637, "AUROC, paper": 97.3,
    }  # fmt: skip
    assert found[1] == {**other, "seeds": 1, "MMC": "0.5"}
