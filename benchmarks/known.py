"""Posteriors whose draws are functions of a few random numbers, at inputs in the plane.

Each takes inputs ``(N, 2)``, a uniform number ``(S, 1 or N)`` and a normal vector
``(S, 1 or N, 3)`` for each draw, and gives class probabilities ``(S, N, C)``. No single Dirichlet
can copy them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

CORNERS = 0.9 * torch.eye(4) + 0.1 / 3 * (1 - torch.eye(4))
PAIRS = torch.tensor([[0.45, 0.45, 0.05, 0.05], [0.05, 0.05, 0.45, 0.45]])
COMMON = torch.tensor([0.4, 0.3, 0.2, 0.1])
CORNER_WEIGHTS = torch.tensor([[1.0, -1.0, 0.5, -0.5], [0.4, 0.8, -0.8, -0.4]])
#: Mean weights and bias of two groups of logistic regressions.
GROUPS = torch.tensor([[2.0, 1.0, 0.5], [-1.0, 1.5, -1.0]])


def chosen(x: Tensor, means: Tensor, weights: Tensor, chance: Tensor) -> Tensor:
    """For each draw one of K means ``(K, C)``, all the same near (1, 1) and apart elsewhere."""
    which = (chance[..., None] > weights.cumsum(-1)[:, :-1]).sum(-1).expand(-1, len(x))
    apart = torch.sigmoid(3 * ((x - 1).norm(dim=-1) - 1))[:, None, None]
    return torch.lerp(COMMON, means, apart)[torch.arange(len(x)), which]


def hypotheses(x: Tensor, means: Tensor, weights: Tensor, chance: Tensor) -> Tensor:
    """Draws near the means that were chosen."""
    alpha = 50 * chosen(x, means, weights, chance)
    return torch.distributions.Dirichlet(alpha, validate_args=False).sample()


def corners(x: Tensor, chance: Tensor, noise: Tensor) -> Tensor:
    """Four groups of hypotheses, each sure of another class."""
    return hypotheses(x, CORNERS, (x @ CORNER_WEIGHTS).softmax(-1), chance)


def pairs(x: Tensor, chance: Tensor, noise: Tensor) -> Tensor:
    """Classes 0 and 1, or classes 2 and 3: the marginals do not say which go together."""
    return hypotheses(x, PAIRS, torch.full((len(x), 2), 0.5), chance)


def line(x: Tensor, chance: Tensor, noise: Tensor) -> Tensor:
    """The edge between two of three classes, as in Fig. 3 of Cui et al. (2019)."""
    p = torch.sigmoid(x[:, 0] + (0.5 + 2 * x[:, 1].abs()) * noise[..., 0])
    return torch.stack([p, 1 - p, torch.zeros_like(p)], -1)


def groups(x: Tensor, chance: Tensor, noise: Tensor) -> Tensor:
    """Two groups of logistic regressions of two classes."""
    weights = GROUPS[(chance < 0.4).long()] + 0.3 * noise
    logit = (weights[..., :2] * x).sum(-1) + weights[..., 2]
    return torch.stack([logit.sigmoid(), (-logit).sigmoid()], -1)


class Known(NamedTuple):
    """A posterior of the plane."""

    answer: Callable[[Tensor, Tensor, Tensor], Tensor]

    def teacher(self, x: Tensor, num_draws: int = 500) -> Tensor:
        """Joint draws ``(S, N, C)``: one hypothesis for all inputs."""
        return self.answer(x, torch.rand(num_draws, 1), torch.randn(num_draws, 1, 3))

    def judge(self, x: Tensor, num_draws: int) -> Tensor:
        """The same marginals, with a hypothesis for every input: a mean over inputs is steadier."""
        return self.answer(x, torch.rand(num_draws, len(x)), torch.randn(num_draws, len(x), 3))


KNOWN = {
    "four corners": Known(corners),
    "two pairs": Known(pairs),
    "two-class line": Known(line),
    "two groups": Known(groups),
}
