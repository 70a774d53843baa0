"""Sums against closed forms of a conjugate posterior, and against loops."""

from __future__ import annotations

import pytest
import torch

from pyro_opu.joint import PoolDraws, covariance, joint_draws, total

SIGMA = 0.7


@pytest.fixture(scope="module")
def line():
    """A linear model with a normal prior: its posterior, and 40,000 draws of it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(15, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    precision = torch.eye(3, dtype=torch.float64) + x.mT @ x / SIGMA**2
    mean = torch.linalg.solve(precision, x.mT @ y) / SIGMA**2
    law = torch.distributions.MultivariateNormal(mean, precision_matrix=precision)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        draws = law.sample((40_000,))
    return law, lambda x: (draws @ x.mT, torch.full((len(draws), 1), SIGMA))


@pytest.fixture
def pool(line):
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    weights = torch.tensor([1.0, -1, 2, 0, 1, 1, -0.5, 3], dtype=torch.float64)
    return x, weights


def test_sum_of_a_linear_model(line, pool):
    (law, source), (x, weights) = line, pool
    found = total(source, x, weights, seed=0)
    direction = weights @ x
    variance, noise = direction @ law.covariance_matrix @ direction, SIGMA**2 * weights @ weights
    # 40,000 draws: a variance is known to 0.7 %, here to three times that.
    assert float(found.epistemic) == pytest.approx(float(variance), rel=0.021)
    assert float(found.aleatoric) == pytest.approx(float(noise), rel=1e-6)
    assert float(found.outcomes.var()) == pytest.approx(float(variance + noise), rel=0.021)
    assert float(found.variance) == float(found.epistemic + found.aleatoric)
    deviation = float(variance / 40_000) ** 0.5
    assert abs(float(found.mean - direction @ law.mean)) < 4 * deviation


def test_covariance_of_a_linear_model(line, pool):
    (law, source), (x, weights) = line, pool
    found = covariance(source, x)
    true = x @ law.covariance_matrix @ x.mT
    scale = true.diagonal().sqrt()
    # A correlation is known to 0.005; four times that.
    assert torch.allclose(found / scale / scale[:, None], true / scale / scale[:, None], atol=0.02)
    sums = total(source, x, weights).epistemic
    assert torch.allclose(covariance(source, x, weights).sum(), sums)


def test_rows_alone_would_say_too_little(line):
    """Ten copies of a row vary together: the sum's variance is a hundred times the row's."""
    _, source = line
    row = torch.ones(1, 3, dtype=torch.float64)
    alone, ten = total(source, row), total(source, row.repeat(10, 1))
    assert torch.allclose(ten.epistemic, 100 * alone.epistemic)
    assert torch.allclose(ten.aleatoric, 10 * alone.aleatoric)
    difference = total(source, row.repeat(2, 1), torch.tensor([1.0, -1.0]))
    assert float(difference.epistemic) < 1e-20 * float(alone.epistemic) + 1e-20


def test_count_of_a_class_against_a_loop():
    probs = torch.rand(9, 5, 2, generator=torch.Generator().manual_seed(0))
    probs = probs / probs.sum(-1, keepdim=True)
    found = total(PoolDraws("classes", probs), None, seed=0)
    counts, noise = [], []
    for draw in probs[..., 1].double():
        counts.append(sum(draw))
        noise.append(sum(p * (1 - p) for p in draw))
    assert torch.allclose(found.draws, torch.stack(counts))
    assert torch.allclose(found.aleatoric, torch.stack(noise).mean(), atol=1e-6)
    assert torch.allclose(found.epistemic, torch.stack(counts).var())
    assert torch.equal(found.outcomes, found.outcomes.round())


def test_a_mixture_of_counts_has_the_moments_of_its_outcomes():
    """Over labels too, the variance is the sum of both parts."""
    probs = torch.rand(3, 4, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    pool = PoolDraws("classes", probs.repeat(2000, 1, 1))
    found = total(pool, None, torch.tensor([0.0, 1, 4]), seed=0)
    # 6,000 outcomes: a variance is known to about 2 %.
    assert float(found.outcomes.var()) == pytest.approx(float(found.variance), rel=0.06)
    assert float(found.outcomes.mean()) == pytest.approx(float(found.mean), rel=0.02)


def test_sure_classes_have_no_variance():
    probs = torch.eye(2)[torch.tensor([0, 1, 1])].expand(6, 3, 2)
    found = total(PoolDraws("classes", probs), None)
    assert float(found.mean) == 2 and float(found.variance) == 0


def test_of_several_questions_the_draws_are_the_same(line, pool):
    (_, source), (x, weights) = line, pool
    drawn = joint_draws(source, x, 100, seed=0)
    assert torch.allclose(
        total(drawn, None, weights).draws, total(source, x, weights, num_draws=100, seed=0).draws
    )
