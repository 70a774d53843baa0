"""Draws at a pool: refused where they are not joint over its rows."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from flat import distill_flat
from pyro.infer import Predictive
from torch import nn

from pyro_opu.joint import PoolDraws, joint_draws

SLOPES = torch.randn(30, 2, 3, generator=torch.Generator().manual_seed(0))
X = torch.randn(7, 2, generator=torch.Generator().manual_seed(1))
NAMED = r'distill\(\.\.\., guide="joint"\)'


def posterior(x):
    return (x @ SLOPES).softmax(-1)


@pytest.fixture(scope="module")
def dropout():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 20), nn.Dropout(), nn.ReLU(), nn.Linear(20, 3))


def test_draws_are_the_teachers():
    pool = joint_draws(posterior, X)
    assert pool.kind == "classes" and torch.allclose(pool.draws, posterior(X), atol=1e-6)
    assert joint_draws(posterior, X, 4, seed=0).draws.shape == (4, 7, 3)


def test_of_a_regressor():
    pool = joint_draws(lambda x: (SLOPES[:, :, 0] @ x.mT, torch.full((30, 1), 2.0)), X)
    assert pool.kind == "real" and torch.allclose(pool.draws[..., 0], SLOPES[:, :, 0] @ X.mT)
    assert torch.allclose(pool.noise(), torch.tensor(4.0).double())


def test_a_seed_repeats_the_draws_and_leaves_torch_alone(dropout):
    before = torch.get_rng_state()
    first, again = (joint_draws(dropout, X, 50, seed=3).draws for _ in range(2))
    assert torch.equal(first, again) and torch.equal(before, torch.get_rng_state())
    assert not torch.equal(first, joint_draws(dropout, X, 50, seed=4).draws)


class TestRefused:
    def test_a_real_y_drawn_row_by_row(self):
        def function(x, num_draws):
            f = torch.randn(num_draws, len(x))
            return f, torch.ones_like(f)

        with pytest.raises(ValueError, match=NAMED):
            joint_draws(function, X)

    def test_a_model_that_draws_a_function_row_by_row(self):
        def model(x, y=None):
            with pyro.plate("data", len(x)):
                f = pyro.sample("f", dist.Normal(x[:, 0], 2.0))
                return pyro.sample("y", dist.Bernoulli(logits=f), obs=y)

        with pytest.raises(ValueError, match=NAMED):
            joint_draws(Predictive(model, num_samples=40, return_sites=("y",)), X)

    def test_several_numbers_of_a_row(self):
        def model(x, y=None):
            b = pyro.sample("b", dist.Normal(0.0, 1.0))
            with pyro.plate("data", len(x)):
                mean = (b * x).sum(-1, keepdim=True).expand(-1, 2)
                return pyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)

        with pytest.raises(TypeError, match="one label or one real y"):
            joint_draws(Predictive(model, {"b": torch.randn(9)}), X)


class TestAccepted:
    def test_a_joint_student(self):
        """Linear draws, which it has exactly; all of them, or those of a seed."""
        student = distill_flat(
            posterior, X.repeat(20, 1), guide="joint", num_samples=30, num_steps=3, seed=0,
            progress=False,
        )  # fmt: skip
        pool = joint_draws(student, X)
        assert torch.allclose(pool.draws, posterior(X), atol=1e-4)
        some = joint_draws(student, X, 9, seed=0)
        assert torch.equal(some.draws, joint_draws(student, X, 9, seed=0).draws)

    @pytest.mark.filterwarnings("ignore::pyro_opu.FidelityWarning")  # of its marginal answer
    def test_a_joint_student_of_a_real_y(self):
        slopes = SLOPES[:, :, 0]
        line = lambda x: (slopes @ x.mT, torch.full((30, 1), 0.5))  # noqa: E731
        student = distill_flat(
            line, X.repeat(20, 1), guide="joint", num_samples=30, num_steps=3, seed=0,
            progress=False,
        )  # fmt: skip
        pool = joint_draws(student, X)
        assert pool.kind == "real" and torch.allclose(
            pool.values(), (slopes @ X.mT).double(), atol=1e-3
        )
        assert torch.allclose(pool.noise(), torch.tensor(0.25).double(), rtol=1e-3)

    def test_draws_that_are_rounded(self):
        """Equal answers to float32's rounding, of rows that all draws agree on."""
        sure = torch.tensor([[1.0, 0.0]]).expand(10, 5, 2)

        def function(x):
            off = 1e-7 * torch.rand(10, len(x))
            return torch.stack([1 - off, off], -1)

        assert torch.allclose(joint_draws(function, X[:5]).draws, sure, atol=1e-6)

    def test_one_row(self):
        assert joint_draws(posterior, X[:1]).draws.shape == (30, 1, 3)

    def test_several_inputs(self):
        def function(x, group):
            return (x @ SLOPES + group[:, None].float()).softmax(-1)

        inputs = (X, torch.tensor([0, 1, 1, 0, 1, 0, 1]))
        assert torch.allclose(joint_draws(function, inputs).draws, function(*inputs), atol=1e-6)

    def test_a_model_with_shared_latents(self):
        def model(x, y=None):
            b = pyro.sample("b", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            with pyro.plate("data", len(x)):
                return pyro.sample("y", dist.Bernoulli(logits=x @ b), obs=y)

        b = torch.randn(25, 2)
        pool = joint_draws(Predictive(model, {"b": b}), X)
        assert torch.allclose(pool.draws[..., 1], torch.sigmoid(b @ X.mT), atol=1e-6)


class TestWhatRowsCount:
    def test_classes(self):
        pool, weights = joint_draws(posterior, X), torch.randn(7, 3, dtype=torch.float64)
        p = pool.draws.double()
        mean = (p * weights).sum(-1)
        assert torch.allclose(pool.values(weights), mean)
        # Float32 probabilities sum to 1 within 1e-7, on which the two forms differ.
        noise = (p * weights.square()).sum(-1) - mean.square()
        assert torch.allclose(pool.noise(weights), noise, atol=1e-5)
        assert torch.allclose(pool.values(weights[0]), (p * weights[0]).sum(-1))

    def test_of_outcomes_both_moments_are_right(self):
        torch.manual_seed(0)
        p = posterior(X[:3])[:4].repeat(1000, 1, 1)  # 4 draws, 1,000 times
        pool, weights = PoolDraws("classes", p), torch.tensor([0.0, 1.0, 5.0])
        y = pool.outcomes(weights).reshape(1000, 4, 3)
        # Four deviations of the mean of 1,000, and 25 % of their variance.
        spread = pool.noise(weights)[:4].sqrt()
        assert ((y.mean(0) - pool.values(weights)[:4]).abs() < 4 * spread / 1000**0.5).all()
        assert torch.allclose(y.var(0), pool.noise(weights)[:4], rtol=0.25)


def test_rows_that_are_drawn_by_themselves_are_seen_beside_a_first_that_all_draws_agree_on():
    def function(x):
        p = torch.where(x[:, 0] == 0, 0.5, torch.rand(30, len(x)))
        return torch.stack([p, 1 - p], -1)

    with pytest.raises(ValueError, match="joint over rows"):
        joint_draws(function, torch.arange(20.0)[:, None])
