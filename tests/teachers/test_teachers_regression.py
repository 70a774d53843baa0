"""A regressor as a teacher: its draws are those of the loop over the posterior."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoNormal
from regressions import ROUNDING, D, by_hand, linear, predictive, samples
from torch import Tensor

from pyro_opu import as_teacher
from pyro_opu.models.likelihoods import regression
from pyro_opu.models.neural_network import bayesian_network, perceptron


class TestTeacher:
    def test_double_precision(self) -> None:
        values, x = samples(3, torch.float64), torch.randn(4, D, dtype=torch.float64)
        found = as_teacher(Predictive(linear(dtype=torch.float64), values)).draws(x)
        torch.testing.assert_close(found, by_hand(values, x))
        assert found.dtype == torch.float64

    def test_a_guide_draws_afresh_and_jointly(self) -> None:
        model = linear()
        guide = AutoNormal(poutine.block(model, hide=["obs"]), init_scale=0.2)
        guide(torch.randn(4, D))
        teacher = as_teacher(Predictive(model, guide=guide, num_samples=8))
        x = torch.randn(5, D)
        first, second = teacher.draws(x, 40), teacher.draws(x, 40)
        assert teacher.max_draws is None and not torch.equal(first, second)
        # Joint over x: the five means of a draw lie on one plane, w in three dimensions.
        rank = torch.linalg.matrix_rank(first[..., 0].double(), atol=1e-4)
        assert rank == D

    def test_the_prior_needs_the_sites_name_where_rows_have_latents(self) -> None:
        source, x = Predictive(linear(), num_samples=10), torch.randn(5, D)
        assert as_teacher(source).draws(x).shape == (10, 5, 2)  # others are shared

        def model(x: Tensor) -> None:
            with pyro.plate("data", len(x)):
                f = pyro.sample("f", dist.Normal(0.0, 1.0))
                pyro.sample("obs", dist.Normal(f, 1.0))

        source = Predictive(model, num_samples=10)
        with pytest.raises(ValueError, match="`site` must name the observed"):
            as_teacher(source).draws(x)
        assert as_teacher(source, "obs").draws(x).shape == (10, 5, 2)

    def test_one_distribution_for_all_inputs(self) -> None:
        def model(x: Tensor) -> None:
            mean = pyro.sample("m", dist.Normal(0.0, 1.0))
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Normal(mean, 2.0))

        draws = as_teacher(Predictive(model, {"m": torch.tensor([1.0, 3.0])})).draws(
            torch.zeros(4, 1)
        )
        assert draws[..., 0].tolist() == [[1.0] * 4, [3.0] * 4]
        torch.testing.assert_close(draws[..., 1].exp(), torch.full((2, 4), 2.0))

    def test_networks_of_the_house(self) -> None:
        model = bayesian_network(perceptron((D, 4, 1)), likelihood=regression(4.0))
        source = Predictive(model, num_samples=6)
        draws = as_teacher(source, "obs").draws(torch.randn(5, D))
        assert draws.shape == (6, 5, 2)
        torch.testing.assert_close(draws[..., 1].exp(), torch.full((6, 5), 0.5))

    def test_functions(self) -> None:
        values, x = samples(4), torch.randn(6, D)
        means = values["w"] @ x.T

        def held(x: Tensor) -> tuple[Tensor, Tensor]:
            return values["w"] @ x.T, values["scale"][:, None]

        def fresh(x: Tensor, num_draws: int) -> tuple[Tensor, Tensor]:
            return torch.randn(num_draws, 1) * x[:, 0], torch.ones(())

        teacher = as_teacher(held)
        torch.testing.assert_close(teacher.draws(x), by_hand(values, x), **ROUNDING)
        assert teacher.max_draws == 4 and teacher.draws(x, 2).shape == (2, 6, 2)
        assert as_teacher(teacher) is teacher
        torch.testing.assert_close(teacher.draws(x)[..., 0], means)
        teacher = as_teacher(fresh)
        assert teacher.draws(x, 7).shape == (7, 6, 2) and teacher.max_draws is None

    def test_no_probabilities(self) -> None:
        teacher = as_teacher(predictive())
        for ask in (teacher.probs, teacher.log_probs):
            with pytest.raises(TypeError, match=r"outcome is a real y. Call .draws\(x\)"):
                ask(torch.randn(2, D))


def test_a_prior_whose_site_is_named_by_the_predictive() -> None:
    """As of a Gaussian process, whose function at every row is drawn from its closed form."""

    def model(x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            f = pyro.sample("f", dist.Normal(2.0, 3.0))
            pyro.sample("y", dist.Normal(f, 0.5))

    source = Predictive(model, num_samples=4000, return_sites=("y",))
    mean, log_scale = as_teacher(source).draws(torch.zeros(3, 1)).unbind(-1)
    # Five standard errors of a mean and of a deviation of 4,000 draws.
    assert ((mean.mean(0) - 2).abs() < 5 * 3 / 4000**0.5).all()
    assert ((mean.std(0) - 3).abs() < 5 * 3 / 8000**0.5).all()
    torch.testing.assert_close(log_scale.exp(), torch.full((4000, 3), 0.5))
