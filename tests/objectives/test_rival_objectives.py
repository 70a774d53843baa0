"""Objectives of the rivals: annealed likelihood, proxy targets, kernels, blurred transport."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Dirichlet, kl_divergence

from pyro_opu import DirichletLikelihood, Objective, PredictiveDirichlet
from pyro_opu.distributions import Atoms
from pyro_opu.metrics.distances import energy_distance, wasserstein1
from pyro_opu.objectives import (
    EnsembleDistribution,
    MaximumMeanDiscrepancy,
    ProxyDirichlet,
    Sinkhorn,
)
from pyro_opu.objectives.mmd import RESOLUTION, maximum_mean_discrepancy, median_distance
from pyro_opu.objectives.proxy import proxy_parts
from pyro_opu.objectives.sinkhorn import sinkhorn_divergence

C = 3
MEAN = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)

# Errors of a Monte Carlo mean are allowed this many standard errors: once in 2e6 by chance.
SIGMAS = 5.0


def needs_geomloss() -> None:
    pytest.importorskip("geomloss", reason="the extra `sinkhorn` is not installed")


def sinkhorn() -> Objective:
    needs_geomloss()
    return Sinkhorn(num_samples=8)


OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "endd": EnsembleDistribution,
    "proxy": ProxyDirichlet,
    "mmd, laplace": lambda: MaximumMeanDiscrepancy(num_samples=8),
    "mmd, gaussian": lambda: MaximumMeanDiscrepancy("gaussian", num_samples=8),
    "sinkhorn": sinkhorn,
}
every_objective = pytest.mark.parametrize("build", OBJECTIVES.values(), ids=OBJECTIVES)


def dirichlet_draws(concentration: float, num_draws: int, rows: int) -> Tensor:
    """Draws ``(S, N, C)`` in float64 of the Dirichlet with mean MEAN."""
    return Dirichlet((concentration * MEAN).expand(rows, C)).sample((num_draws,))


def student(concentration: float, rows: int) -> PredictiveDirichlet:
    g = torch.full((rows,), math.log(concentration), dtype=torch.float64)
    return PredictiveDirichlet(MEAN.log().expand(rows, C), g)


def sure_within(values: Tensor, expected: float | Tensor) -> bool:
    """Whether the means of independent rows agree with their expectation."""
    error = values.std(0) / len(values) ** 0.5
    return bool(((values.mean(0) - expected).abs() < SIGMAS * error).all())


# All alike -----------------------------------------------------------------------------------


@every_objective
@pytest.mark.parametrize(("rows", "classes", "draws"), [(1, 3, 4), (4, 2, 4), (4, 3, 2)])
def test_loss_is_one_number_at_the_smallest_sizes(
    build: Callable[[], Objective], rows: int, classes: int, draws: int
) -> None:
    d = PredictiveDirichlet(
        torch.randn(rows, classes).log_softmax(-1).requires_grad_(), torch.zeros(rows)
    )
    teacher = Dirichlet(torch.ones(rows, classes)).sample((draws,))
    loss = build()(d, teacher, torch.zeros(rows, 2))
    loss.backward()
    assert loss.shape == () and loss.dtype == torch.float32 and loss.isfinite()
    assert d.log_mean.grad.isfinite().all() and d.log_mean.grad.abs().max() > 0


CORNERS = torch.eye(C)[torch.tensor([[0, 1, 2, 0, 0], [0, 1, 2, 1, 2], [0, 1, 2, 1, 1]])]
EXTREME_DRAWS = {
    "corners": CORNERS,
    "equal": torch.tensor([0.7, 0.2, 0.1]).expand(3, 5, C),
    "close": torch.tensor([0.7, 0.2, 0.1]).expand(3, 5, C) + 1e-7 * (CORNERS - 1 / C),
}


@every_objective
@pytest.mark.parametrize("kind", EXTREME_DRAWS)
@pytest.mark.parametrize("concentration", [1e-3, 1e6])
@pytest.mark.parametrize("mean", [[0.2, 0.5, 0.3], [1.0, 1e-12, 1e-30]])
def test_loss_and_gradient_are_finite_at_extremes(
    build: Callable[[], Objective], kind: str, concentration: float, mean: list[float]
) -> None:
    log_mean = torch.tensor(mean).log().repeat(5, 1).requires_grad_()
    g = torch.full((5,), math.log(concentration), requires_grad=True)
    objective = build()
    for done in (0.0, 1.0):
        objective.anneal(done)
        loss = objective(PredictiveDirichlet(log_mean, g), EXTREME_DRAWS[kind], torch.zeros(5, 2))
        loss.backward()
        assert loss.isfinite()
        assert log_mean.grad.isfinite().all() and g.grad.isfinite().all()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: EnsembleDistribution(0.5),
            "`temperature` must be a finite number of at least 1; got 0.5",
        ),
        (lambda: EnsembleDistribution(math.nan), "`temperature` must be .* got nan"),
        (
            lambda: EnsembleDistribution(smoothing=1.0),
            r"`smoothing` must be a number in \[0, 1\); got 1.0",
        ),
        (
            lambda: MaximumMeanDiscrepancy("rbf"),
            "`kernel` must be one of .'gaussian', 'laplace'.; got",
        ),
        (
            lambda: MaximumMeanDiscrepancy(num_samples=1),
            "`num_samples` must be an integer of at least 2; got 1",
        ),
        (lambda: Sinkhorn(0.0), "`blur` must be a positive finite number; got 0.0"),
        (lambda: Sinkhorn(scaling=1.0), r"`scaling` must be a number in \(0, 1\); got 1.0"),
        (lambda: Sinkhorn(num_samples=1), "`num_samples` must be an integer of at least 2; got 1"),
    ],
)
def test_bad_settings(build: Callable[[], Objective], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("build", [EnsembleDistribution, ProxyDirichlet])
def test_closed_forms_refuse_what_is_no_dirichlet(build: Callable[[], Objective]) -> None:
    points = Atoms(torch.rand(1, 5, C).log_softmax(-1))
    with pytest.raises(TypeError, match="must be a torch or Pyro Dirichlet; got Atoms"):
        build()(points, dirichlet_draws(4.0, 4, 5), torch.zeros(5, 2))


@pytest.mark.parametrize(
    "build",
    [
        lambda: EnsembleDistribution(1.0),
        EnsembleDistribution,
        ProxyDirichlet,
    ],
    ids=["likelihood", "heated", "proxy"],
)
@pytest.mark.parametrize("concentration", [0.1, 20.0])
def test_gradcheck(build: Callable[[], Objective], concentration: float) -> None:
    objective, draws = build(), dirichlet_draws(4.0, 6, 2)

    def loss(logits: Tensor, g: Tensor) -> Tensor:
        return objective(PredictiveDirichlet(logits.log_softmax(-1), g), draws, draws[0])

    logits = torch.randn(2, C, dtype=torch.float64, requires_grad=True)
    g = torch.full((2,), math.log(concentration), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, (logits, g))


# Annealed likelihood -------------------------------------------------------------------------


def gradients_at(objective: Objective, alpha: Tensor, draws: Tensor) -> Tensor:
    """Gradient in log alpha ``(N, C)`` at one student for all inputs, each times N."""
    log_alpha = alpha.log().expand(draws.shape[1:]).clone().requires_grad_()
    d = PredictiveDirichlet(log_alpha.log_softmax(-1), log_alpha.logsumexp(-1))
    objective(d, draws, draws[0]).backward()
    return log_alpha.grad * len(log_alpha)


@pytest.mark.parametrize(
    ("done", "expected"),
    [(0.0, 10.0), (0.2, 10.0), (1 / 3, 10.0), (0.5, 5.5), (2 / 3, 1.0), (0.9, 1.0), (1.0, 1.0)],
)
def test_temperature_is_held_and_falls(done: float, expected: float) -> None:
    objective = EnsembleDistribution()
    assert objective.temperature_now == 10.0
    shown = repr(objective)
    objective.anneal(0.77)
    objective.anneal(done)  # where it has been before does not count
    assert objective.temperature_now == pytest.approx(expected, abs=1e-12)  # rounding
    assert repr(objective) == shown  # a resumed run is the same objective


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.01])
def test_likelihood_of_heated_draws_against_a_loop(temperature: float, smoothing: float) -> None:
    objective = EnsembleDistribution(temperature, smoothing)
    draws, alpha = dirichlet_draws(4.0, 5, 4), 6 * MEAN
    total = 0.0
    for s, n in itertools.product(range(5), range(4)):
        powers = draws[s, n] ** (1 / temperature)
        point = (1 - smoothing) * powers / powers.sum() + smoothing / C
        total -= float(Dirichlet(alpha ** (1 / temperature)).log_prob(point))
    found = objective(student(6.0, 4), draws, draws[0])
    torch.testing.assert_close(float(found), total / 20)


def test_at_the_end_it_is_the_plain_likelihood() -> None:
    objective, draws = EnsembleDistribution(), dirichlet_draws(4.0, 5, 4)
    objective.anneal(1.0)
    plain = DirichletLikelihood()(student(6.0, 4), draws, draws[0])
    torch.testing.assert_close(objective(student(6.0, 4), draws, draws[0]), plain)
    objective.anneal(0.0)
    assert abs(objective(student(6.0, 4), draws, draws[0]) - plain) > 0.1


@pytest.mark.parametrize("concentration", [2.0, 30.0])
def test_least_at_a_dirichlet_teacher_only_when_cold(concentration: float) -> None:
    objective = EnsembleDistribution(smoothing=0.0)
    draws, alpha = dirichlet_draws(concentration, 4, 5_000), concentration * MEAN
    objective.anneal(1.0)
    assert sure_within(gradients_at(objective, alpha, draws), 0.0)
    objective.anneal(0.0)
    assert not sure_within(gradients_at(objective, alpha, draws), 0.0)


# Proxy targets -------------------------------------------------------------------------------


def test_proxy_against_a_loop() -> None:
    draws = dirichlet_draws(5.0, 6, 4)
    mean, spread = proxy_parts(draws)
    for n in range(4):
        average = sum(draws[s, n] for s in range(6)) / 6
        gap = 0.0
        for k in range(C):
            logs = [math.log(float(draws[s, n, k])) for s in range(6)]
            gap += float(average[k]) * (math.log(float(average[k])) - sum(logs) / 6)
        torch.testing.assert_close(mean[n], average)
        assert 1 / float(spread[n]) == pytest.approx((C - 1) / (2 * gap), rel=1e-12)  # rounding


def proxies(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Parameters of the proxies ``(N, C)``, less one, and their precisions."""
    mean, spread = proxy_parts(draws)
    return mean / spread[:, None], 1 / spread


