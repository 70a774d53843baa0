"""Normals with two variances, their mixtures, the guides that answer with them, and the losses."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_opu.distributions.normal import Components, PredictiveNormal, PredictiveNormalMixture
from pyro_opu.guides.normal import (
    LOG_VARIANCES,
    REGRESSION_GUIDES,
    GaussianGuide,
    NormalMixtureGuide,
)
from pyro_opu.metrics.normals import (
    crps_of_mean,
    crps_of_y,
    energies,
    energies_of_draws,
    energies_of_moments,
    energy_of_draws,
    energy_of_mean,
    energy_of_normals,
    energy_of_y,
    expected_absolute,
    kl_of_normals,
    teacher_moments,
)
from pyro_opu.objectives.normal import (
    NormalCRPS,
    NormalMoments,
    RegressionObjective,
    as_regression_objective,
)

N, K, S = 5, 3, 7


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def some_normal(rows: int = N) -> PredictiveNormal:
    return PredictiveNormal(double(rows), double(rows), double(rows))


def some_mixture(rows: int = N, parts: int = K) -> PredictiveNormalMixture:
    weights = double(rows, parts).log_softmax(-1)
    return PredictiveNormalMixture(
        Components(weights, 2 * double(rows, parts), double(rows, parts), double(rows, parts))
    )


def some_draws(draws: int = S, rows: int = N) -> Tensor:
    return double(draws, rows, 2)


ANSWERS = {"normal": some_normal, "mixture": some_mixture}


class TestAnswers:
    @pytest.mark.parametrize("make", ANSWERS.values(), ids=ANSWERS)
    def test_variance_is_the_sum_of_its_parts(self, make) -> None:
        answer = make()
        assert answer.batch_shape == (N,) and answer.event_shape == ()
        torch.testing.assert_close(answer.aleatoric + answer.epistemic, answer.variance)
        torch.testing.assert_close(answer.log_epistemic.exp(), answer.epistemic)
        normal = answer.normal()
        for name in ("mean", "variance", "aleatoric", "epistemic"):
            torch.testing.assert_close(getattr(normal, name), getattr(answer, name))

    @pytest.mark.parametrize("make", ANSWERS.values(), ids=ANSWERS)
    def test_draws_have_the_moments(self, make) -> None:
        answer = make()
        f, y = answer.components().draw(200_000)
        assert f.shape == y.shape == (200_000, N)
        # Monte Carlo: five standard errors, the variances' from draws with a kurtosis of at most 9.
        error = 5 * (answer.variance / len(f)).sqrt()
        assert ((f.mean(0) - answer.mean).abs() < error).all()
        assert ((y.mean(0) - answer.mean).abs() < error).all()
        rough = 5 * math.sqrt(8 / len(f))
        torch.testing.assert_close(f.var(0), answer.epistemic, rtol=rough, atol=0)
        torch.testing.assert_close(y.var(0), answer.variance, rtol=rough, atol=0)
        torch.testing.assert_close((y - f).var(0), answer.aleatoric, rtol=rough, atol=0)

    def test_mixture_by_hand(self) -> None:
        mixture = some_mixture(1, 2)
        parts, y = mixture.components(), torch.linspace(-30, 30, 20_001, dtype=torch.float64)
        weights = parts.log_weights.exp()[0]
        variances = parts.log_aleatoric.exp()[0] + parts.log_epistemic.exp()[0]
        density = sum(
            w * dist.Normal(m, v.sqrt()).log_prob(y).exp()
            for w, m, v in zip(weights, parts.mean[0], variances, strict=True)
        )
        torch.testing.assert_close(mixture.log_prob(y[:, None]).exp()[:, 0], density)
        mean = torch.trapezoid(density * y, y)
        # The trapezoid rule on a smooth function that ends at zero is exact to rounding.
        torch.testing.assert_close(mixture.mean[0], mean)
        variance = torch.trapezoid(density * (y - mean).square(), y)
        torch.testing.assert_close(mixture.variance[0], variance)

    def test_mixture_of_one_is_a_normal(self) -> None:
        normal = some_normal()
        mixture = PredictiveNormalMixture(normal.components())
        y = double(4, N)
        torch.testing.assert_close(mixture.log_prob(y), normal.log_prob(y))
        torch.testing.assert_close(mixture.epistemic, normal.epistemic)

    @pytest.mark.parametrize("make", ANSWERS.values(), ids=ANSWERS)
    def test_in_a_plate(self, make) -> None:
        answer = make()
        wide = answer.expand((3, N))
        assert wide.batch_shape == (3, N) and isinstance(wide, type(answer))
        torch.testing.assert_close(wide.epistemic, answer.epistemic.expand(3, N))

        def model() -> Tensor:
            with pyro.plate("outer", 3, dim=-2), pyro.plate("data", N, dim=-1):
                return pyro.sample("y", answer)

        assert model().shape == (3, N)

    def test_one_input(self) -> None:
        for make in ANSWERS.values():
            assert make(1).components().draw(4)[1].shape == (4, 1)

    def test_kl_of_normals_is_pyros(self) -> None:
        p, q = some_normal(), some_normal()
        plain = [dist.Normal(each.mean, each.variance.sqrt()) for each in (p, q)]
        expected = torch.distributions.kl_divergence(*plain)
        torch.testing.assert_close(kl_of_normals(p, q), expected)


class TestGuides:
    @pytest.mark.parametrize("name", REGRESSION_GUIDES)
    def test_units_inside(self, name: str) -> None:
        """The same network answers in other units where y has other units."""
        x, y = torch.randn(30, 4), torch.randn(30)
        guide = REGRESSION_GUIDES[name].for_inputs(x, y)
        before = guide(x)
        guide.fit_units(3 + 10 * y)
        after = guide(x)
        # Rounding of float32 in the affine map.
        torch.testing.assert_close(after.mean, 3 + 10 * before.mean, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(after.epistemic, 100 * before.epistemic, rtol=1e-4, atol=0)
        torch.testing.assert_close(after.aleatoric, 100 * before.aleatoric, rtol=1e-4, atol=0)

    def test_images_hidden_widths_and_one_input(self) -> None:
        images = torch.rand(4, 1, 12, 12)
        assert GaussianGuide.for_inputs(images)(images[:1]).variance.shape == (1,)
        guide = GaussianGuide.for_inputs(torch.randn(9, 2), hidden=(6, 5))
        assert guide.head.in_features == 5 and float(guide.scale) == 1.0

    def test_number_of_components(self) -> None:
        x = torch.randn(6, 2)
        guide = NormalMixtureGuide.for_inputs(x, num_components=7)
        assert guide(x).components().mean.shape == (6, 7)
        again = NormalMixtureGuide.from_config(guide.config)
        assert again.num_components == 7
        # Components that begin apart do not all learn the same.
        assert guide(x).components().mean.std(-1).min() > 0.3

    def test_variances_keep_within_their_range(self) -> None:
        guide = GaussianGuide(nn.Identity(), 2)
        answer = guide(torch.tensor([[1e9, -1e9], [-1e9, 1e9]]))
        for name in ("log_aleatoric", "log_epistemic"):
            value = getattr(answer, name)
            assert torch.isfinite(value).all() and value.min() >= LOG_VARIANCES[0]
            assert value.max() <= LOG_VARIANCES[1] + 1e-4  # rounding of the soft clamp's ends

    def test_constant_y_has_unit_scale(self) -> None:
        guide = GaussianGuide.for_inputs(torch.randn(9, 2), torch.full((9,), 4.0))
        assert float(guide.shift) == 4.0 and float(guide.scale) == 1.0


class TestMoments:
    def test_smallest_at_the_teachers_moments(self) -> None:
        draws = some_draws(50)
        teacher = teacher_moments(draws)
        parts = [teacher.mean, teacher.log_aleatoric, teacher.log_epistemic]
        for part in parts:
            part.requires_grad_(True)
        loss = NormalMoments()
        loss(PredictiveNormal(*parts), draws, draws).backward()
        for part in parts:
            torch.testing.assert_close(part.grad, torch.zeros_like(part), rtol=0, atol=1e-12)
        least = loss.parts(teacher, draws, draws)
        for i, name in enumerate(least):
            for step in (-0.1, 0.1):
                moved = [part + step * (i == j) for j, part in enumerate(parts)]
                assert loss.parts(PredictiveNormal(*moved), draws, draws)[name] > least[name]

    def test_an_error_of_the_mean_is_no_epistemic_uncertainty(self) -> None:
        draws, normal = some_draws(), some_normal()
        away = PredictiveNormal(normal.mean + 5, normal.log_aleatoric, normal.log_epistemic)
        near, far = (NormalMoments().parts(each, draws, draws) for each in (normal, away))
        torch.testing.assert_close(near["epistemic"], far["epistemic"])
        assert far["mean"] > near["mean"]

    def test_single_draws_have_the_same_minimum_on_average(self) -> None:
        """One draw per step, as in online distillation."""
        draws = some_draws(40)
        f = draws[..., 0]
        mean, variance = f.mean(0), f.var(0, correction=0)
        log_epistemic = variance.log().requires_grad_(True)
        student = PredictiveNormal(mean, torch.zeros_like(mean), log_epistemic)
        for draw in draws:
            NormalMoments().parts(student, draw[None], draw)["epistemic"].backward()
        zero = torch.zeros_like(mean)
        torch.testing.assert_close(log_epistemic.grad, zero, rtol=0, atol=1e-12)

    def test_teacher_moments_by_hand(self) -> None:
        draws = torch.tensor([[[1.0, 0.0]], [[3.0, math.log(2)]]])
        moments = teacher_moments(draws)
        assert moments.mean.tolist() == [2.0]
        torch.testing.assert_close(moments.aleatoric, torch.tensor([2.5]))
        torch.testing.assert_close(moments.epistemic, torch.tensor([2.0]))


class TestEnergy:
    def test_expected_absolute(self) -> None:
        mean, variance = torch.tensor([0.7, -2.0, 0.0]), torch.tensor([2.0, 0.0, 0.0])
        draws = mean.double() + variance.double().sqrt() * double(1_000_000, 3)
        # Monte Carlo: five standard errors of a mean of 10^6.
        torch.testing.assert_close(
            expected_absolute(mean, variance).double(), draws.abs().mean(0), rtol=0, atol=7e-3
        )
        inputs = (double(4).requires_grad_(True), double(4).exp().requires_grad_(True))
        assert torch.autograd.gradcheck(expected_absolute, inputs)

    def test_crps_is_the_integral_of_squared_differences(self) -> None:
        mixture, draws = some_mixture(2), some_draws(4, 2)
        t = torch.linspace(-60, 60, 60_001, dtype=torch.float64)[:, None]
        mine = mixture.cdf(t)
        theirs = dist.Normal(draws[..., 0], draws[..., 1].exp()).cdf(t[:, None]).mean(1)
        # E|X - Y| - E|X - X'| / 2 - E|Y - Y'| / 2 is the integral of (F - G) squared.
        integral = torch.trapezoid((mine - theirs).square(), t, dim=0)
        own = torch.trapezoid(theirs * (1 - theirs), t, dim=0)
        # The trapezoid rule with steps of 0.002 on scales above 0.05.
        torch.testing.assert_close(
            crps_of_y(mixture.components(), draws), integral + own, rtol=1e-5, atol=1e-6
        )

    def test_crps_of_the_mean_leaves_the_noise_out(self) -> None:
        mixture, draws = some_mixture(), some_draws()
        parts = mixture.components()
        quiet = torch.stack([draws[..., 0], torch.full_like(draws[..., 0], -100.0)], -1)
        same = Components(
            parts.log_weights, parts.mean, torch.full_like(parts.mean, -200.0), parts.log_epistemic
        )
        torch.testing.assert_close(crps_of_mean(parts, draws), crps_of_y(same, quiet))

    def test_energy_by_the_obvious_loop(self) -> None:
        mixture, draws = some_mixture(1), some_draws(6, 1)
        parts = mixture.components()
        f, noise = draws[:, 0, 0], (2 * draws[:, 0, 1]).exp()
        weights, mean = parts.log_weights.exp()[0], parts.mean[0]
        variance = (parts.log_aleatoric.exp() + parts.log_epistemic.exp())[0]

        def cost(m: Tensor, v: Tensor) -> Tensor:
            return expected_absolute(m, v)

        cross = sum(
            weights[k] * cost(f[s] - mean[k], noise[s] + variance[k]) / 6
            for s in range(6)
            for k in range(K)
        )
        own = sum(
            weights[k] * weights[j] * cost(mean[k] - mean[j], variance[k] + variance[j])
            for k in range(K)
            for j in range(K)
        )
        theirs = sum(
            cost(f[s] - f[r], noise[s] + noise[r]) / 30
            for s in range(6)
            for r in range(6)
            if r != s
        )
        expected = (2 * cross - own - theirs)[None]
        torch.testing.assert_close(energy_of_y(parts, draws), expected)

    def test_zero_for_a_perfect_answer(self) -> None:
        """Draws of f from the student itself, under its own noise."""
        rows = 400
        normal = PredictiveNormal(double(rows), torch.zeros(rows).double(), double(rows))
        f, _ = normal.components().draw(300)
        draws = torch.stack([f, torch.zeros_like(f)], -1)
        wrong = PredictiveNormal(normal.mean + 0.5, normal.log_aleatoric, normal.log_epistemic)
        for energy in (energy_of_y, energy_of_mean):
            found = energy(normal.components(), draws)
            # Monte Carlo: five standard errors over independent inputs.
            assert found.mean().abs() < 5 * found.std() / math.sqrt(rows)
            assert energy(wrong.components(), draws).mean() > 20 * found.mean().abs()
        between = energy_of_draws(draws[:150], draws[150:])
        assert between.mean().abs() < 5 * between.std() / math.sqrt(rows)

    def test_of_two_normals(self) -> None:
        one, other = some_normal(), some_normal()
        # A teacher of one draw is a normal; its own pairs are those of this normal.
        draw = torch.stack([other.mean, other.log_variance / 2], -1)[None]
        own = expected_absolute(torch.zeros(N).double(), 2 * other.variance)
        expected = 2 * crps_of_y(one.components(), draw) - own
        found = energy_of_normals(one.mean - other.mean, one.variance, other.variance)
        torch.testing.assert_close(found, expected)

    def test_gradcheck(self) -> None:
        draws = some_draws(3, 2)

        def loss(logits: Tensor, mean: Tensor, aleatoric: Tensor, epistemic: Tensor) -> Tensor:
            parts = Components(logits.log_softmax(-1), mean, aleatoric, epistemic)
            return crps_of_y(parts, draws) + crps_of_mean(parts, draws)

        inputs = [double(2, K).requires_grad_(True) for _ in range(4)]
        assert torch.autograd.gradcheck(loss, inputs)

    def test_objective_is_smallest_at_a_teacher_that_is_a_mixture(self) -> None:
        mixture = some_mixture(1, 2)
        parts = [each.clone() for each in vars(mixture.components()).values()]
        k = torch.multinomial(parts[0].exp(), 200_000, replacement=True)[0]
        f = parts[1][0, k] + (parts[3][0, k] / 2).exp() * double(200_000)
        draws = torch.stack([f, torch.zeros_like(f)], -1)[:, None]
        parts[2] = torch.zeros_like(parts[2])  # so the noise is the same in both components
        for part in parts[1:]:
            part.requires_grad_(True)
        loss = NormalCRPS()(PredictiveNormalMixture(Components(*parts)), draws, draws)
        loss.backward()
        # Monte Carlo over 2 x 10^5 draws.
        assert all(part.grad.abs().max() < 0.01 for part in parts[1:])

    def test_moments_are_an_option(self) -> None:
        mixture, draws = some_mixture(), some_draws()
        with_moments = NormalCRPS().parts(mixture, draws, draws)
        without = NormalCRPS(moments=0.0).parts(mixture, draws, draws)
        expected = 0.1 * NormalMoments()(mixture.normal(), draws, draws)
        torch.testing.assert_close(with_moments["moments"], expected)
        assert float(without["moments"]) == 0.0
        assert with_moments["crps_of_y"] == without["crps_of_y"]


class TestNames:
    def test_by_name_and_as_objects(self) -> None:
        assert isinstance(as_regression_objective("moments"), NormalMoments)
        assert isinstance(as_regression_objective("crps"), NormalCRPS)
        loss = NormalCRPS(0.5)
        assert as_regression_objective(loss) is loss and "moments=0.5" in repr(loss)
        assert isinstance(loss, RegressionObjective)

    def test_a_negative_weight(self) -> None:
        with pytest.raises(ValueError, match="`moments` must be .* of at least 0; got -1"):
            NormalCRPS(-1)


@pytest.mark.parametrize(
    "of_mean",
    [
        lambda student, draws: energies(student, draws)[1],
        lambda student, draws: energies_of_moments(student, draws)[1],
        lambda student, draws: energies_of_draws(draws + 0.3, draws)[1],
        lambda student, draws: NormalCRPS().parts(student, draws, draws)["crps_of_mean"],
    ],
    ids=["energies", "of moments", "of draws", "crps"],
)
def test_the_mean_is_judged_in_its_own_deviation_or_a_tenth_of_ys(of_mean) -> None:
    """Whatever the noise, if f has a tenth of y's deviation; below, an error of y is the unit."""
    f = double(40, 1)
    f = (f - f.mean()) / f.std()
    one = torch.ones(1, dtype=torch.float64)
    found = {}
    for noise in (0.1, 9.0, 11.0, 1e4):
        student = PredictiveNormal(0.3 * one, 2 * (noise * one).log(), 0 * one)
        draws = torch.stack([f, (noise * one).log().expand_as(f)], -1)
        found[noise] = float(of_mean(student, draws).mean())
    assert found[9.0] == pytest.approx(found[0.1])
    units = {noise: found[noise] * (1 + noise**2) ** 0.5 for noise in (11.0, 1e4)}
    assert units[1e4] == pytest.approx(units[11.0]) and found[11.0] < found[9.0]


