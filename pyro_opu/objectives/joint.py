r"""Distances between joint distributions: of what draws say of all inputs of a group together.

Draws at G groups of k inputs are ``(S, G, k, K)``, and a point is what one draw says of a whole
group, k K numbers: class probabilities on a product of k simplices, or numbers of a real y. The
ground metric is Euclidean there. (The l1 metric would see each number by itself: its energy
distance is the sum of those of the marginals, and is zero for draws that are independent between
inputs.) Neither distance depends on the order of the inputs of a group, and a group of one input
has the distance between marginal distributions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from pyro_opu.objectives.critic import SLOPE
from pyro_opu.objectives.energy import joint_energy_distance

__all__ = ["JointWitness", "joint_energy", "joint_slope"]


def joint_energy(student: Tensor, teacher: Tensor) -> Tensor:
    r"""Energy distance ``(G,)`` between joint distributions, zero only where these are equal.

    .. math::
        2\,\mathbb{E}\|\pi - \pi'\|_2 - \mathbb{E}\|\pi - \tilde\pi\|_2
        - \mathbb{E}\|\pi' - \tilde\pi'\|_2, \qquad \pi = (\pi(x_1), \dots, \pi(x_k))

    Unbiased for independent draws, so it may be below zero. For one input with two classes it
    is that of ``energy_distance_loss`` over :math:`\sqrt 2`.

    Args:
        student, teacher: Draws ``(S, G, k, K)`` and ``(T, G, k, K)``, two or more of each.

    References:
        Szekely and Rizzo (2013), Energy statistics; Gneiting and Raftery (2007), Strictly proper
        scoring rules, section 4.3, for the score of several numbers together.

    Example:
        >>> together = torch.tensor([[0.1, 0.1], [0.9, 0.9]])[:, None, :, None]  # two inputs agree
        >>> opposed = torch.tensor([[0.1, 0.9], [0.9, 0.1]])[:, None, :, None]  # same marginals
        >>> joint_energy(together, opposed) > joint_energy(together, together) + 0.4
        tensor([True])
    """
    return joint_energy_distance(student.flatten(2), teacher.flatten(2))


class JointWitness(nn.Module):
    r"""A witness on a product of simplices, one for each group, the same in any order of inputs.

    .. math:: \psi(\pi_1, \dots, \pi_k;\ x_1, \dots, x_k)
        = \rho\Big(\tfrac1{\sqrt k} \textstyle\sum_i \phi(x_i, \pi_i)\Big)

    Args:
        size: Numbers u that stand for an input.
        num_outputs: K.
        width: Hidden units of each network.

    References:
        Cui et al. (2019), eq. 5, whose witness is of one input. Zaheer et al. (2017), Deep sets.
    """

    def __init__(self, size: int, num_outputs: int, width: int = 64) -> None:
        super().__init__()
        self.of_input, self.of_point = nn.Linear(size, width), nn.Linear(num_outputs, width)
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)
        self.last = nn.Linear(width, 1)

    def forward(self, u: Tensor, points: Tensor) -> Tensor:
        """Values ``(S, G)`` at points ``(S, G, k, K)`` of groups with ``u`` ``(G, k, size)``."""
        # An input scales and shifts what is read of its point.
        read = self.of_point(points) * (1 + self.of_input(u).tanh()) + self.of_input(u)
        each = leaky_relu(self.inner(leaky_relu(read, SLOPE)), SLOPE)
        together = each.sum(2) / points.shape[2] ** 0.5
        return self.last(leaky_relu(self.outer(together), SLOPE))[..., 0]

    def gain(self, u: Tensor, student: Tensor, teacher: Tensor) -> Tensor:
        r""":math:`\mathbb{E}_p\psi - \mathbb{E}_q\psi` of each group ``(G,)``."""
        return self(u, teacher).mean(0) - self(u, student).mean(0)

    def loss(self, u: Tensor, student: Tensor, teacher: Tensor, penalty: float = 1.0) -> Tensor:
        """What the witness descends: less gain, and slopes above 1 between draws of both."""
        pairs = min(len(student), len(teacher))
        mix = torch.rand(pairs, len(u), 1, 1, dtype=teacher.dtype, device=teacher.device)
        points = (mix * teacher[:pairs] + (1 - mix) * student[:pairs]).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self(u, points).sum(), points, create_graph=True)
        excess = (joint_slope(gradient) - 1).relu().square().mean()
        return penalty * excess - self.gain(u, student.detach(), teacher).mean()


def joint_slope(gradient: Tensor) -> Tensor:
    """Slope ``(...)`` of a function on a product of simplices, from its gradient ``(..., k, C)``.

    A move inside the simplices sums to zero in each, so only the tangent part counts.
    """
    tangent = gradient - gradient.mean(-1, keepdim=True)
    return torch.linalg.vector_norm(tangent.flatten(-2), dim=-1)