def test_loss_is_the_divergence_over_the_precision() -> None:
    draws = dirichlet_draws(5.0, 6, 1)
    beta, precision = proxies(draws)
    differences = []
    for concentration in (0.3, 5.0, 80.0):
        alpha = concentration * MEAN[None]
        divergence = kl_divergence(Dirichlet(alpha + 1), Dirichlet(beta + 1)) / precision
        loss = ProxyDirichlet()(student(concentration, 1), draws, draws[0])
        differences.append(float(loss - divergence))
    assert max(differences) - min(differences) < 1e-12  # rounding


def test_least_at_the_proxy() -> None:
    draws = dirichlet_draws(5.0, 6, 3)
    beta, _ = proxies(draws)
    slope = gradients_at(ProxyDirichlet(), beta, draws)
    torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-12)  # rounding
    assert gradients_at(ProxyDirichlet(), 1.1 * beta, draws).abs().max() > 1e-5


@pytest.mark.parametrize(
    ("concentration", "low", "high"), [(0.02, 0.5, 0.51), (5.0, 0.7, 0.9), (1e4, 0.999, 1.0)]
)
def test_stirling_bias_of_a_dirichlet_teacher(
    concentration: float, low: float, high: float
) -> None:
    """The precision from exact expectations: between one half of the truth and the truth."""
    alpha = concentration * MEAN
    expected_log = torch.digamma(alpha) - torch.digamma(alpha.sum())
    exact = (C - 1) / (2 * (MEAN * (MEAN.log() - expected_log)).sum())
    assert low <= exact / concentration <= high
    # ... and draws agree: the mean of the logarithms is all that is estimated.
    logs = PredictiveDirichlet.from_alpha(alpha).log_rsample((50_000,))
    gaps = MEAN.log() @ MEAN - logs @ MEAN
    assert sure_within(gaps, float((C - 1) / (2 * exact)))


