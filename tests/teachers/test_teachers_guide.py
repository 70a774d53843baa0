"""A guide, or a prior, as a teacher: its draws have the moments they should have."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import (
    AutoDelta,
    AutoMultivariateNormal,
    AutoNormal,
)
from pyro.nn import PyroModule, PyroParam
from pyro_models import assert_moments, line_model, logit_of
from torch import Tensor
from torch.distributions.transforms import AffineTransform

from pyro_opu.programs.plug_in import CANDIDATES
from pyro_opu.teachers import as_teacher


def _fitted(guide: Callable, model: Callable, *args: Tensor) -> Callable:
    """A guide with its parameters made, two steps from where it started."""
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    for _ in range(2):
        svi.step(*args)
    return guide


def observed_line(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Bernoulli(logits=w * x[:, 0]), obs=y)


class TestGuides:
    def test_point_estimate(self) -> None:
        x = torch.ones(3, 1)
        guide = _fitted(AutoDelta(observed_line), observed_line, x, torch.ones(3))
        logits = logit_of(
            as_teacher(Predictive(observed_line, guide=guide, num_samples=4)).log_probs(x)
        )
        torch.testing.assert_close(logits, guide.median()["w"].detach().expand(4, 3))

    def test_written_by_hand_with_correlated_latents(self) -> None:
        def model(x: Tensor) -> None:
            a = pyro.sample("a", dist.Normal(0.0, 1.0))
            b = pyro.sample("b", dist.Normal(0.0, 1.0))
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Bernoulli(logits=a * x[:, 0] + b * x[:, 1]))

        def guide(x: Tensor) -> None:
            a = pyro.sample("a", dist.Normal(pyro.param("m", torch.tensor(1.0)), 0.5))
            pyro.sample("b", dist.Normal(-a, 0.1))

        teacher = as_teacher(Predictive(model, guide=guide, num_samples=10))
        logits = logit_of(teacher.log_probs(torch.eye(2).repeat(2, 1), 4000))
        assert_moments(logits[:, 0], 1.0, 0.5)
        assert_moments(logits[:, 0] + logits[:, 1], 0.0, 0.1)
        assert torch.equal(logits[:, :2], logits[:, 2:])

    @pytest.mark.parametrize("chunk_size", [2**21, 200])
    def test_amortised_local_latents(self, chunk_size: int) -> None:
        """Shared w, and one z per row whose guide looks at the row."""

        def model(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
            with pyro.plate("data", len(x)):
                z = pyro.sample("z", dist.Normal(0.0, 1.0))
                pyro.sample("obs", dist.Bernoulli(logits=w + z))

        def guide(x: Tensor) -> None:
            pyro.sample("w", dist.Normal(2.0, 0.5))
            with pyro.plate("data", len(x)):
                pyro.sample("z", dist.Normal(x[:, 0], 0.1))

        teacher = as_teacher(Predictive(model, guide=guide, num_samples=10))
        teacher.chunk_size = chunk_size
        logits = logit_of(teacher.log_probs(torch.tensor([[3.0], [3.0], [-1.0]]), 2000))
        total = (0.5**2 + 0.1**2) ** 0.5
        assert_moments(logits, torch.tensor([5.0, 5.0, 1.0]), total)
        assert_moments(logits[:, 0] - logits[:, 1], 0.0, 0.1 * 2**0.5)  # w is shared, z is not
        assert_moments(logits[:, 1] - logits[:, 2], 4.0, 0.1 * 2**0.5)

    def test_pyro_module_guide(self) -> None:
        class Guide(PyroModule):
            def __init__(self) -> None:
                super().__init__()
                self.loc = PyroParam(torch.tensor(1.5))

            def forward(self, x: Tensor) -> None:
                pyro.sample("w", dist.Normal(self.loc, 0.2))

        teacher = as_teacher(Predictive(line_model, guide=Guide(), num_samples=10))
        assert_moments(logit_of(teacher.log_probs(torch.ones(1, 1), 3000)), 1.5, 0.2)

    @pytest.mark.parametrize(
        "prior", [dist.Normal(0.5, 2.0), dist.Laplace(0.5, 2.0 / 2**0.5), dist.Gamma(4.0, 1.0)]
    )
    def test_prior_predictive(self, prior: dist.Distribution) -> None:
        def model(x: Tensor) -> None:
            w = pyro.sample("w", prior)
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Bernoulli(logits=w * x[:, 0]))

        teacher = as_teacher(Predictive(model, num_samples=9))
        x = torch.tensor([[1.0], [1.0]])
        assert teacher.probs(x).shape == (9, 2, 2)
        logits = logit_of(teacher.log_probs(x, 4000))
        assert torch.equal(logits[:, 0], logits[:, 1])
        # Five standard errors of the mean; of the deviation, with room for Laplace's kurtosis of 6.
        assert abs(logits.mean() - prior.mean) < 5 * prior.stddev / 4000**0.5
        assert abs(logits[:, 0].std() - prior.stddev) < 5 * prior.stddev * (5 / 4 / 4000) ** 0.5

    def test_prior_with_a_dirichlet(self) -> None:
        def model(x: Tensor) -> None:
            probs = pyro.sample("pi", dist.Dirichlet(torch.tensor([3.0, 1.0])))
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Categorical(probs))

        teacher = as_teacher(Predictive(model, num_samples=5))
        probs = teacher.probs(torch.zeros(2, 1), 2000)
        # Beta(3, 1): mean 3/4, deviation sqrt(3/80); five standard errors.
        assert abs(probs[:, 0, 0].mean() - 0.75) < 5 * (3 / 80 / 2000) ** 0.5
        assert torch.equal(probs[:, 0], probs[:, 1])

    def test_local_latents_of_the_model_are_drawn_per_draw_and_row(self) -> None:
        def model(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
            with pyro.plate("data", len(x)):
                fn = dist.Normal(w * x[:, 0], 0.5)
                z = pyro.sample("z", fn, infer={"epistemic": True})  # the value of a function
                pyro.sample("obs", dist.Bernoulli(logits=z))

        teacher = as_teacher(Predictive(model, {"w": torch.full((3000,), 2.0)}))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            logits = logit_of(teacher.log_probs(torch.tensor([[1.0], [1.0], [-1.0]])))
        assert_moments(logits, torch.tensor([2.0, 2.0, -2.0]), 0.5)
        assert_moments(logits[:, 0] - logits[:, 1], 0.0, 0.5 * 2**0.5)


class TestPlugIns:
    """The networks that a student may begin at."""

    x = torch.ones(4, 1)

    @pytest.mark.parametrize("kind", [AutoNormal, AutoMultivariateNormal])
    def test_the_first_is_at_the_means_of_the_guide(self, kind: type) -> None:
        guide = _fitted(kind(observed_line, init_scale=3.0), observed_line, self.x, torch.ones(4))
        predictive = Predictive(observed_line, guide=guide, num_samples=9)
        (found,) = as_teacher(predictive).plug_ins(self.x)
        torch.testing.assert_close(found.candidates[0]["w"], guide.median()["w"])

    def test_the_first_is_the_mean_of_draws_where_a_site_has_no_other(self) -> None:
        def guide(x: Tensor) -> None:
            base = dist.Normal(0.0, 1.0)
            pyro.sample("w", dist.TransformedDistribution(base, AffineTransform(3.0, 1.0)))

        predictive = Predictive(line_model, guide=guide, num_samples=9)
        (found,) = as_teacher(predictive).plug_ins(self.x)
        assert found.draws is not None
        expected = [found.draws["w"].mean(0), *found.draws["w"][:CANDIDATES]]
        torch.testing.assert_close([each["w"] for each in found.candidates], expected)
