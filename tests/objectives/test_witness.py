"""Slopes, signs and values of witnesses against slow loops and exact distances."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pyro_opu import MetaCritic, PredictiveDirichlet, WassersteinELBO
from pyro_opu.distributions import DirichletMixture
from pyro_opu.metrics.distances import wasserstein1
from pyro_opu.objectives.base import Meeting
from pyro_opu.objectives.critic import dual_norm, values_and_gradient, values_at
from pyro_opu.objectives.encounter import Encounter
from pyro_opu.objectives.energy import energy_distance_loss, energy_slopes
from pyro_opu.objectives.examination import lower_bound

C = 3


def points(num_draws: int, rows: int, classes: int = C, alpha: float = 1.0) -> Tensor:
    alphas = torch.full((rows, classes), alpha, dtype=torch.float64)
    return torch.distributions.Dirichlet(alphas).sample((num_draws,))


def critic_at(x: Tensor, generate: Any = "all", widths: tuple[int, ...] = (5, 4)) -> MetaCritic:
    critic = MetaCritic(x, C, widths=widths, hidden=(6,), generate=generate).double()
    with torch.no_grad():
        critic.head.weight.normal_()
    return critic


@pytest.mark.parametrize("generate", ["all", "modulate"])
@pytest.mark.parametrize("widths", [(5,), (5, 4), (6, 5, 4)])
def test_gradient_of_witnesses_against_autograd_input_by_input(
    generate: str, widths: tuple[int, ...]
) -> None:
    x, pi = torch.randn(4, 2).double(), points(7, 4).transpose(0, 1)
    weights = critic_at(x, generate, widths).weights(x)
    values, gradient = values_and_gradient(pi, weights, slice(2, 6))
    torch.testing.assert_close(values, values_at(pi, weights))
    for n in range(4):
        mine = [(matrix[n : n + 1], bias[n : n + 1]) for matrix, bias in weights]
        for k in range(2, 6):
            at = pi[n, k].clone()[None, None].requires_grad_()
            (slope,) = torch.autograd.grad(values_at(at, mine).sum(), at)
            torch.testing.assert_close(gradient[n, k - 2], slope[0, 0])


def test_gradient_of_witnesses_is_differentiable_in_the_weights() -> None:
    """Between kinks, where no step of gradcheck crosses one."""
    x, pi = torch.randn(3, 2).double(), points(5, 3).transpose(0, 1)
    flat = [each.detach().requires_grad_() for layer in critic_at(x).weights(x) for each in layer]

    def gradient(*given: Tensor) -> Tensor:
        return values_and_gradient(pi, list(zip(given[::2], given[1::2], strict=True)), slice(5))[1]

    assert torch.autograd.gradcheck(gradient, flat)


@pytest.mark.parametrize("settings", [{}, {"residual": False}, {"residual": False, "ground": "l2"}])
@pytest.mark.parametrize("two_sided", [False, True])
def test_penalty_and_its_gradient_against_a_second_graph_input_by_input(
    settings: dict[str, Any], two_sided: bool
) -> None:
    x, draws, samples = torch.randn(4, 2).double(), points(9, 4), points(8, 4, alpha=3.0)
    critic = critic_at(x)
    objective = WassersteinELBO(penalty=2.0, critic=critic, two_sided=two_sided, **settings)
    at = Encounter(x, draws, None, samples)
    penalty = objective.critic_loss(at)["penalty"]
    found = torch.autograd.grad(penalty, list(critic.parameters()))

    total, count = torch.zeros((), dtype=torch.float64), 0
    centre, scale = at.units
    for n in range(4):
        for pi in at.points[n, at.where]:
            where = pi.clone().requires_grad_()
            units = ((where - centre[n, 0]) / scale[n, 0])[None, None]
            value = scale[n, 0, 0] * critic(x[n : n + 1], units).sum()
            (slope,) = torch.autograd.grad(value, where, create_graph=True)
            if objective.residual:
                slope = slope + below(pi, samples[:, n]) - below(pi, draws[:, n])
            excess = dual_norm(slope, objective.ground) - 1
            total = total + (excess if two_sided else excess.relu()).square()
            count += 1
    expected = 2 * total / count
    torch.testing.assert_close(penalty, expected)
    for mine, theirs in zip(
        found, torch.autograd.grad(expected, list(critic.parameters())), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def below(pi: Tensor, draws: Tensor) -> Tensor:
    """Share of the draws ``(S, C)`` below a point, class by class; a draw leaves itself out."""
    others = draws[(draws != pi).any(-1)]
    return (others < pi).double().mean(0)


def test_slopes_of_the_energy_witness_against_a_loop() -> None:
    samples, draws, between = points(6, 3), points(5, 3, alpha=2.0), points(4, 3)
    pooled = torch.cat([draws, between, samples]).transpose(0, 1).contiguous()
    found = energy_slopes(pooled, slice(9, None), slice(0, 5))
    for n in range(3):
        for k, pi in enumerate(pooled[n]):
            expected = below(pi, samples[:, n]) - below(pi, draws[:, n])
            torch.testing.assert_close(found[n, k], expected)


def test_known_gain_is_half_the_energy_distance_and_half_its_gradient() -> None:
    draws, samples = points(7, 4), points(9, 4, alpha=3.0).requires_grad_()
    at = Encounter(torch.zeros(4, 1), draws, None, samples)
    distance = energy_distance_loss(samples, draws)
    torch.testing.assert_close(at.known_gain, distance / 2)
    (found,) = torch.autograd.grad(at.known_gain.sum(), samples)
    (whole,) = torch.autograd.grad(distance.sum(), samples)
    torch.testing.assert_close(found, whole / 4)


# Values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("size", [0.1, 1.0, 30.0])
def test_lower_bound_is_never_above_the_distance(classes: int, size: float) -> None:
    draws, samples = points(20, 5, classes), points(20, 5, classes, alpha=4.0)
    values = size * torch.randn(5, 40, dtype=torch.float64)
    assert (lower_bound(values, draws, samples) <= wasserstein1(draws, samples) + 1e-12).all()


@pytest.mark.parametrize("slope", [1.0, 1.5, 40.0, -1.0, -3.0])
def test_lower_bound_of_a_witness_too_steep_is_exact(slope: float) -> None:
    """Of two clouds beside each other the first class is the best witness, with half its slope."""
    low, high = 0.2 * torch.rand(2, 30, 5, dtype=torch.float64).sort(0).values
    draws, samples = (torch.stack([t, 1 - t], -1) for t in (0.6 + high, low))
    values = slope * 2 * torch.cat([draws, samples])[..., 0].T
    found = lower_bound(values, draws, samples)
    torch.testing.assert_close(found, wasserstein1(draws, samples))


def test_lower_bound_of_a_flat_witness_is_its_gain() -> None:
    draws, samples = points(8, 5), points(8, 5, alpha=3.0)
    direction = torch.tensor([0.3, -0.3, 0.1], dtype=torch.float64)
    values = (torch.cat([draws, samples]) @ direction).T
    gain = (draws.mean(0) - samples.mean(0)) @ direction
    torch.testing.assert_close(lower_bound(values, draws, samples), gain.abs())


@pytest.mark.parametrize("factor", [1.0, -1.0])
def test_better_of_a_witness_and_its_negative(factor: float) -> None:
    objective = WassersteinELBO(two_sided=True, residual=False)
    at = Encounter(torch.zeros(4, 1), points(8, 4), None, points(8, 4))
    values = factor * torch.cat([torch.full((4, 8), 3.0), torch.full((4, 8), 1.0)], 1)
    torch.testing.assert_close(objective._gain(values, at), torch.full((4,), 2.0))


def test_noise_of_the_draws_gains_nothing() -> None:
    """Not even by the better of two signs, which the other half of the draws chooses."""
    objective = WassersteinELBO(two_sided=True, residual=False)
    at = Encounter(torch.zeros(1, 1), points(8, 4000), None, points(8, 4000))
    gain = objective._gain(torch.randn(4000, 16), at)
    # The deviation of the mean is .5 / sqrt(4000); |.| of the same draws would gain .4.
    assert gain.mean().abs() < 5 * gain.std() / 4000**0.5


def test_strata_weigh_in_the_units() -> None:
    means = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]])
    mixture = DirichletMixture(
        torch.tensor([0.9, 0.1]).log().expand(5, 2),
        means.log().expand(5, 2, C),
        torch.full((5, 2), 3.0),
    )
    torch.manual_seed(0)
    objective = WassersteinELBO(num_samples=4000)
    draws, x = points(50, 5).float(), torch.zeros(5, 1)
    at = objective.meet(mixture, draws, x)
    random = Encounter(x, draws, None, mixture.sample((4000,)))
    for one, two in zip(at.units, random.units, strict=True):
        torch.testing.assert_close(one, two, rtol=0.05, atol=0.02)  # of 4,000 draws


# Steps ---------------------------------------------------------------------------------------


class NoHost(TorchDispatchMode):
    """Refuses what waits for the host, which no CUDA graph can hold."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in ("_local_scalar_dense", "nonzero", "item"), func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("settings", [{}, {"residual": False, "two_sided": True}])