def test_proxy_of_draws_that_agree() -> None:
    mean, spread = proxy_parts(torch.tensor([0.7, 0.3, 0.0]).expand(4, 2, C))
    torch.testing.assert_close(mean, torch.tensor([[0.7, 0.3, 0.0]]).expand(2, C).double())
    assert spread.max() < 1e-14  # rounding; then only the cross-entropy is left


def thousand_classes() -> Tensor:
    """One sure class and 999 rare ones, as float32 draws ``(S, N, 1000)``."""
    logits = torch.randn(20, 2, 1000)
    logits[..., 0] += 14.0
    return logits.softmax(-1)


def test_thousand_classes_in_float32() -> None:
    draws, log_alpha = thousand_classes(), 2 * torch.randn(2, 1000)
    found = {}
    for dtype in (torch.float32, torch.float64):
        leaf = log_alpha.detach().to(dtype, copy=True).requires_grad_()
        d = PredictiveDirichlet(leaf.log_softmax(-1), leaf.logsumexp(-1))
        loss = ProxyDirichlet()(d, draws.to(dtype), torch.zeros(2, 1))
        loss.backward()
        found[dtype] = (loss.double(), leaf.grad.double())
    # float32 keeps log alpha and the result to 6e-8 of their size, about 10.
    torch.testing.assert_close(found[torch.float32], found[torch.float64], rtol=1e-5, atol=1e-6)


