"""Distances between joint laws over groups of inputs: known laws, the slow loop, gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from pyro_opu.objectives.energy import energy_distance_loss
from pyro_opu.objectives.joint import JointWitness, joint_energy

GENERATOR = torch.Generator().manual_seed(0)


def draws(count: int, groups: int, size: int, classes: int) -> Tensor:
    logits = torch.randn(count, groups, size, classes, generator=GENERATOR, dtype=torch.float64)
    return logits.softmax(-1)


def slowly(student: Tensor, teacher: Tensor) -> Tensor:
    """Every pair of draws of every group by itself."""

    def mean(a: Tensor, b: Tensor, same: bool) -> float:
        pairs = itertools.product(range(len(a)), range(len(b)))
        apart = [(a[i] - b[j]).square().sum().sqrt() for i, j in pairs if not (same and i == j)]
        return float(sum(apart)) / len(apart)

    found = []
    for mine, theirs in zip(student.unbind(1), teacher.unbind(1), strict=True):
        own = mean(mine, mine, True) + mean(theirs, theirs, True)
        found.append(2 * mean(mine, theirs, False) - own)
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize(("size", "classes"), [(1, 2), (2, 2), (3, 4)])
def test_the_energy_distance_is_that_of_the_obvious_loop(size: int, classes: int) -> None:
    student, teacher = draws(5, 3, size, classes), draws(7, 3, size, classes)
    torch.testing.assert_close(joint_energy(student, teacher), slowly(student, teacher))


def test_two_inputs_that_agree_are_far_from_two_that_do_not() -> None:
    """Equal marginals, opposed joint laws of two functions; all distances are known."""
    p = torch.tensor([0.2, 0.9], dtype=torch.float64)
    gap = 2**0.5 * 0.7  # of (p, 1 - p) at one input
    law = torch.stack([p, 1 - p], -1)  # two functions, two classes
    agree = law[:, None, None].expand(2, 1, 2, 2).repeat(500, 1, 1, 1)
    opposed = torch.stack([law, law.flip(0)], 1)[:, None].repeat(500, 1, 1, 1)
    # Within a law half of all pairs are equal, else both inputs differ; between laws one differs.
    expected = 2 * gap - 2 * (2**0.5 * gap) / 2
    within = 1000 / 999  # pairs of different draws
    off = (within - 1) * 2**0.5 * gap
    found = joint_energy(agree, opposed)
    torch.testing.assert_close(found, torch.tensor([expected - off], dtype=torch.float64))
    for alone in (0, 1):  # marginals agree
        same = joint_energy(agree[:, :, [alone]], opposed[:, :, [alone]])
        assert abs(float(same)) < 2 * gap / 999


def test_the_order_of_the_inputs_of_a_group_is_nothing() -> None:
    student, teacher = draws(6, 4, 3, 3), draws(8, 4, 3, 3)
    turned = [2, 0, 1]
    again = joint_energy(student[:, :, turned], teacher[:, :, turned])
    torch.testing.assert_close(again, joint_energy(student, teacher))
    other = joint_energy(student[:, :, turned], teacher)
    assert (other - again).abs().max() > 1e-3


def test_a_group_of_one_input_has_the_marginal_distance() -> None:
    student, teacher = draws(9, 5, 1, 2), draws(12, 5, 1, 2)
    marginal = energy_distance_loss(student[:, :, 0], teacher[:, :, 0])
    torch.testing.assert_close(joint_energy(student, teacher), marginal / 2**0.5)


def test_gradient_of_the_energy_distance() -> None:
    student, teacher = draws(4, 2, 2, 3).requires_grad_(), draws(5, 2, 2, 3)
    assert torch.autograd.gradcheck(lambda mine: joint_energy(mine, teacher), student)


@pytest.fixture
def critic() -> JointWitness:
    torch.manual_seed(1)
    return JointWitness(4, 3, width=8).double()


def test_a_witness_does_not_see_the_order_of_inputs(critic: JointWitness) -> None:
    u = torch.randn(2, 3, 4, generator=GENERATOR, dtype=torch.float64)
    points, turned = draws(5, 2, 3, 3), [2, 0, 1]
    torch.testing.assert_close(critic(u[:, turned], points[:, :, turned]), critic(u, points))
    assert (critic(u, points[:, :, turned]) - critic(u, points)).abs().max() > 1e-3


class Loss(nn.Module):
    """A witness, called for its loss at the same points for the slopes every time."""

    def __init__(self, critic: JointWitness) -> None:
        super().__init__()
        self.critic = critic

    def forward(self, *seen: Tensor) -> Tensor:
        torch.manual_seed(2)
        return self.critic.loss(*seen, penalty=50.0)


def test_gradients_of_the_bound_and_of_its_penalty(critic: JointWitness) -> None:
    with torch.no_grad():  # slopes above 1
        critic.inner.weight.mul_(8)
        critic.last.weight.mul_(8)
    u = torch.randn(2, 2, 4, generator=GENERATOR, dtype=torch.float64)
    student, teacher = draws(3, 2, 2, 3).requires_grad_(), draws(3, 2, 2, 3)
    assert torch.autograd.gradcheck(lambda mine: critic.gain(u, mine, teacher), student)
    loss = Loss(critic)
    for name, weight in loss.named_parameters():
        if name.endswith("weight"):

            def at(weight: Tensor, name: str = name) -> Tensor:
                return torch.func.functional_call(loss, {name: weight}, (u, student, teacher))

            assert torch.autograd.gradcheck(at, weight, fast_mode=True)


def test_the_penalty_is_that_of_the_obvious_loop(critic: JointWitness) -> None:
    with torch.no_grad():
        critic.last.weight.mul_(40)
    u = torch.randn(2, 2, 4, generator=GENERATOR, dtype=torch.float64)
    student, teacher = draws(3, 2, 2, 3), draws(3, 2, 2, 3)
    found = float(Loss(critic)(u, student, teacher).detach())
    torch.manual_seed(2)
    mix = torch.rand(3, 2, 1, 1, dtype=torch.float64)
    points, step = mix * teacher + (1 - mix) * student, 1e-6
    # Moves of one input inside its simplex, of length 1.
    moves = torch.tensor([[1.0, -1, 0], [1, 1, -2]], dtype=torch.float64)
    moves = moves / moves.norm(dim=1, keepdim=True)
    excess = 0.0
    for s, g in itertools.product(range(3), range(2)):
        slopes = []
        for input_, move in itertools.product(range(2), moves):
            there, back = points[s, g].clone(), points[s, g].clone()
            there[input_] += step * move
            back[input_] -= step * move
            pair = torch.stack([there, back])[:, None]
            up, down = critic(u[[g]], pair)[:, 0].detach()
            slopes.append(float(up - down) / (2 * step))
        excess += max(0.0, sum(each**2 for each in slopes) ** 0.5 - 1) ** 2 / 6
    assert excess > 0.1
    gain = float((critic(u, teacher).mean(0) - critic(u, student).mean(0)).mean().detach())
    assert found == pytest.approx(50 * excess - gain, rel=1e-5)
