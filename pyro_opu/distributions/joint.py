"""Answers whose draws are joint over the inputs: each draw is one function of x."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_opu.distributions.empirical import Empirical
from pyro_opu.rng import drawing

__all__ = ["JointClasses", "JointNormals", "JointAnswer"]


class JointClasses(Empirical):
    """Equally likely functions ``x -> class probabilities`` at N inputs, ``(K, N, C)``.

    Its marginals are :class:`~.distributions.empirical.Empirical`; a draw is the same function at
    all inputs.
    """

    def log_rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Functions chosen at random, ``(*sample_shape, N, C)``."""
        shape, count = torch.Size(sample_shape), len(self.log_points)
        with drawing(self.log_points.device) as generator:
            device = self.log_points.device
            chosen = torch.randint(count, (shape.numel(),), generator=generator, device=device)
        return self.log_points[chosen].reshape(*shape, *self.log_points.shape[1:])

    def predict(self, count: int, parameters: bool = True) -> tuple[Tensor, Tensor | None]:
        """Labels ``(S, N)`` and class probabilities, by the functions in order, then over again."""
        probs = self.log_points[_in_turn(count, self.log_points)].exp()
        with drawing(probs.device) as generator:
            labels = torch.multinomial(probs.flatten(0, 1), 1, generator=generator)
        return labels.reshape(count, -1), probs


class JointNormals:
    """Equally likely functions ``x -> normal of y`` at N inputs.

    ``said`` ``(K, N, 2)`` holds the mean and the logarithm of the noise's deviation.
    """

    def __init__(self, said: Tensor) -> None:
        self.said = said

    def predict(self, count: int, parameters: bool = True) -> tuple[Tensor, Tensor]:
        """Draws of y and of its mean ``(S, N)``, by the functions in order, then over again."""
        f, log_scale = self.said[_in_turn(count, self.said)].unbind(-1)
        with drawing(f.device) as generator:
            noise = torch.empty_like(f).normal_(generator=generator)
        return f + log_scale.exp() * noise, f


JointAnswer = JointClasses | JointNormals


def _in_turn(count: int, values: Tensor) -> Tensor:
    return torch.arange(count, device=values.device) % len(values)