def test_rare_classes_do_not_rule_the_gradient() -> None:
    draws = thousand_classes()
    cold = EnsembleDistribution(temperature=1.0)
    shares = []
    for objective in (ProxyDirichlet(), cold):
        slope = gradients_at(objective, torch.ones(1000), draws).abs()
        shares.append(float((slope[:, 0] / slope.sum(-1)).mean()))
    assert shares[0] > 0.3 and shares[1] < 0.01


# Maximum mean discrepancy --------------------------------------------------------------------

both_kernels = pytest.mark.parametrize("kernel", ["laplace", "gaussian"])


def kernel_value(a: Tensor, b: Tensor, width: Tensor, kernel: str) -> Tensor:
    if kernel == "laplace":
        return (-(a - b).abs().sum(-1) / width).exp()
    return (-(a - b).square().sum(-1) / (2 * width**2)).exp()


def mmd_by_loop(p: Tensor, q: Tensor, width: Tensor, kernel: str) -> Tensor:
    def mean(a: Tensor, b: Tensor, same: bool) -> Tensor:
        pairs = [(i, j) for i in range(len(a)) for j in range(len(b)) if not (same and i == j)]
        return torch.stack([kernel_value(a[i], b[j], width, kernel) for i, j in pairs]).mean(0)

    return mean(p, p, True) + mean(q, q, True) - 2 * mean(p, q, False)


@both_kernels
@pytest.mark.parametrize(("num_p", "num_q"), [(2, 2), (3, 7), (8, 5)])
def test_mmd_against_a_loop(kernel: str, num_p: int, num_q: int) -> None:
    p, q = dirichlet_draws(2.0, num_p, 4), dirichlet_draws(9.0, num_q, 4)
    width = torch.linspace(0.1, 1.0, 4, dtype=torch.float64)
    found = maximum_mean_discrepancy(p, q, width, kernel=kernel)
    torch.testing.assert_close(found, mmd_by_loop(p, q, width, kernel))


@both_kernels
def test_mmd_of_strata_against_a_loop(kernel: str) -> None:
    """A mixture of three parts with weights, four draws of each."""
    parts = [dirichlet_draws(concentration, 4, 5) for concentration in (1.0, 5.0, 30.0)]
    teacher, width = dirichlet_draws(3.0, 6, 5), torch.full((5,), 0.4, dtype=torch.float64)
    weights = torch.rand(3, 5, dtype=torch.float64).softmax(0)
    expected = torch.zeros(5, dtype=torch.float64)
    for i, j in itertools.product(range(3), range(3)):
        pairs = [(s, t) for s in range(4) for t in range(4) if i != j or s != t]
        values = [kernel_value(parts[i][s], parts[j][t], width, kernel) for s, t in pairs]
        expected = expected + weights[i] * weights[j] * torch.stack(values).mean(0)
    for i in range(3):
        values = [kernel_value(a, b, width, kernel) for a in parts[i] for b in teacher]
        expected = expected - 2 * weights[i] * torch.stack(values).mean(0)
    pairs = list(itertools.permutations(range(6), 2))
    own = [kernel_value(teacher[s], teacher[t], width, kernel) for s, t in pairs]
    expected = expected + torch.stack(own).mean(0)
    found = maximum_mean_discrepancy(
        torch.cat(parts), teacher, width, kernel=kernel, weights=weights
    )
    torch.testing.assert_close(found, expected)