def test_steps_wait_for_no_host(settings: dict[str, Any]) -> None:
    x, draws = torch.randn(6, 2), points(8, 6).float()
    log_mean = torch.zeros(6, C).log_softmax(-1).requires_grad_()
    objective = WassersteinELBO(num_samples=8, **settings)
    objective.prepare(x, C)
    with NoHost():
        at = objective.meet(PredictiveDirichlet(log_mean, torch.ones(6), False), draws, x)
        for parts in (objective.critic_loss(at), objective.parts_of(at)):
            torch.stack(list(parts.values())).sum().backward()
    assert log_mean.grad is not None


def test_critic_and_student_meet_at_the_same_draws() -> None:
    x, draws = torch.randn(6, 2), points(8, 6).float()
    objective = WassersteinELBO(num_samples=8)
    student = PredictiveDirichlet(torch.zeros(6, C).log_softmax(-1), torch.ones(6))
    at = objective.meet(student, draws, x)
    objective.critic_loss(at)
    known = at.known
    objective.parts_of(at)
    assert at.known is known  # sorted once


def test_a_plain_meeting_will_do() -> None:
    x, draws, samples = torch.randn(6, 2), points(8, 6).float(), points(8, 6).float()
    objective = WassersteinELBO()
    torch.manual_seed(0)
    objective.prepare(x, C)
    torch.manual_seed(1)
    found = objective.critic_loss(Meeting(x, draws, None, samples))
    torch.manual_seed(1)
    expected = objective.critic_loss(Encounter(x, draws, None, samples))
    torch.testing.assert_close(found, expected)
