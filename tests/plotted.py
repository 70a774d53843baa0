"""A student and a teacher of two features that tests of plots draw."""

import torch
from torch import Tensor
from torch.distributions import Dirichlet


def student(x: Tensor) -> Dirichlet:
    """Of two features: three classes, the more certain the farther from 0."""
    return Dirichlet(torch.stack([x[:, 0].exp(), x[:, 1].exp(), torch.ones(len(x))], -1))


def held_teacher(x: Tensor) -> Tensor:
    """Twenty draws, the same at every call."""
    weights = torch.linspace(-1, 1, 20)[:, None, None] * torch.tensor([[1.0, 0.3, -1.0]])
    return torch.softmax(x.sum(-1, keepdim=True) * weights + weights.square(), -1)


def labels(legend) -> list[str]:
    return [text.get_text() for text in legend.get_texts()]


def record(phase: str, step: int, energy: float, **parts: float) -> dict:
    """An evaluation in the history of a report."""
    return {**parts, "phase": phase, "step": step, "energy_distance": energy, "kl": energy / 2}