@both_kernels
def test_gradcheck_of_mmd(kernel: str) -> None:
    teacher, width = dirichlet_draws(4.0, 5, 2), torch.full((2,), 0.3, dtype=torch.float64)

    def loss(logits: Tensor, weights: Tensor) -> Tensor:
        return maximum_mean_discrepancy(
            logits.softmax(-1), teacher, width, kernel=kernel, weights=weights.softmax(0)
        )

    logits = torch.randn(6, 2, C, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, (logits, weights))


@both_kernels
@pytest.mark.parametrize("concentration", [0.05, 3.0])
def test_mmd_and_its_gradient_are_zero_between_equals(kernel: str, concentration: float) -> None:
    """On average, though the bandwidth is that of the draws at hand."""
    g = torch.full((4_000,), math.log(concentration), dtype=torch.float64, requires_grad=True)
    p = PredictiveDirichlet(MEAN.log().expand(4_000, C), g).rsample((6,))
    q = dirichlet_draws(concentration, 5, 4_000)
    values = maximum_mean_discrepancy(p, q, median_distance(p, q, kernel), kernel=kernel)
    values.sum().backward()
    assert sure_within(values.detach(), 0.0)
    assert sure_within(g.grad, 0.0)


@both_kernels
def test_mmd_tells_a_wrong_concentration_from_the_right_one(kernel: str) -> None:
    objective, losses = MaximumMeanDiscrepancy(kernel), {}
    draws = dirichlet_draws(5.0, 32, 500)
    for concentration in (2.5, 5.0, 10.0):
        losses[concentration] = float(objective(student(concentration, 500), draws, draws[0]))
    assert losses[5.0] < 0.2 * min(losses[2.5], losses[10.0])


@both_kernels
def test_mmd_sees_how_classes_depend_on_each_other(kernel: str) -> None:
    """Two clouds on a hexagon, alike in the marginal of every class."""
    cycles = torch.tensor([[2, 1, 0], [0, 2, 1], [1, 0, 2]], dtype=torch.float64) / 3
    p, q = (cloud[:, None].repeat(40, 1, 1) for cloud in (cycles, cycles.flip(-1)))
    for k in range(C):
        assert torch.equal(p[..., k].sort(0).values, q[..., k].sort(0).values)
    assert energy_distance(p, q) <= 0
    width = torch.full((1,), 0.5, dtype=torch.float64)
    assert maximum_mean_discrepancy(p, q, width, kernel=kernel) > 0.03


def test_median_distance_of_known_clouds() -> None:
    # Distances in l1 between 0.1, 0.2, 0.4, 0.8 in the first of two classes: twice 1, 2, 3, 4, 6
    # and 7 tenths, whose lower median is 0.6.
    first = torch.tensor([0.1, 0.2, 0.4, 0.8], dtype=torch.float64)
    cloud = torch.stack([first, 1 - first], -1)[:, None]
    torch.testing.assert_close(median_distance(cloud[:1], cloud[1:]), torch.tensor([0.6]).double())
    found = median_distance(cloud[:2], cloud[2:], "gaussian")
    torch.testing.assert_close(found, torch.tensor([0.6 / math.sqrt(2)]).double())


def test_median_distance_resolves_corners_and_never_vanishes() -> None:
    corners = torch.eye(2)[torch.tensor([0, 0, 0, 0, 0, 1])][:, None]
    assert median_distance(corners[:3], corners[3:]).tolist() == [2.0]
    points = torch.tensor([0.7, 0.3]).expand(6, 1, 2)
    assert median_distance(points[:3], points[3:]).tolist() == [pytest.approx(RESOLUTION)]


def test_mmd_refuses_one_draw() -> None:
    draws, width = dirichlet_draws(4.0, 4, 5), torch.ones(5)
    with pytest.raises(ValueError, match="at least two draws per input each; got 4 and 1"):
        maximum_mean_discrepancy(draws, draws[:1], width)
    with pytest.raises(ValueError, match="every stratum of it.*got 1 and 4"):
        maximum_mean_discrepancy(draws, draws, width, weights=torch.full((4, 5), 0.25))