@pytest.mark.parametrize("deviation", [1e-3, 1.0, 1e3])
def test_noise_far_below_and_far_above_the_deviation_of_y_is_within_the_range(deviation) -> None:
    guide = GaussianGuide(nn.Flatten(), 1)
    guide.fit_units(torch.tensor([-5.0, 5.0]))
    nn.init.zeros_(guide.head.weight)
    nn.init.constant_(guide.head.bias, 2 * math.log(deviation))
    answer = guide(torch.ones(1, 1))
    expected = pytest.approx(25 * deviation**2, rel=0.01)
    assert answer.aleatoric.item() == expected and answer.epistemic.item() == expected


@pytest.mark.parametrize("draws", [1, S])
def test_the_mean_is_pulled_by_its_error_in_units_of_the_variance_of_y_alone(draws: int) -> None:
    """A single draw, too, teaches the epistemic variance with the mean held."""
    leaves = [double(N).requires_grad_() for _ in range(3)]
    student, teacher = PredictiveNormal(*leaves), some_draws(draws)
    (pull,) = torch.autograd.grad(NormalMoments()(student, teacher, double(N, 1)), leaves[:1])
    expected = (student.mean - teacher[..., 0].mean(0)) / student.variance / N
    torch.testing.assert_close(pull, expected.detach())


def test_the_mixture_of_all_draws_that_a_posterior_holds_is_at_no_distance_from_it() -> None:
    draws = some_draws()
    f, log_scale = draws.unbind(-1)
    parts = torch.zeros_like(f) - math.log(S), f, 2 * log_scale, torch.full_like(f, -80.0)
    student = PredictiveNormalMixture(Components(*(part.T for part in parts)))
    for found in energies(student, draws, size=S):
        torch.testing.assert_close(found, torch.zeros_like(found), rtol=0, atol=1e-12)
