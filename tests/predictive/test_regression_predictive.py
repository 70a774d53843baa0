"""A student of a regressor in place of ``Predictive``, and its file."""

from __future__ import annotations

from pathlib import Path

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoNormal
from regressions import OBSERVE, D, Observe, _deterministic, linear, predictive, quick, samples
from torch import Tensor, nn

from pyro_opu import OnePassPredictive, as_teacher
from pyro_opu.distributions.normal import PredictiveNormal
from pyro_opu.guides.normal import GaussianGuide
from pyro_opu.predictive.drop_in import student_of
from pyro_opu.teachers import PredictiveTeacher


class TestDropIn:
    """Keys, shapes and dtypes are those of ``Predictive``; no training is needed to see that."""

    @pytest.mark.parametrize("observe", OBSERVE.values(), ids=OBSERVE)
    @pytest.mark.parametrize(("draws", "rows"), [(5, 4), (1, 3), (4, 1), (4, 4)])
    def test_same_layout(self, observe: Observe, draws: int, rows: int) -> None:
        source, x = predictive(draws, observe), torch.randn(rows, D)
        fast = student_of(GaussianGuide.for_inputs(x), PredictiveTeacher(source), x)
        expected, found = source(x), fast(x)
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert found[name].shape == value.shape and found[name].dtype == value.dtype
        calls = zip(fast.call(x), source.call(x), strict=True)
        assert all(mine.shape == theirs.shape for mine, theirs in calls)
        assert all(value.shape == expected[name].shape for name, value in fast(x=x).items())

    def test_double_precision_of_the_answer(self) -> None:
        source = Predictive(linear(dtype=torch.float64), samples(5, torch.float64))
        x = torch.randn(4, D, dtype=torch.float64)
        fast = student_of(GaussianGuide.for_inputs(x), PredictiveTeacher(source), x)
        assert fast(x)["obs"].dtype == source(x)["obs"].dtype == torch.float64

    def test_sites_asked_for(self) -> None:
        x = torch.randn(4, D)
        teacher = PredictiveTeacher(predictive(6, _deterministic))
        guide = GaussianGuide.for_inputs(x)
        assert list(student_of(guide, teacher, x)(x)) == ["f", "obs"]
        asked = as_teacher(teacher, return_sites=["obs", "mean"], num_samples=9)
        fast = student_of(guide, asked, x)
        assert {name: value.shape for name, value in fast(x).items()} == {
            "obs": (9, 4),
            "mean": (9, 4),
        }
        assert fast.num_samples == 9

    def test_sites_of_a_guide(self) -> None:
        model = linear()
        guide = AutoNormal(poutine.block(model, hide=["obs"]))
        x = torch.randn(4, D)
        guide(x)
        source = Predictive(model, guide=guide, num_samples=6)
        with pytest.warns(UserWarning, match=r"cannot give the sites \['scale', 'w'\]"):
            fast = student_of(GaussianGuide.for_inputs(x), PredictiveTeacher(source), x)
        assert list(fast(x)) == ["obs"]

    def test_draws_have_the_marginals_and_y_lies_around_the_mean(self) -> None:
        class Fixed(nn.Module):
            def forward(self, x: Tensor) -> PredictiveNormal:
                return PredictiveNormal(x[:, 0], x[:, 1], x[:, 2])

        x = torch.tensor([[1.0, 0.0, -1.0], [-2.0, -1.0, 1.0]])
        teacher = as_teacher(
            lambda x: (x.new_zeros(2, len(x)), x.new_ones(())),
            return_sites=["obs", "mean"],
            num_samples=100_000,
        )
        fast = student_of(Fixed(), teacher, x)
        answer, found = fast.distribution(x), fast(x)
        # Monte Carlo: about five standard errors of a variance from 10^5 normal draws.
        close = {"rtol": 0.025, "atol": 0.025}
        torch.testing.assert_close(found["obs"].mean(0), answer.mean, **close)
        torch.testing.assert_close(found["obs"].var(0), answer.variance, **close)
        torch.testing.assert_close(found["mean"].var(0), answer.epistemic, **close)
        noise = found["obs"] - found["mean"]
        torch.testing.assert_close(noise.var(0), answer.aleatoric, **close)

    def test_uncertainty_record(self) -> None:
        x = torch.randn(6, D)
        for name in ("gaussian", "mixture"):
            fast = quick(guide=name)
            found, normal = fast.uncertainty(x), fast.normal(x)
            torch.testing.assert_close(found.total, found.aleatoric + found.epistemic)
            torch.testing.assert_close(found.total, fast.distribution(x).variance)
            torch.testing.assert_close(found["mean"], normal.mean)
            assert isinstance(normal, dist.Normal) and set(found.to_dict()) == set(found.keys())
            with pytest.raises(KeyError, match="no measure 'entropy'; there are mean, total"):
                found["entropy"]
            with pytest.raises(TypeError, match="`dirichlet` needs a site of class labels"):
                fast.dirichlet(x)
            assert "-> a real y, sites [obs], num_samples=30" in repr(fast)

    def test_inputs_picked_from_the_call(self) -> None:
        inner = linear()

        def model(n: int | None, data: Tensor) -> None:
            inner(data)

        source = Predictive(model, samples(30))
        fast = quick(source, inputs=lambda n, data: data)
        x = torch.randn(4, D)
        assert fast(None, x)["obs"].shape == fast(n=3, data=x)["obs"].shape == (30, 4)


class TestFile:
    def test_guide_of_ones_own_must_be_given(self, tmp_path: Path) -> None:
        path, x = tmp_path / "own.safetensors", torch.randn(5, D)
        fast = quick(guide=GaussianGuide(nn.Linear(D, 4), 4))
        fast.save(path)
        with pytest.raises(ValueError, match="`guide` must be given"):
            OnePassPredictive.load(path)
        with pytest.raises(ValueError, match="parameters of the file; these differ"):
            OnePassPredictive.load(path, guide=GaussianGuide(nn.Linear(D, 5), 5))
        again = OnePassPredictive.load(path, guide=GaussianGuide(nn.Linear(D, 4), 4))
        assert torch.equal(again.normal(x).mean, fast.normal(x).mean)