@pytest.mark.parametrize("name", ["mmd, laplace", "mmd, gaussian", "sinkhorn"])
def test_draws_reach_students_of_other_families(name: str) -> None:
    logits = torch.randn(4, 5, C, requires_grad=True)
    OBJECTIVES[name]()(
        Atoms(logits.log_softmax(-1)), dirichlet_draws(4.0, 6, 5).float(), None
    ).backward()
    assert logits.grad.abs().sum((0, 2)).min() > 0


# Sinkhorn ------------------------------------------------------------------------------------


def clouds(rows: int = 6, count: int = 30) -> tuple[Tensor, Tensor]:
    return dirichlet_draws(2.0, count, rows), dirichlet_draws(9.0, count, rows)


def test_sinkhorn_is_near_the_exact_transport_at_a_small_blur() -> None:
    needs_geomloss()
    p, q = clouds()
    exact = wasserstein1(p, q)
    # What the blur and iterations that come to an end leave.
    found = sinkhorn_divergence(p, q, blur=1e-3, scaling=0.98)
    torch.testing.assert_close(found, exact, rtol=0.01, atol=0)


def test_sinkhorn_is_half_the_energy_distance_at_a_large_blur() -> None:
    needs_geomloss()
    p, q = clouds()

    def mean(a: Tensor, b: Tensor) -> Tensor:  # all pairs, those of a draw with itself too
        return torch.stack([(x - y).abs().sum(-1) for x in a for y in b]).mean(0)

    expected = mean(p, q) - mean(p, p) / 2 - mean(q, q) / 2
    # The rest falls as 1 / blur.
    torch.testing.assert_close(sinkhorn_divergence(p, q, blur=1e4), expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize("blur", [0.02, 0.2, 2.0])
def test_sinkhorn_of_a_cloud_with_itself_is_zero(blur: float) -> None:
    needs_geomloss()
    p, _ = clouds()
    value = sinkhorn_divergence(p, p.flip(0), blur=blur)
    torch.testing.assert_close(value, torch.zeros_like(value), rtol=0, atol=1e-14)  # rounding


def test_gradient_of_sinkhorn_is_that_of_its_value() -> None:
    needs_geomloss()
    p, q = clouds(rows=1, count=8)
    leaf = p.clone().requires_grad_()
    (slope,) = torch.autograd.grad(sinkhorn_divergence(leaf, q, blur=0.2).sum(), leaf)
    with torch.no_grad():
        for s, k in itertools.product(range(8), range(C - 1)):
            move = torch.zeros_like(p)
            move[s, 0, k], move[s, 0, C - 1] = 1e-4, -1e-4
            up, down = (sinkhorn_divergence(p + sign * move, q, blur=0.2) for sign in (1, -1))
            expected = float(slope[s, 0, k] - slope[s, 0, C - 1])
            # The plan is held fixed, which is right once it has converged; slopes are up to 0.3.
            assert float(up - down) / 2e-4 == pytest.approx(expected, abs=0.01)


def test_weights_of_sinkhorn() -> None:
    needs_geomloss()
    p, q = clouds()
    equal = torch.full((3, 6), 1 / 3, dtype=torch.float64)
    plain = sinkhorn_divergence(p, q, blur=0.2)
    torch.testing.assert_close(sinkhorn_divergence(p, q, blur=0.2, weights=equal), plain)
    one = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)[:, None].expand(3, 6)
    first = sinkhorn_divergence(p[:10], q, blur=0.2)
    torch.testing.assert_close(sinkhorn_divergence(p, q, blur=0.2, weights=one), first)
    # More weight on the stratum that lies where the teacher is makes it less.
    both = torch.cat([q + 0.0, p])
    weights = torch.full((2, 6), 0.5, dtype=torch.float64, requires_grad=True)
    sinkhorn_divergence(both, q, blur=0.2, weights=weights).sum().backward()
    assert (weights.grad[0] < weights.grad[1]).all()


def test_sinkhorn_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "geomloss", None)
    with pytest.raises(ImportError, match=r'pip install "pyro_opu\[sinkhorn\]"'):
        Sinkhorn()
