"""Bayesian Dark Knowledge: the steps against slow loops, known answers, and failures."""

from __future__ import annotations

import copy
import gc
import weakref

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from torch import nn

import pyro_opu
from pyro_opu import OnePassPredictive, as_teacher
from pyro_opu.distributions.normal import PredictiveNormal
from pyro_opu.guides import PointGuide
from pyro_opu.guides.normal import GaussianGuide
from pyro_opu.objectives import CrossEntropy
from pyro_opu.objectives.normal import NormalMoments
from pyro_opu.rivals.bayesian_dark_knowledge import dark_knowledge
from pyro_opu.rivals.online import online_dark_knowledge
from pyro_opu.samplers import SGLD, Constant, Halving
from pyro_opu.training.descent import DistillationError
from pyro_opu.transfer import Box, HeldOut, Jitter

QUIET = {"seed": 0, "progress": False}


def classifier(x, y=None):
    weight = pyro.sample("weight", dist.Normal(torch.zeros(2, 3), 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Categorical(logits=x @ weight), obs=y)


def regressor(x, y=None):
    weight = pyro.sample("weight", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Normal(x @ weight, 0.5), obs=y)


def samples(model, count=3, **shapes):
    torch.manual_seed(3)
    return {name: torch.randn(count, *shape) for name, shape in shapes.items()}


def labelled(rows=30):
    torch.manual_seed(1)
    return torch.randn(rows, 2), torch.arange(rows) % 3


class TestStep:
    @pytest.mark.parametrize("gamma", [0.0, 0.3])
    def test_plain_gradient_step_is_algorithm_1(self, gamma):
        x = torch.randn(1, 2)  # one transfer input: D' is known
        target = torch.tensor([[0.7, 0.2, 0.1]])
        torch.manual_seed(0)
        guide = PointGuide.for_inputs(torch.randn(9, 2), 3, hidden=(4,))
        by_hand = copy.deepcopy(guide)
        dark_knowledge(
            lambda x: target.expand(1, len(x), 3), x, guide=guide, transfer=HeldOut(), num_steps=1,
            batch_size=7, learning_rate=Constant(0.1), prior_precision=gamma,
            optimizer=torch.optim.SGD, **QUIET,
        )  # fmt: skip
        loss = -(target * by_hand(x).log_mean).sum()
        for name, grad in zip(
            dict(by_hand.named_parameters()),
            torch.autograd.grad(loss, list(by_hand.parameters())),
            strict=True,
        ):
            w = by_hand.get_parameter(name)
            torch.testing.assert_close(guide.get_parameter(name), w - 0.1 * (grad + gamma * w))

    def test_eq_4_gradient_is_student_less_teacher(self):
        logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
        target = torch.randn(4, 3, dtype=torch.float64).softmax(-1)
        guide = PointGuide(nn.Identity(), 3, 3).double()
        CrossEntropy()(guide.answer(logits), target[None], logits).backward()
        torch.testing.assert_close(logits.grad, (logits.softmax(-1) - target).detach() / 4)

    def test_eq_5_and_the_two_parts_of_eq_6(self):
        torch.manual_seed(0)
        mu, noise_part, mean_part, f = torch.randn(4, 6, dtype=torch.float64)
        leaves = [mu.requires_grad_(), noise_part.requires_grad_(), mean_part.requires_grad_()]
        variance = 0.3
        draws = torch.stack([f, torch.full_like(f, variance).log() / 2], -1)[None]
        loss = NormalMoments()(PredictiveNormal(*leaves), draws, f)
        by_mu, by_noise, by_mean = torch.autograd.grad(6 * loss, leaves)
        total = (noise_part.exp() + mean_part.exp()).detach()
        torch.testing.assert_close(by_mu, (mu - f) / total)  # eq. 5
        torch.testing.assert_close(by_noise, 0.5 * (1 - (-noise_part).exp() * variance))
        torch.testing.assert_close(by_mean, 0.5 * (1 - (-mean_part).exp() * (f - mu).square()))

    def test_a_number_is_the_top_of_a_cosine_and_a_schedule_is_itself(self):
        class Recorded(torch.optim.SGD):
            rates: list[float] = []

            def step(self, *args, **kwargs):
                self.rates.append(self.param_groups[0]["lr"])
                return super().step(*args, **kwargs)

        teacher = lambda x: torch.full((1, len(x), 2), 0.5)  # noqa: E731
        settings = {"num_steps": 100, "optimizer": Recorded, **QUIET}
        dark_knowledge(teacher, torch.randn(9, 2), learning_rate=0.2, **settings)
        rates, Recorded.rates = Recorded.rates, []
        assert max(rates) == pytest.approx(0.2) and rates[-1] < 0.01
        dark_knowledge(teacher, torch.randn(9, 2), learning_rate=Halving(0.1, every=60), **settings)
        assert Recorded.rates == [0.1] * 60 + [0.05] * 40


class TestKnownAnswers:
    @pytest.mark.slow
    def test_point_student_has_the_mean_of_a_linear_teacher(self):
        torch.manual_seed(0)
        draws = samples(classifier, 40, weight=(2, 3))
        predictive, x = Predictive(classifier, draws), torch.randn(300, 2)
        guide = PointGuide.for_inputs(x, 3, hidden=(16,))
        fast = dark_knowledge(
            predictive, x, guide=guide, num_steps=1000, learning_rate=3e-2, **QUIET
        )
        new = torch.randn(200, 2)
        mean = as_teacher(predictive).probs(new).mean(0)
        log_ratio = mean.log() - fast.distribution(new).log_mean
        # one draw per step is noise that the falling rate averages; measured 0.002 to 0.003
        assert float((mean * log_ratio).sum(-1).mean()) < 0.01
        assert float(fast.uncertainty(new).epistemic.max()) < 1e-6

    @pytest.mark.slow
    def test_online_regression_has_the_exact_predictive(self):
        torch.manual_seed(0)
        x = torch.randn(20, 2)
        y = x @ torch.tensor([1.0, -2.0]) + 0.5 * torch.randn(20)
        kernel = SGLD(regressor, step_size=5e-3)
        guide = GaussianGuide.for_inputs(x, hidden=(16,))
        fast = online_dark_knowledge(
            kernel, (x, y), 1.5 * torch.randn(200, 2), form="normal", guide=guide,
            transfer=HeldOut(), num_draws=1500, warmup_steps=30, learning_rate=1e-2, **QUIET,
        )  # fmt: skip
        covariance = torch.linalg.inv(torch.eye(2) + 4 * x.T @ x)
        mean = covariance @ (4 * x.T @ y)
        new = torch.randn(50, 2)
        exact = (new @ covariance * new).sum(-1) + 0.25
        found = fast.normal(new)
        # the noise of the last steps; measured 0.08 and 0.02. The variance of the noise alone, or
        # of one draw, would be off by 0.25 in the logarithm.
        assert float(((found.mean - new @ mean).square() / exact).mean().sqrt()) < 0.2
        assert float((found.variance / exact).log().abs().mean()) < 0.1
        parts = fast.uncertainty(new)
        # Over five seeds the largest of 50 is .014 to .07 off, their mean at most .006. Were it
        # the variance of y, its mean would be .10 off, and the outermost input .5.
        off = parts.aleatoric / 0.25 - 1
        assert abs(float(off.mean())) < 0.02 and float(off.abs().max()) < 0.15
        assert fast(new)["obs"].shape == (500, 50)


class TestOnline:
    def settings(self, **more):
        return {"num_draws": 12, "warmup_steps": 2, "batch_size": 5, **QUIET, **more}

    def test_is_the_slow_loop_over_stored_draws(self):
        x, y = labelled()
        kernel = SGLD(classifier, step_size=1e-2, batch_size=10, thinning=2)
        torch.manual_seed(7)
        guide = PointGuide.for_inputs(x, 3, hidden=(6,))
        mine = copy.deepcopy(guide)
        online_dark_knowledge(
            kernel, (x, y), x, guide=guide, transfer=HeldOut(), learning_rate=Constant(0.05),
            optimizer=torch.optim.SGD, **self.settings(),
        )  # fmt: skip
        torch.manual_seed(0)
        policy, steps = HeldOut().fit(x), torch.optim.SGD(mine.parameters(), lr=0.05)
        for draw in kernel.stream(x, y, num_samples=12, warmup_steps=2):
            rows = policy.sample(5)
            probs = (rows @ draw["weight"]).softmax(-1)
            loss = -(probs * mine(rows).log_mean).sum(-1).mean()
            steps.zero_grad()
            loss.backward()
            steps.step()
        for name, value in mine.named_parameters():
            torch.testing.assert_close(guide.get_parameter(name), value)

    def test_no_draw_is_kept(self):
        x, y = labelled()
        alive: list[weakref.ref] = []

        class Watched(SGLD):
            def stream(self, *args, **kwargs):
                for draw in super().stream(*args, **kwargs):
                    alive.append(weakref.ref(draw["weight"]))
                    yield draw

        online_dark_knowledge(Watched(classifier, step_size=1e-2), (x, y), x, **self.settings())
        gc.collect()
        assert len(alive) == 12 and not any(ref() is not None for ref in alive)

    def test_serves_as_the_predictive_and_the_measures(self, tmp_path):
        x, y = labelled()
        kernel = SGLD(classifier, step_size=1e-2)
        fast = online_dark_knowledge(
            kernel, (x, y), x, form="dirichlet", num_samples=20, **self.settings()
        )
        draws = list(SGLD(classifier, step_size=1e-2).stream(x, y, num_samples=20))
        stacked = {"weight": torch.stack([draw["weight"] for draw in draws])}
        predictive = Predictive(classifier, stacked)
        mine, theirs = fast(x), predictive(x)
        assert {k: (v.shape, v.dtype) for k, v in mine.items()} == {
            k: (v.shape, v.dtype) for k, v in theirs.items()
        }
        assert pyro_opu.fidelity(fast, predictive, x).to_dict()
        fast.save(tmp_path / "fast.safetensors")
        loaded = pyro_opu.OnePassPredictive.load(tmp_path / "fast.safetensors")
        torch.testing.assert_close(loaded.dirichlet(x).mean, fast.dirichlet(x).mean)

    def test_inputs_picks_the_input(self):
        x, y = labelled()

        def counted(n, x, y=None):
            return classifier(x, y)

        fast = online_dark_knowledge(
            SGLD(counted, step_size=1e-2), (30, x, y), x, inputs=lambda n, x: x, **self.settings()
        )
        assert fast(4, x[:4])["obs"].shape == (500, 4)


class TestOffline:
    def test_regressor_serves_as_the_predictive_and_is_saved(self, tmp_path):
        predictive = Predictive(regressor, samples(regressor, 7, weight=(2,)))
        x = torch.randn(20, 2)
        fast = dark_knowledge(predictive, x, form="normal", num_steps=4, **QUIET)
        assert fast.outcome.kind == "real" and isinstance(fast.guide, GaussianGuide)
        mine, theirs = fast(x)["obs"], predictive(x)["obs"]
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        fast.save(tmp_path / "fast.safetensors")
        loaded = OnePassPredictive.load(tmp_path / "fast.safetensors")
        torch.testing.assert_close(loaded.normal(x).mean, fast.normal(x).mean)

    def test_a_regression_student_starts_in_the_units_of_y(self):
        far = {"weight": 1000 + torch.randn(7, 2)}
        x = 1 + torch.rand(50, 2)
        fast = dark_knowledge(
            Predictive(regressor, far), x, form="normal", num_steps=1, transfer=HeldOut(), **QUIET
        )
        mean = (x @ far["weight"].T).mean(1)
        # an untaught network is within a few of the targets' deviations; without units it is at 0
        assert float((fast.normal(x).mean - mean).abs().mean()) < 3 * float(mean.std())

    def test_any_guide_by_name(self):
        teacher = lambda x: torch.full((2, len(x), 2), 0.5)  # noqa: E731
        for options, kind in (({}, PointGuide), ({"guide": "dirichlet"}, pyro_opu.PredictiveGuide)):
            fast = dark_knowledge(teacher, torch.randn(9, 2), num_steps=2, **options, **QUIET)
            assert isinstance(fast.guide, kind)

    def test_not_finite_says_where(self):
        teacher = lambda x: torch.full((2, len(x), 2), 0.5)  # noqa: E731
        with pytest.raises(DistillationError, match="not finite at step .*learning rate"):
            dark_knowledge(
                teacher, torch.randn(9, 2), learning_rate=Constant(1e30), num_steps=50,
                optimizer=torch.optim.SGD, **QUIET,
            )  # fmt: skip


class TestStudentData:
    def test_equal_scales_of_jitter_are_the_papers_perturbation(self):
        torch.manual_seed(0)
        x = torch.randn(50, 2) * torch.tensor([1.0, 10.0])
        one = Jitter(scale=0.05, min_scale=0.05).fit(x)
        off = torch.stack([(one.sample(2000)[:, None] - x).abs().amin(1)[:, 0]])
        assert float(off.max()) < 0.05 * float(x[:, 0].std()) * 6  # six deviations of the noise

    def test_box_of_two_corners_is_uniform(self):
        torch.manual_seed(0)
        corners = torch.tensor([[-10.0, -10.0], [10.0, 10.0]])
        drawn = Box(expand=0.0).fit(corners).sample(4000)
        assert drawn.min() >= -10 and drawn.max() <= 10
        # four errors of the variance of 4000 uniform numbers, 0.9 of it per root of the count
        torch.testing.assert_close(
            drawn.var(0), torch.full((2,), 100 / 3), rtol=4 * 0.9 / 4000**0.5, atol=0.0
        )
