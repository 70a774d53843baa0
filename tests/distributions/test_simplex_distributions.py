"""Distributions on the simplex: every family through one list, then what each promises."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from pyro_opu import PredictiveDirichlet, inverse_laplace_bridge, uncertainty
from pyro_opu.distributions import (
    DirichletMixture,
    Empirical,
    LogisticNormal,
    NormalSticks,
    SimplexDistribution,
)
from pyro_opu.objectives.energy import energy_distance_loss

MEASURES = (
    "total",
    "aleatoric",
    "epistemic",
    "expected_pairwise_kl",
    "variance",
    "max_probability",
    "differential_entropy",
    "concentration",
)
#: The differential entropy of a mixture is the midpoint of two bounds, and no average of draws.
AVERAGES = tuple(name for name in MEASURES if name != "differential_entropy")


def mixture_parameters(rows: int, classes: int) -> tuple[Tensor, ...]:
    # Concentrations around 50: no component of alpha below one, so no density without a bound.
    return torch.randn(rows, 3), 0.7 * torch.randn(rows, 3, classes), 4 + 0.2 * torch.randn(rows, 3)


def normal_parameters(rows: int, classes: int) -> tuple[Tensor, ...]:
    scale = -0.7 + 0.2 * torch.randn(rows, classes)
    return torch.randn(rows, classes), scale, 0.5 * torch.randn(rows, classes, 2)


def stick_parameters(rows: int, classes: int) -> tuple[Tensor, ...]:
    return torch.randn(rows, classes).double().log_softmax(-1), 2 + 0.3 * torch.randn(rows)


FAMILIES: list[tuple[type, Callable[[int, int], tuple[Tensor, ...]]]] = [
    (DirichletMixture, mixture_parameters),
    (LogisticNormal, normal_parameters),
    (NormalSticks, stick_parameters),
]
every_family = pytest.mark.parametrize(
    ("family", "draw_parameters"), FAMILIES, ids=[family.__name__ for family, _ in FAMILIES]
)


def build(
    family: type, draw_parameters: Callable, rows: int, classes: int, seed: int = 0
) -> SimplexDistribution:
    torch.manual_seed(seed)
    return family(*(each.double() for each in draw_parameters(rows, classes)))


def interior(rows: int, classes: int) -> Tensor:
    return torch.distributions.Dirichlet(torch.ones(classes).double()).sample((rows,))


# All alike -----------------------------------------------------------------------------------


@every_family
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("classes", [2, 5])
def test_shapes_and_dtypes(
    family: type, draw_parameters: Callable, dtype: torch.dtype, rows: int, classes: int
) -> None:
    answer = family(*(each.to(dtype) for each in draw_parameters(rows, classes)))
    dtype = torch.promote_types(dtype, torch.float32)
    assert answer.batch_shape == (rows,) and answer.event_shape == (classes,)
    assert answer.log_mean.shape == (rows, classes) and answer.log_mean.dtype == dtype
    # Rounding of a sum of `classes` exponentials.
    torch.testing.assert_close(answer.mean.sum(-1), torch.ones(rows, dtype=dtype))
    for shape in ((), (7,), (2, 3)):
        draws = answer.rsample(shape)
        assert draws.shape == (*shape, rows, classes) and draws.dtype == dtype
        torch.testing.assert_close(draws.sum(-1), torch.ones(*shape, rows, dtype=dtype))
        density = answer.log_prob(draws)
        assert density.shape == (*shape, rows) and density.dtype == dtype
    assert answer.log_prob(torch.full((classes,), 1 / classes)).shape == (rows,)
    measures = answer.measures()
    for name in MEASURES:
        value = getattr(measures, name)
        assert value.shape == (rows,) and value.dtype == torch.float64 and value.isfinite().all()
    assert uncertainty(answer).variance.dtype == dtype
    assert repr(answer) == f"{family.__name__}(N: {rows}, C: {classes})"


@every_family
def test_density_integrates_to_one_on_three_classes(
    family: type, draw_parameters: Callable
) -> None:
    answer = build(family, draw_parameters, 3, 3)
    side = (torch.arange(400, dtype=torch.float64) + 0.5) / 400
    # The square onto the triangle: (u, v) -> (u, (1 - u) v), of area (1 - u) du dv.
    u, v = torch.meshgrid(side, side, indexing="ij")
    points = torch.stack([u, (1 - u) * v, (1 - u) * (1 - v)], -1).reshape(-1, 1, 3)
    density = answer.log_prob(points.expand(-1, 3, -1)).exp() * (1 - u).reshape(-1, 1)
    # The midpoint rule with 400 points a side, where the narrowest density is 0.03 wide.
    torch.testing.assert_close(density.mean(0), torch.ones(3).double(), atol=1e-3, rtol=0)


@every_family
def test_measures_are_those_of_many_draws(family: type, draw_parameters: Callable) -> None:
    answer = build(family, draw_parameters, 4, 3)
    found, drawn = uncertainty(answer), uncertainty(answer.sample((200_000,)))
    # Monte Carlo: five standard errors of a mean of 200,000 draws are about 1 per cent of a
    # standard deviation, and here spreads and entropies deviate by no more than two of their means.
    # The fixed points of the logistic-normal have an error of their own, about 2 per cent.
    rtol = 0.06 if family is LogisticNormal else 0.025
    for name in AVERAGES:
        torch.testing.assert_close(found[name], drawn[name], rtol=rtol, atol=0, msg=name)


@every_family
def test_differential_entropy_is_that_of_the_density(
    family: type, draw_parameters: Callable
) -> None:
    answer = build(family, draw_parameters, 4, 3)
    logs = -answer.log_prob(answer.sample((100_000,)))
    # Monte Carlo: five standard errors; a log density deviates by about one nat, so 0.02 nats.
    error = 5 * logs.std(0) / len(logs) ** 0.5
    found, truth = answer.measures().differential_entropy, logs.mean(0)
    if isinstance(answer, DirichletMixture):
        low, high = answer.entropy_bounds()
        assert (low < truth + error).all() and (truth < high + error).all()
        # What the docstring says of the midpoint.
        error = error + 0.2
    if isinstance(answer, LogisticNormal):
        error = error + 0.03  # of the expected logarithms, which the fixed points estimate
    assert ((found - truth).abs() < error).all()


@every_family
def test_measures_have_the_gradient_of_their_values(
    family: type, draw_parameters: Callable
) -> None:
    parameters = [each.double().requires_grad_() for each in draw_parameters(2, 3)]

    def measures(*parameters: Tensor) -> Tensor:
        answer = family(*parameters)
        values = [getattr(answer.measures(), name) for name in MEASURES]
        return torch.stack([*values, answer.log_mean.sum(-1), answer.log_concentration])

    assert torch.autograd.gradcheck(measures, parameters)


@every_family
def test_density_has_the_gradient_of_its_value(family: type, draw_parameters: Callable) -> None:
    parameters = [each.double().requires_grad_() for each in draw_parameters(2, 3)]
    points = interior(2, 3)
    assert torch.autograd.gradcheck(lambda *each: family(*each).log_prob(points), parameters)


@every_family
def test_rows_do_not_see_each_other(family: type, draw_parameters: Callable) -> None:
    parameters = draw_parameters(4, 3)
    whole, last = family(*parameters), family(*(each[3:] for each in parameters))
    for name in MEASURES:
        # Sums in another order for one row than for four.
        torch.testing.assert_close(
            getattr(whole.measures(), name)[3:], getattr(last.measures(), name), rtol=1e-9, atol=0
        )


@every_family
def test_measures_and_densities_leave_the_generator_alone(
    family: type, draw_parameters: Callable
) -> None:
    answer, points = build(family, draw_parameters, 2, 3), interior(2, 3)
    before = torch.get_rng_state()
    uncertainty(answer), answer.log_mean, answer.log_prob(points)
    assert torch.equal(torch.get_rng_state(), before)


@every_family
@pytest.mark.parametrize("spread", [-8.0, 16.0])
def test_extremes_are_finite(family: type, draw_parameters: Callable, spread: float) -> None:
    logits = torch.tensor([[0.0, 30.0, -30.0, 0.0]])
    if family is DirichletMixture:
        parameters = (torch.tensor([[0.0, -60.0]]), logits[:, None].repeat(1, 2, 1))
        parameters = (*parameters, torch.full((1, 2), spread))
    elif family is NormalSticks:
        parameters = (logits.log_softmax(-1), torch.full((1,), spread))
    elif family is LogisticNormal:
        parameters = (logits, torch.full((1, 4), -spread / 2), torch.zeros(1, 4, 0))
    else:
        share = torch.nn.functional.logsigmoid(logits[:, :3])
        parameters = (share + spread, torch.nn.functional.logsigmoid(-logits[:, :3]) + spread)
    parameters = [each.requires_grad_() for each in parameters]
    answer = family(*parameters)
    draws, weights = answer.stratified_rsample(64)
    teacher = torch.eye(4)[torch.randint(4, (32, 1))]
    points = 0.9999 * teacher + 0.0001 / 4
    loss = energy_distance_loss(draws, teacher, weights).sum() - answer.log_prob(points).mean()
    (loss - answer.log_mean[0, 0]).backward()
    assert loss.isfinite()
    assert all(each.grad is None or each.grad.isfinite().all() for each in parameters)
    values = uncertainty(answer).to_dict()
    assert all(value.isfinite().all() for value in values.values()), values


# Mixture of Dirichlets -----------------------------------------------------------------------


@pytest.mark.parametrize("components", [1, 3])
def test_equal_components_are_one_dirichlet(components: int) -> None:
    log_mean = torch.randn(4, 3).double().log_softmax(-1)
    g = torch.tensor([-3.0, 0.0, 4.0, 12.0]).double()
    dirichlet = PredictiveDirichlet(log_mean, g)
    mixture = DirichletMixture(
        torch.randn(4, components).double(),
        log_mean[:, None].expand(-1, components, -1),
        g[:, None].expand(-1, components),
    )
    found, expected = uncertainty(mixture), uncertainty(dirichlet)
    for name in MEASURES:
        # Exact; a mutual information of 1e-5 is the difference of two entropies, rounded to 1e-16.
        torch.testing.assert_close(found[name], expected[name], rtol=1e-8, atol=0, msg=name)
    points = interior(4, 3)
    torch.testing.assert_close(
        mixture.log_prob(points), dirichlet.log_prob(points), rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(mixture.mean, dirichlet.mean, rtol=1e-12, atol=0)


def test_stratified_draws_have_the_mixtures_mean() -> None:
    mixture = build(*FAMILIES[0], 3, 4)
    draws, weights = mixture.stratified_rsample(30_000)
    found = (weights[..., None] * draws.unflatten(0, (3, -1)).mean(1)).sum(0)
    # Monte Carlo: a probability deviates by at most 0.1 within a component; 10,000 draws of each.
    torch.testing.assert_close(found, mixture.mean, atol=0.005, rtol=0)
    assert mixture.stratified_rsample(4)[0].shape == (6, 3, 4)  # never fewer than two each


# Energy distance in strata -------------------------------------------------------------------


def slow_stratified(student: Tensor, teacher: Tensor, weights: Tensor) -> Tensor:
    """Every pair, one after the other; no draw with itself."""
    strata, size = len(weights), len(student) // len(weights)
    parts = student.unflatten(0, (strata, size))
    out = torch.zeros(student.shape[1]).double()
    for n in range(len(out)):
        for k, i in product(range(strata), range(size)):
            gaps = [float((parts[k, i, n] - y).abs().sum()) for y in teacher[:, n]]
            out[n] += 2 * weights[k, n] / size * sum(gaps) / len(gaps)
            for m, j in product(range(strata), range(size)):
                if (k, i) != (m, j):
                    gap = (parts[k, i, n] - parts[m, j, n]).abs().sum()
                    pairs = size * (size - 1) if k == m else size * size
                    out[n] -= weights[k, n] * weights[m, n] * gap / pairs
        rows = teacher[:, n]
        count = len(rows)
        own = [float((a - b).abs().sum()) for a, b in product(rows, rows)]  # itself: zero
        out[n] -= sum(own) / (count * (count - 1))
    return out


@pytest.mark.parametrize(("strata", "size", "others"), [(1, 5, 4), (2, 2, 2), (3, 4, 7)])
def test_stratified_energy_distance_equals_the_loop_over_pairs(
    strata: int, size: int, others: int
) -> None:
    student = interior(strata * size * 3, 4).unflatten(0, (-1, 3))
    teacher = interior(others * 3, 4).unflatten(0, (-1, 3))
    weights = torch.randn(strata, 3).double().softmax(0)
    # Rounding in float64.
    torch.testing.assert_close(
        energy_distance_loss(student, teacher, weights),
        slow_stratified(student, teacher, weights),
        rtol=0,
        atol=1e-12,
    )


def test_stratified_energy_distance_has_the_gradient_of_its_value() -> None:
    student = interior(12, 3).unflatten(0, (-1, 2)).requires_grad_()
    teacher, weights = interior(8, 3).unflatten(0, (-1, 2)), torch.rand(3, 2).double()
    assert torch.autograd.gradcheck(
        lambda student, weights: energy_distance_loss(student, teacher, weights),
        (student, weights.requires_grad_()),
    )


# Logistic-normal -----------------------------------------------------------------------------


def test_logistic_normal_of_small_variance_is_the_dirichlet_of_the_bridge() -> None:
    alpha = torch.tensor([[900.0, 500.0, 200.0], [300.0, 300.0, 600.0]]).double()
    mean, covariance = inverse_laplace_bridge(alpha, full=True)
    values, vectors = torch.linalg.eigh(covariance)
    factor = vectors * values.clamp_min(0).sqrt()[:, None]
    normal = LogisticNormal(mean, torch.full_like(mean, -16.0), factor)
    dirichlet = PredictiveDirichlet.from_alpha(alpha)
    found, expected = uncertainty(normal), uncertainty(dirichlet)
    # The bridge is off by order 1 / alpha (0.5 per cent), the fixed points by 1 to 3 per cent.
    for name in AVERAGES:
        torch.testing.assert_close(found[name], expected[name], rtol=0.04, atol=0, msg=name)
    torch.testing.assert_close(
        found.differential_entropy, expected.differential_entropy, rtol=0, atol=0.01
    )
    torch.testing.assert_close(normal.mean, dirichlet.mean, rtol=0.01, atol=0)


def test_logistic_normal_density_knows_no_order_of_classes_and_no_shift() -> None:
    normal, order = build(*FAMILIES[1], 3, 4), torch.tensor([3, 1, 0, 2])
    points = interior(3, 4)
    other = LogisticNormal(
        normal.logits[:, order] + 5, normal.log_scale[:, order], normal.factor[:, order] - 2
    )
    # Another reference class: other sums, in float64. A shift of all logits is not seen.
    torch.testing.assert_close(normal.log_prob(points), other.log_prob(points[:, order]))


def test_logistic_normal_density_is_the_full_gaussian_in_log_ratios() -> None:
    normal, points = build(*FAMILIES[1], 1, 4), interior(1, 4)
    covariance = torch.diag_embed(normal.log_scale.exp()[0] ** 2)
    covariance = covariance + normal.factor[0] @ normal.factor[0].T
    contrast = torch.cat([torch.eye(3), -torch.ones(3, 1)], 1).double()
    gaussian = torch.distributions.MultivariateNormal(
        contrast @ normal.logits[0], contrast @ covariance @ contrast.T
    )
    logs = points[0].log()
    expected = gaussian.log_prob(contrast @ logs) - logs.sum()
    torch.testing.assert_close(normal.log_prob(points)[0], expected)


def test_logistic_normal_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    normal = build(*FAMILIES[1], 5, 3)
    again = LogisticNormal(normal.logits, normal.log_scale, normal.factor)
    whole, mean = uncertainty(normal), normal.log_mean
    monkeypatch.setattr("pyro_opu.utils.chunks._ELEMENTS_AT_ONCE", 2 * 256 * 3)
    parts = uncertainty(again)
    for name in MEASURES:
        torch.testing.assert_close(parts[name], whole[name])
    torch.testing.assert_close(again.log_mean, mean)


# Empirical ---------------------------------------------------------------------------------------


def test_atoms_are_their_points() -> None:
    points = interior(15, 4).unflatten(0, (5, 3))
    atoms = Empirical(points.log())
    found, drawn = uncertainty(atoms), uncertainty(points)
    for name in ("total", "aleatoric", "epistemic", "max_probability"):
        torch.testing.assert_close(found[name], drawn[name])
    # The draws' estimates are for a distribution behind them, with K - 1.
    torch.testing.assert_close(found.variance, drawn.variance * 4 / 5)
    torch.testing.assert_close(found.expected_pairwise_kl, drawn.expected_pairwise_kl * 4 / 5)
    draws = atoms.sample((50,))
    assert all(
        (draws[:, n, None] == points[:, n].log().exp()).all(-1).any(-1).all() for n in range(3)
    )


def test_one_atom_has_no_spread() -> None:
    atom = Empirical(interior(3, 4).log()[None])
    u = uncertainty(atom)
    assert (u.epistemic < 1e-15).all() and (u.variance == 0).all()  # 1e-15: rounding of entropies
    assert u.concentration.isinf().all() and u.differential_entropy.isinf().all()
    assert atom.matched().log_concentration.isfinite().all()
