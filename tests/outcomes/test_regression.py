"""Distillation of regressors: known posteriors are recovered, and sources are told apart."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from regressions import D, linear, predictive, quick, samples
from torch import Tensor, nn

import pyro_opu
from pyro_opu import MixingWarning, as_teacher, fidelity
from pyro_opu.distributions.normal import PredictiveNormal
from pyro_opu.guides.normal import GaussianGuide, NormalMixtureGuide
from pyro_opu.objectives.normal import NormalCRPS
from pyro_opu.teachers.finished import teacher_of

NOISE = 0.5


class TestLearning:
    def conjugate(self, rows: int = 40) -> tuple[Predictive, Tensor, Tensor]:
        """Bayesian linear regression: the posterior of w is a known normal."""
        x = torch.randn(rows, D)
        y = x @ torch.tensor([1.0, -2.0, 0.5]) + NOISE * torch.randn(rows)
        covariance = torch.linalg.inv(torch.eye(D) + x.T @ x / NOISE**2)
        mean = covariance @ x.T @ y / NOISE**2

        def model(x: Tensor, y: Tensor | None = None) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Normal(x @ w, NOISE), obs=y)

        w = dist.MultivariateNormal(mean, covariance).sample((2000,))
        return Predictive(model, {"w": w}), mean, covariance

    def test_conjugate_linear_regression(self) -> None:
        source, mean, covariance = self.conjugate()
        learning = {"guide": "gaussian", "num_steps": 500, "batch_size": 128, "evaluate_every": 100}
        fast = quick(source, torch.randn(400, D), **learning)
        x = torch.randn(300, D)
        found = fast.uncertainty(x)
        epistemic = ((x @ covariance) * x).sum(-1)
        total = NOISE**2 + epistemic
        # Optimisation, 500 steps, and 2,000 draws (2 % of their deviation): a twentieth of the
        # predictive deviation for the mean, a few per cent for the variances in the typical case.
        assert ((found.mean - x @ mean) / total.sqrt()).abs().median() < 0.05
        assert (found.aleatoric / NOISE**2 - 1).abs().median() < 0.03
        assert (found.epistemic / epistemic - 1).abs().median() < 0.15
        assert (found.total / total - 1).abs().median() < 0.03
        report = fidelity(fast, source, x, seed=0)
        assert report["energy_distance"].student < 0.01 < report["energy_distance"].trivial
        assert report["epistemic_spearman"].student > 0.95
        assert fast.report["energy_distance"] < 0.1 * fast.report["history"][0]["energy_distance"]

    def bimodal(self, x: Tensor, num_draws: int) -> tuple[Tensor, Tensor]:
        side = torch.where(torch.rand(num_draws, 1) < 0.3, -1.0, 1.0)
        return (side + 0.1 * torch.randn(num_draws, 1)) * (1 + x[:, 0] ** 2), torch.tensor(0.2)

    @pytest.mark.slow
    def test_a_mixture_beats_one_normal_on_a_bimodal_teacher(self) -> None:
        x, new = torch.randn(400, 1), torch.randn(150, 1)
        reports = {}
        for name in ("gaussian", "mixture"):
            fast = quick(self.bimodal, x, guide=name, num_steps=400, batch_size=64)
            reports[name] = fidelity(fast, self.bimodal, new, num_draws=300, seed=0)
        one, several = reports["gaussian"], reports["mixture"]
        for row in ("energy_distance", "mean_energy_distance"):
            assert one[row].student > 0.1  # deviations: no normal can do better, see `best`
            assert one[row].best > 0.1
            assert several[row].student < 0.02  # optimisation, 400 steps
        # The moments do not suffer from the shape.
        assert several["epistemic_error"].student < 0.15
        assert isinstance(fast.guide, NormalMixtureGuide)

    def test_crps_follows_a_teacher_that_is_not_normal_closer_than_moments(self) -> None:
        x = torch.randn(222, 1)  # a tenth of which is kept for the bound
        options = {"num_steps": 1000, "batch_size": 64, "num_draws": 32, "evaluate_every": 30}
        shift, heavy = 0.5 * torch.randn(400, 1), dist.Gamma(1.5, 1.5).sample((400, 1)).rsqrt()

        def source(x: Tensor) -> tuple[Tensor, Tensor]:
            return x[:, 0] + shift, heavy

        fast = quick(source, x, loss=NormalCRPS(moments=0.0), **options)
        records = fast.report["history"]
        before = min(r["energy_distance"] for r in records if r["phase"] == "warm start")
        # Deviations; half of what the tails of this teacher are away from any normal.
        assert fast.report["energy_distance"] < before - 0.005
        assert fast.report["loss"] == "NormalCRPS" and "refinement kept" in fast.report["kept"]

    def test_a_guide_of_ones_own(self) -> None:
        class Own(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(D, 3)

            def forward(self, x: Tensor) -> PredictiveNormal:
                return PredictiveNormal(*self.layer(x).unbind(-1))

        own = Own()
        before = own.layer.weight.detach().clone()
        fast = quick(guide=own)
        assert fast.guide is own and not torch.equal(own.layer.weight, before)

    def test_a_student_that_is_not_finite_in_evaluation_mode_stops(self) -> None:
        class Eval(torch.nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x if self.training else x * float("nan")

        guide = GaussianGuide.for_inputs(torch.randn(60, D), torch.randn(60), hidden=(4,))
        guide.trunk = torch.nn.Sequential(guide.trunk, Eval())
        with pytest.raises(pyro_opu.DistillationError, match="not finite in evaluation mode"):
            quick(guide=guide)

    def test_chains_that_disagree_are_reported(self) -> None:
        values = samples(80)
        values["w"][:40] += 5
        with pytest.warns(MixingWarning, match="R-hat of the means and scales"):
            fast = quick(Predictive(linear(), values))
        assert fast.report["mixing"]["mixed"] is False
        assert quick(predictive(80)).report["mixing"]["mixed"] is True


def labels(x: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(D, 2), 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("label", dist.Categorical(logits=x @ w))
        pyro.sample("size", dist.Normal((x @ w)[:, 0], 1.0))


def counts(x: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Poisson((x @ w).exp()))


TWO = {"w": torch.randn(6, D, 2)}


class TestDispatch:
    @pytest.mark.parametrize(
        ("source", "site", "kind"),
        [
            (predictive(), None, "real"),
            (as_teacher(predictive()), None, "real"),
            (Predictive(labels, TWO), None, "table"),
            (Predictive(labels, TWO), "size", "real"),
            (Predictive(labels, TWO), "label", "classes"),
            (Predictive(counts, {"w": TWO["w"][..., 0]}), None, "table"),
            (lambda x: x.softmax(-1)[None], None, "classes"),
            (lambda x: (x[None, :, 0], x.new_ones(1, 1)), None, "real"),
        ],
    )
    def test_which_outcome_a_source_has(self, source: Any, site: str | None, kind: str) -> None:
        assert teacher_of(as_teacher(source, site), torch.randn(5, D)).outcome.kind == kind

    def test_a_model_with_a_class_and_a_real_site(self) -> None:
        fast = quick(Predictive(labels, TWO), site="size", return_sites=["size"])
        assert fast.outcome.kind == "real"
        assert fast(torch.randn(4, D))["size"].shape == (6, 4)
        other = quick(Predictive(labels, TWO), return_sites=["label"])
        assert other.outcome.kind == "table"  # of one label

    def test_functions_of_classes_go_their_way(self) -> None:
        fast = quick(lambda x: torch.stack([x, -x, x]).softmax(-1))
        assert fast.outcome.kind == "classes"
