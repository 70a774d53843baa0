"""The fidelity of a regressor's student."""

from __future__ import annotations

import json
import math

import pytest
import torch
from regressions import D, predictive, quick
from torch import Tensor

from pyro_opu import FidelityReport, fidelity
from pyro_opu.distributions.normal import Components, PredictiveNormal, PredictiveNormalMixture


class TestFidelity:
    def test_a_perfect_student_of_fresh_draws_scores_the_attainable(self) -> None:
        def perfect(x: Tensor) -> PredictiveNormal:
            return PredictiveNormal(x[:, 0], x[:, 1], x[:, 2])

        def source(x: Tensor, num_draws: int) -> tuple[Tensor, Tensor]:
            spread = (x[:, 2] / 2).exp() * torch.randn(num_draws, len(x))
            return x[:, 0] + spread, (x[:, 1] / 2).exp().expand(num_draws, -1)

        x = torch.randn(200, 3)
        reports = [fidelity(perfect, source, x, num_draws=100, seed=seed) for seed in range(6)]
        for row in ("kl", "mean_error"):
            ratios = torch.tensor([r[row].student / r[row].attainable for r in reports])
            error = float(ratios.std()) / len(ratios) ** 0.5
            assert error < 0.05 and float(ratios.mean()) == pytest.approx(1.0, abs=4 * error)
        best = torch.tensor([report.energy_distance_best for report in reports])  # a normal
        assert best.mean().abs() < 4 * best.std() / len(best) ** 0.5 < 2e-3
        assert all(report.faithful for report in reports)

    def test_a_perfect_student_of_held_draws_scores_the_attainable(self) -> None:
        weights, scales = torch.randn(60, 3), torch.rand(60, 1) + 0.5

        def held(x: Tensor) -> tuple[Tensor, Tensor]:
            return weights @ x.T, scales.expand(-1, len(x))

        def perfect(x: Tensor) -> PredictiveNormalMixture:
            f, noise = held(x)
            parts = (torch.zeros_like(f) - math.log(60), f, 2 * noise.log(), 0 * f - 40)
            return PredictiveNormalMixture(Components(*(part.T for part in parts)))

        x = torch.randn(300, 3)
        report = fidelity(perfect, held, x, seed=0)
        # The posterior's epistemic variance has 60 under it, its unbiased estimate 59: 2 %.
        assert report.kl_ratio == pytest.approx(1.0, abs=0.03)
        assert report["mean_error"].student == pytest.approx(report["mean_error"].attainable)
        assert report.kl_attainable == pytest.approx(report.kl_floor / 4, rel=0.1)  # second order
        assert report.faithful and str(report).startswith(
            "Faithful, excellent: the mean of y differs"
        )
        # Monte Carlo of the pairs of draws. Judged as a sample it would be -0.012, f's -0.033.
        reports = [fidelity(perfect, held, x, seed=seed) for seed in range(5)]
        for name, most in (("energy_distance", 2e-3), ("mean_energy_distance", 6e-3)):
            distances = torch.tensor([getattr(report, name) for report in reports])
            assert distances.mean().abs() < 4 * distances.std() / 5**0.5 < most

    def test_fidelity_takes_a_regressor(self) -> None:
        x, source = torch.randn(20, D), predictive(30)
        fast = quick(source)
        report = fidelity(fast, source, x, seed=0)
        assert isinstance(report, FidelityReport)
        assert report.to_dict() == fidelity(fast, source, x, seed=0).to_dict()
        assert report.kl_ratio == report["kl_ratio"].student == report.kl / report.kl_attainable
        assert report.to_dict()["verdict"] == report.verdict
        far = fidelity(fast, source, x, extra={"far": 9 * x}, seed=0)["far"]
        assert far.num_inputs == 20 and far.epistemic_teacher > 10 * report.epistemic_teacher
        with pytest.raises(TypeError, match="`student` must answer an input with a PredictiveNor"):
            fidelity(lambda x: torch.distributions.Dirichlet(torch.ones(len(x), 2)), source, x)

    def test_report_prints_and_is_json(self) -> None:
        x, source = torch.randn(20, D), predictive(30)
        report = fidelity(quick(source), source, x, num_draws=500, seed=0)
        text = str(report)
        assert "epistemic variance" in text and "two disjoint random sets of 15" in text
        assert json.loads(json.dumps(report.to_dict()))["num_draws"] == 15
        again = fidelity(quick(source), source, x, seed=0)
        assert again["kl"].floor == report["kl"].floor
        with pytest.raises(KeyError, match="no row 'w1'; there are kl, draws, kl_ratio"):
            report["w1"]
