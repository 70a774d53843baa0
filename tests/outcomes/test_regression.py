"""One-pass regression: known teachers are recovered, and ``Predictive`` can be replaced."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

import pyro_opu
from pyro_opu import MixingWarning, OnePassPredictive, PredictiveGuide, fidelity
from pyro_opu.distributions.normal import Components, PredictiveNormalMixture
from pyro_opu.models.likelihoods import regression
from pyro_opu.models.neural_network import bayesian_network, perceptron
from pyro_opu.regression import (
    GaussianGuide,
    NormalCRPS,
    NormalMixtureGuide,
    OnePassRegression,
    PredictiveNormal,
    RegressionFidelity,
    RegressionTeacher,
    as_regression_teacher,
    distill_regression,
    is_regressor,
    regression_drop_in,
    regression_fidelity,
)

D = 3
NOISE = 0.5
# Rounding of float32 matrix products summed in another order, on means of size 1.
ROUNDING = {"rtol": 1e-5, "atol": 1e-6}

# How the observed site is put: (mean (N,), scale) -> the site "obs".
Observe = Callable[[Tensor, Tensor], Any]


def _plate(mean: Tensor, scale: Tensor) -> None:
    with pyro.plate("data", len(mean)):
        pyro.sample("obs", dist.Normal(mean, scale))


def _outer_plate(mean: Tensor, scale: Tensor) -> None:
    with pyro.plate("once", 1, dim=-2), pyro.plate("data", len(mean), dim=-1):
        pyro.sample("obs", dist.Normal(mean, scale))


def _column_plate(mean: Tensor, scale: Tensor) -> None:
    with pyro.plate("data", len(mean), dim=-2):
        pyro.sample("obs", dist.Normal(mean[:, None], scale))


def _masked(mean: Tensor, scale: Tensor) -> None:
    with poutine.mask(mask=torch.arange(len(mean)) % 2 == 0):
        _plate(mean, scale)


def _deterministic(mean: Tensor, scale: Tensor) -> None:
    with pyro.plate("data", len(mean)):
        f = pyro.deterministic("f", mean)
        pyro.sample("obs", dist.Normal(f, scale))


def _renamed(mean: Tensor, scale: Tensor) -> None:
    with pyro.plate("data", len(mean)):
        pyro.sample("y", dist.Normal(mean, scale))


OBSERVE: dict[str, Observe] = {
    "plate": _plate,
    "outer-plate": _outer_plate,
    "column-plate": _column_plate,
    "bare": lambda m, s: pyro.sample("obs", dist.Normal(m, s)),
    "event": lambda m, s: pyro.sample("obs", dist.Normal(m, s).to_event(1)),
    "column": lambda m, s: pyro.sample("obs", dist.Normal(m[:, None], s).to_event(2)),
    "dist-mask": lambda m, s: pyro.sample("obs", dist.Normal(m, s).mask(False).to_event(1)),
    "poutine-mask": _masked,
    "deterministic": _deterministic,
    "renamed": _renamed,
}


def linear(observe: Observe = _plate, dtype: torch.dtype = torch.float32) -> Callable[..., Any]:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(D, dtype=dtype), 1.0).to_event(1))
        scale = pyro.sample("scale", dist.LogNormal(torch.zeros((), dtype=dtype), 0.3))
        observe(x @ w, scale)

    return model


def samples(draws: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {"w": torch.randn(draws, D, dtype=dtype), "scale": torch.rand(draws, dtype=dtype) + 0.1}


def by_hand(values: dict[str, Tensor], x: Tensor) -> Tensor:
    """The answer one draw after the other."""
    pairs = zip(values["w"], values["scale"], strict=True)
    return torch.stack([torch.stack([x @ w, scale.log().expand(len(x))], -1) for w, scale in pairs])


def predictive(draws: int = 30, observe: Observe = _plate, **options: Any) -> Predictive:
    return Predictive(linear(observe), samples(draws), **options)


QUICK: dict[str, Any] = {
    "num_steps": 12,
    "batch_size": 16,
    "evaluate_every": 5,
    "seed": 0,
    "progress": False,
}


def quick(source: Any = None, x: Tensor | None = None, **changes: Any) -> Any:
    return pyro_opu.distill(
        predictive() if source is None else source,
        torch.randn(60, D) if x is None else x,
        **{**QUICK, **changes},
    )


class TestTeacher:
    @pytest.mark.parametrize("observe", OBSERVE.values(), ids=OBSERVE)
    @pytest.mark.parametrize(("draws", "rows"), [(5, 4), (1, 3), (4, 1), (4, 4)])
    def test_batched_draws_equal_the_loop(self, observe: Observe, draws: int, rows: int) -> None:
        values, x = samples(draws), torch.randn(rows, D)
        teacher = as_regression_teacher(Predictive(linear(observe), values))
        found = teacher.draws(x)
        assert found.shape == (draws, rows, 2)
        torch.testing.assert_close(found, by_hand(values, x), **ROUNDING)
        assert teacher._run_model.use_vmap or draws == 1  # one draw is no batch

    def test_blocks_equal_one_call(self) -> None:
        values, x = samples(7), torch.randn(23, D)
        teacher = as_regression_teacher(Predictive(linear(), values))
        teacher.chunk_size = 8
        torch.testing.assert_close(teacher.draws(x), by_hand(values, x), **ROUNDING)

    def test_fewer_draws_are_a_subset_and_joint(self) -> None:
        values, x = samples(9), torch.randn(6, D)
        found = as_regression_teacher(Predictive(linear(), values)).draws(x, 4)
        gaps = (found[:, None] - by_hand(values, x)[None]).abs().amax((-2, -1))
        assert (gaps.amin(1) < 1e-5).all() and len(set(gaps.argmin(1).tolist())) == 4

    def test_double_precision(self) -> None:
        values, x = samples(3, torch.float64), torch.randn(4, D, dtype=torch.float64)
        found = as_regression_teacher(Predictive(linear(dtype=torch.float64), values)).draws(x)
        torch.testing.assert_close(found, by_hand(values, x))
        assert found.dtype == torch.float64

    def test_a_guide_draws_afresh_and_jointly(self) -> None:
        model = linear()
        guide = AutoNormal(poutine.block(model, hide=["obs"]), init_scale=0.2)
        guide(torch.randn(4, D))
        teacher = as_regression_teacher(Predictive(model, guide=guide, num_samples=8))
        x = torch.randn(5, D)
        first, second = teacher.draws(x, 40), teacher.draws(x, 40)
        assert teacher.max_draws is None and not torch.equal(first, second)
        # Joint over x: the five means of a draw lie on one plane, w in three dimensions.
        rank = torch.linalg.matrix_rank(first[..., 0].double(), atol=1e-4)
        assert rank == D

    def test_the_prior_needs_the_sites_name(self) -> None:
        source = Predictive(linear(), num_samples=10)
        x = torch.randn(5, D)
        with pytest.raises(ValueError, match="`site` must name the observed normal site"):
            as_regression_teacher(source).draws(x)
        assert as_regression_teacher(source, "obs").draws(x).shape == (10, 5, 2)

    def test_one_distribution_for_all_inputs(self) -> None:
        def model(x: Tensor) -> None:
            mean = pyro.sample("m", dist.Normal(0.0, 1.0))
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Normal(mean, 2.0))

        draws = as_regression_teacher(Predictive(model, {"m": torch.tensor([1.0, 3.0])})).draws(
            torch.zeros(4, 1)
        )
        assert draws[..., 0].tolist() == [[1.0] * 4, [3.0] * 4]
        torch.testing.assert_close(draws[..., 1].exp(), torch.full((2, 4), 2.0))

    def test_networks_of_the_house(self) -> None:
        model = bayesian_network(perceptron((D, 4, 1)), likelihood=regression(4.0))
        source = Predictive(model, num_samples=6)
        draws = as_regression_teacher(source, "obs").draws(torch.randn(5, D))
        assert draws.shape == (6, 5, 2)
        torch.testing.assert_close(draws[..., 1].exp(), torch.full((6, 5), 0.5))

    def test_functions(self) -> None:
        values, x = samples(4), torch.randn(6, D)
        means = values["w"] @ x.T

        def held(x: Tensor) -> tuple[Tensor, Tensor]:
            return values["w"] @ x.T, values["scale"][:, None]

        def fresh(x: Tensor, num_draws: int) -> tuple[Tensor, Tensor]:
            return torch.randn(num_draws, 1) * x[:, 0], torch.ones(())

        teacher = as_regression_teacher(held)
        torch.testing.assert_close(teacher.draws(x), by_hand(values, x), **ROUNDING)
        assert teacher.max_draws == 4 and teacher.draws(x, 2).shape == (2, 6, 2)
        assert as_regression_teacher(teacher) is teacher
        torch.testing.assert_close(teacher.draws(x)[..., 0], means)
        teacher = as_regression_teacher(fresh)
        assert teacher.draws(x, 7).shape == (7, 6, 2) and teacher.max_draws is None

    @pytest.mark.parametrize(
        ("function", "error", "message"),
        [
            (lambda x: x, TypeError, r"must return two floating tensors \(loc, scale\)"),
            (lambda x: (x[:, 0], x[:, 0]), ValueError, r"means of shape \(S, N\) with N = 4"),
            (
                lambda x: (x[:, 0][None], torch.ones(3)),
                ValueError,
                r"scales of the means' shape \(1, 4\)",
            ),
            (lambda x: (x[:, 0][None], torch.zeros(())), ValueError, "scales positive"),
            (
                lambda x, num_draws: (x[:, 0][None], torch.ones(())),
                ValueError,
                "as many draws as asked for, 500; got 1",
            ),
        ],
    )
    def test_bad_functions(self, function, error, message) -> None:
        with pytest.raises(error, match=message):
            as_regression_teacher(function).draws(torch.ones(4, 1))

    def test_no_probabilities(self) -> None:
        teacher = as_regression_teacher(predictive())
        assert not hasattr(teacher, "probs") and not hasattr(teacher, "log_probs")
        with pytest.raises(TypeError, match="no class probabilities"):
            pyro_opu.as_teacher(teacher)


class TestDropIn:
    """Keys, shapes and dtypes are those of ``Predictive``; no training is needed to see that."""

    @pytest.mark.parametrize("observe", OBSERVE.values(), ids=OBSERVE)
    @pytest.mark.parametrize(("draws", "rows"), [(5, 4), (1, 3), (4, 1), (4, 4)])
    def test_same_layout(self, observe: Observe, draws: int, rows: int) -> None:
        source, x = predictive(draws, observe), torch.randn(rows, D)
        fast = regression_drop_in(GaussianGuide.for_inputs(x), RegressionTeacher(source), x)
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
        fast = regression_drop_in(GaussianGuide.for_inputs(x), RegressionTeacher(source), x)
        assert fast(x)["obs"].dtype == source(x)["obs"].dtype == torch.float64

    def test_sites_asked_for(self) -> None:
        x = torch.randn(4, D)
        teacher = RegressionTeacher(predictive(6, _deterministic))
        guide = GaussianGuide.for_inputs(x)
        assert list(regression_drop_in(guide, teacher, x)(x)) == ["f", "obs"]
        fast = regression_drop_in(guide, teacher, x, return_sites=["obs", "mean"], num_samples=9)
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
            fast = regression_drop_in(GaussianGuide.for_inputs(x), RegressionTeacher(source), x)
        assert list(fast(x)) == ["obs"]

    def test_draws_have_the_marginals_and_y_lies_around_the_mean(self) -> None:
        class Fixed(nn.Module):
            def forward(self, x: Tensor) -> PredictiveNormal:
                return PredictiveNormal(x[:, 0], x[:, 1], x[:, 2])

        x = torch.tensor([[1.0, 0.0, -1.0], [-2.0, -1.0, 1.0]])
        teacher = as_regression_teacher(lambda x: (x.new_zeros(2, len(x)), x.new_ones(())))
        teacher.draws(x)
        fast = regression_drop_in(
            Fixed(), teacher, x, return_sites=["obs", "mean"], num_samples=100_000
        )
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
            with pytest.raises(TypeError, match="no classes, so there is no Dirichlet"):
                fast.dirichlet(x)
            assert "-> y, sites [obs], num_samples=30" in repr(fast)

    def test_bad_inputs(self) -> None:
        fast = quick()
        with pytest.raises(ValueError, match=r"`x` must have shape \(N, 3\).*got \(5, 2\)"):
            fast(torch.randn(5, 2))
        with pytest.raises(TypeError, match="`x` must have a floating dtype"):
            fast(torch.zeros(5, D, dtype=torch.long))
        with pytest.raises(TypeError, match="must be the first positional argument"):
            fast(z=torch.randn(5, D))

    def test_inputs_picked_from_the_call(self) -> None:
        inner = linear()

        def model(n: int | None, data: Tensor) -> None:
            inner(data)

        source = Predictive(model, samples(30))
        fast = quick(source, inputs=lambda n, data: data)
        x = torch.randn(4, D)
        assert fast(None, x)["obs"].shape == fast(n=3, data=x)["obs"].shape == (30, 4)


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
        fast = quick(source, torch.randn(400, D), num_steps=500, batch_size=128, evaluate_every=100)
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
        report = regression_fidelity(fast, source, x, seed=0)
        assert report["energy_distance"].student < 0.01 < report["energy_distance"].trivial
        assert report["epistemic_spearman"].student > 0.95
        assert fast.report["energy_distance"] < 0.1 * fast.report["history"][0]["energy_distance"]

    def test_heteroscedastic_model_in_other_units(self) -> None:
        """Noise that grows along x, and a y far from zero with a large scale."""
        slopes = 5 + 30 * torch.randn(300, 1)

        def source(x: Tensor) -> tuple[Tensor, Tensor]:
            return 1000 + slopes * x[:, 0], 100 * torch.exp(x[:, 0]).expand(300, -1)

        fast = quick(source, torch.randn(400, 1), num_steps=500, batch_size=128)
        x = torch.linspace(-2, 2, 50)[:, None]
        found = fast.uncertainty(x)
        aleatoric, spread = 1e4 * torch.exp(2 * x[:, 0]), slopes.var() * x[:, 0].square()
        total = aleatoric + spread
        # Optimisation, 500 steps.
        assert ((found.mean - 1000 - slopes.mean() * x[:, 0]) / total.sqrt()).abs().max() < 0.15
        assert (found.aleatoric / aleatoric).log().abs().median() < 0.05
        assert (found.total / total).log().abs().median() < 0.05
        away = x[:, 0].abs() > 1
        assert (found.epistemic / spread).log().abs()[away].median() < 0.2

    def bimodal(self, x: Tensor, num_draws: int) -> tuple[Tensor, Tensor]:
        side = torch.where(torch.rand(num_draws, 1) < 0.3, -1.0, 1.0)
        return (side + 0.1 * torch.randn(num_draws, 1)) * (1 + x[:, 0] ** 2), torch.tensor(0.2)

    def test_a_mixture_beats_one_normal_on_a_bimodal_teacher(self) -> None:
        x, new = torch.randn(400, 1), torch.randn(150, 1)
        reports = {}
        for name in ("gaussian", "mixture"):
            fast = quick(self.bimodal, x, guide=name, num_steps=400, batch_size=64)
            reports[name] = regression_fidelity(fast, self.bimodal, new, num_draws=300, seed=0)
        one, several = reports["gaussian"], reports["mixture"]
        for row in ("energy_distance", "mean_energy_distance"):
            assert one[row].student > 0.1  # deviations: no normal can do better, see `best`
            assert one[row].best > 0.1
            assert several[row].student < 0.02  # optimisation, 400 steps
        # The moments do not suffer from the shape.
        assert several["epistemic_error"].student < 0.15
        assert isinstance(fast.guide, NormalMixtureGuide)

    def test_crps_follows_a_teacher_that_is_not_normal_closer_than_moments(self) -> None:
        x = torch.randn(200, 1)
        options = {"num_steps": 600, "batch_size": 64, "num_draws": 32, "evaluate_every": 30}
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

    def test_seed_and_callers_random_state(self) -> None:
        x, source = torch.randn(60, D), predictive()
        state = torch.get_rng_state()
        one, other = quick(source, x), quick(source, x)
        assert torch.equal(torch.get_rng_state(), state)
        new = torch.randn(5, D)
        assert torch.equal(one.normal(new).mean, other.normal(new).mean)
        assert not torch.equal(quick(source, x, seed=1).normal(new).mean, one.normal(new).mean)

    @pytest.mark.parametrize("guide", ["gaussian", "mixture"])
    def test_resumed_run_ends_as_an_unbroken_one(self, guide: str, tmp_path: Path) -> None:
        source, x, path = predictive(), torch.randn(60, D), tmp_path / "run.ckpt"

        class Broken(Exception):
            pass

        def breaking(x: Tensor) -> tuple[Tensor, Tensor]:
            breaking.calls += 1
            if breaking.calls == breaking.last:
                raise Broken
            draws = teacher.draws(x)
            return draws[..., 0], draws[..., 1].exp()

        teacher = RegressionTeacher(source)
        breaking.calls, breaking.last = 0, -1
        whole = quick(breaking, x, guide=guide)
        breaking.last = breaking.calls - 8  # two steps of four blocks before the end
        breaking.calls = 0
        with pytest.raises(Broken):
            quick(breaking, x, guide=guide, checkpoint=path)
        breaking.last = -1
        resumed = quick(breaking, x, guide=guide, checkpoint=path)
        state = whole.guide.state_dict()
        for name, value in resumed.guide.state_dict().items():
            assert torch.equal(value, state[name]), name

    def test_chains_that_disagree_are_reported(self) -> None:
        values = samples(80)
        values["w"][:40] += 5
        with pytest.warns(MixingWarning, match="R-hat of the means and scales"):
            fast = quick(Predictive(linear(), values))
        assert fast.report["mixing"]["mixed"] is False
        assert quick(predictive(80)).report["mixing"]["mixed"] is True


class TestFile:
    @pytest.mark.parametrize("guide", ["gaussian", "mixture"])
    def test_round_trip(self, guide: str, tmp_path: Path) -> None:
        fast, path, x = quick(guide=guide), tmp_path / "fast.safetensors", torch.randn(5, D)
        fast.save(path)
        for load in (OnePassRegression.load, OnePassPredictive.load):
            again = load(path)
            assert isinstance(again, OnePassRegression)
            assert torch.equal(again.normal(x).mean, fast.normal(x).mean)
            assert torch.equal(again.uncertainty(x).epistemic, fast.uncertainty(x).epistemic)
            torch.manual_seed(1)
            expected = fast(x)
            torch.manual_seed(1)
            assert torch.equal(again(x)["obs"], expected["obs"])
            assert again.report == json.loads(json.dumps(fast.report))
            assert again(x=x)["obs"].shape == expected["obs"].shape
            assert not any(p.requires_grad for p in again.parameters())

    def test_guide_of_ones_own_must_be_given(self, tmp_path: Path) -> None:
        path, x = tmp_path / "own.safetensors", torch.randn(5, D)
        fast = quick(guide=GaussianGuide(nn.Linear(D, 4), 4))
        fast.save(path)
        with pytest.raises(ValueError, match="`guide` must be given"):
            OnePassRegression.load(path)
        with pytest.raises(ValueError, match="parameters of the file; these differ"):
            OnePassRegression.load(path, guide=GaussianGuide(nn.Linear(D, 5), 5))
        again = OnePassPredictive.load(path, guide=GaussianGuide(nn.Linear(D, 4), 4))
        assert torch.equal(again.normal(x).mean, fast.normal(x).mean)

    def test_a_student_of_classes_is_refused(self, tmp_path: Path) -> None:
        guide = PredictiveGuide.for_inputs(torch.randn(5, D), 3)
        OnePassPredictive(guide, (D,), 3).save(tmp_path / "classes.safetensors")
        with pytest.raises(ValueError, match="must hold a regression student"):
            OnePassRegression.load(tmp_path / "classes.safetensors")


def labels(x: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(D, 2), 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("label", dist.Categorical(logits=x @ w))
        pyro.sample("size", dist.Normal((x @ w)[:, 0], 1.0))


def two_outputs(x: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(D, 2), 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(x @ w, 1.0).to_event(1))


def counts(x: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Poisson((x @ w).exp()))


TWO = {"w": torch.randn(6, D, 2)}


class TestDispatch:
    def test_which_sources_are_regressors(self) -> None:
        x = torch.randn(5, D)
        assert is_regressor(predictive(), x, None, None)
        assert is_regressor(as_regression_teacher(predictive()), x, None, None)
        assert not is_regressor(Predictive(labels, TWO), x, None, None)
        assert is_regressor(Predictive(labels, TWO), x, "size", None)
        assert not is_regressor(Predictive(labels, TWO), x, "label", None)
        assert not is_regressor(Predictive(counts, {"w": TWO["w"][..., 0]}), x, None, None)
        assert not is_regressor(lambda x: x.softmax(-1)[None], x, None, None)
        assert not is_regressor(nn.Linear(D, 2), x, None, None)

    def test_a_model_with_a_class_and_a_real_site(self) -> None:
        fast = quick(Predictive(labels, TWO), site="size", return_sites=["size"])
        assert isinstance(fast, OnePassRegression)
        assert fast(torch.randn(4, D))["size"].shape == (6, 4)
        other = quick(Predictive(labels, TWO), return_sites=["label"])
        assert not isinstance(other, OnePassRegression)

    def test_functions_of_classes_go_their_way(self) -> None:
        fast = quick(lambda x: torch.stack([x, -x, x]).softmax(-1))
        assert not isinstance(fast, OnePassRegression)

    @pytest.mark.parametrize(
        ("source", "changes", "error", "message"),
        [
            (None, {"loss": "energy"}, ValueError, "`loss` must be one of .*y is real"),
            (None, {"guide": "dirichlet"}, ValueError, "`guide` must be one of .*'gaussian'"),
            (
                None,
                {"guide": PredictiveGuide.for_inputs(torch.randn(4, D), 2)},
                TypeError,
                "`guide` must return a PredictiveNormal",
            ),
            (
                None,
                {"guide": "mixture", "loss": "moments"},
                ValueError,
                '`loss` "moments" needs a guide that answers with one normal',
            ),
            (None, {"return_sites": ["w"]}, ValueError, "asks for 'w', a latent site"),
            (None, {"return_sites": ["z"]}, ValueError, "neither the observed site nor"),
            (None, {"return_sites": "obs"}, TypeError, "must be a list or tuple of site names"),
            (None, {"site": "w"}, ValueError, "`site` must name an observed site"),
            (None, {"num_steps": 0}, ValueError, "`num_steps` must be a positive integer"),
            (None, {"x": torch.randn(3, D)}, ValueError, "at least 4 transfer inputs"),
            (Predictive(two_outputs, TWO), {}, ValueError, "must hold one number per input"),
            (predictive(1), {}, ValueError, "holds one posterior draw"),
        ],
    )
    def test_failures(self, source, changes, error, message) -> None:
        with pytest.raises(error, match=message):
            quick(source, **changes)

    @pytest.mark.parametrize(
        ("source", "changes", "error", "message"),
        [
            (Predictive(labels, TWO), {"site": "label"}, ValueError, "got 'label', a Categorical"),
            (
                Predictive(counts, {"w": TWO["w"][..., 0]}),
                {},
                ValueError,
                "`site` must name the observed normal site.*Poisson",
            ),
            (lambda x: (x, x), {"site": "obs"}, ValueError, "`site` names a site of a Pyro model"),
            (nn.Linear(D, 2), {}, TypeError, "function x -> .loc, scale. of draws; got Linear"),
        ],
    )
    def test_failures_of_the_direct_call(self, source, changes, error, message) -> None:
        with pytest.raises(error, match=message):
            distill_regression(source, torch.randn(20, D), **changes)


def flat(x: Tensor) -> PredictiveNormal:
    zero = 0 * x[:, 0]
    return PredictiveNormal(zero, zero, zero, validate_args=False)


class TestFidelity:
    def test_a_perfect_student(self) -> None:
        class Perfect(nn.Module):
            def forward(self, x: Tensor) -> PredictiveNormal:
                return PredictiveNormal(x[:, 0], x[:, 1], x[:, 2])

        def source(x: Tensor, num_draws: int) -> tuple[Tensor, Tensor]:
            spread = (x[:, 2] / 2).exp() * torch.randn(num_draws, len(x))
            return x[:, 0] + spread, (x[:, 1] / 2).exp().expand(num_draws, -1)

        x = torch.randn(300, 3)
        report = regression_fidelity(Perfect(), source, x, num_draws=200, seed=0)
        # Monte Carlo over 300 inputs and 200 draws; the floor has the noise of both sides.
        assert report["energy_distance"].student == pytest.approx(0.0, abs=2e-3)
        assert report["energy_distance"].floor == pytest.approx(0.0, abs=4e-3)
        assert report["mean_energy_distance"].student == pytest.approx(0.0, abs=4e-3)
        assert report["kl"].student < 0.7 * report["kl"].floor < 0.02
        assert report["mean_error"].student < report["mean_error"].floor < 0.1
        assert report["aleatoric_error"].student < 1e-5  # rounding: the noise is known
        assert report["epistemic_spearman"].student > 0.98
        for row in ("kl", "energy_distance", "mean_error", "epistemic_error"):
            assert report[row].trivial > 5 * report[row].student
        assert report["aleatoric"].teacher == pytest.approx(float(x[:, 1].exp().mean()), rel=1e-4)

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
        assert report.faithful and str(report).startswith("Faithful: KL 1.0")
        # Monte Carlo of the pairs of draws. Judged as a sample it would be -0.012, f's -0.033.
        reports = [fidelity(perfect, held, x, seed=seed) for seed in range(5)]
        for name, most in (("energy_distance", 2e-3), ("mean_energy_distance", 6e-3)):
            distances = torch.tensor([getattr(report, name) for report in reports])
            assert distances.mean().abs() < 4 * distances.std() / 5**0.5 < most

    def test_fidelity_takes_a_regressor(self) -> None:
        x, source = torch.randn(20, D), predictive(30)
        fast = quick(source)
        report = fidelity(fast, source, x, seed=0)
        assert isinstance(report, RegressionFidelity)
        assert report.to_dict() == regression_fidelity(fast, source, x, seed=0).to_dict()
        assert report.kl_ratio == report["kl_ratio"].student == report.kl / report.kl_attainable
        assert report.to_dict()["verdict"] == report.verdict
        far = fidelity(fast, source, x, extra={"far": 9 * x}, seed=0)["far"]
        assert far.num_inputs == 20 and far.epistemic_teacher > 10 * report.epistemic_teacher
        with pytest.raises(TypeError, match="`student` must answer an input with a PredictiveNor"):
            fidelity(lambda x: torch.distributions.Dirichlet(torch.ones(len(x), 2)), source, x)

    def test_report_prints_and_is_json(self) -> None:
        x, source = torch.randn(20, D), predictive(30)
        report = regression_fidelity(quick(source), source, x, num_draws=500, seed=0)
        text = str(report)
        assert "epistemic variance" in text and "15 teacher draws judge" in text
        assert json.loads(json.dumps(report.to_dict()))["num_draws"] == 15
        again = regression_fidelity(quick(source), source, x, seed=0)
        assert again["kl"].floor == report["kl"].floor
        with pytest.raises(KeyError, match="no row 'w1'; there are kl, kl_ratio, mean_error"):
            report["w1"]

    @pytest.mark.parametrize(
        ("student", "source", "options", "error", "message"),
        [
            (lambda x: x, predictive(), {}, TypeError, "`student` must answer .*returned Tensor"),
            (flat, predictive(3), {}, ValueError, "at least 4 posterior draws.*holds 3"),
            (lambda x: flat(x.T), predictive(), {}, ValueError, "`student` must answer with batch"),
            (lambda x: flat(x / 0), predictive(), {}, ValueError, "NaN at 1 of 1 inputs"),
            (flat, predictive(), {"chunk_size": 0}, ValueError, "`chunk_size` must be a positive"),
            (None, predictive(), {"num_draws": 1}, ValueError, "`num_draws` must be an integer of"),
        ],
    )
    def test_failures(self, student, source, options, error, message) -> None:
        with pytest.raises(error, match=message):
            regression_fidelity(student, source, torch.randn(5, D), **options)
