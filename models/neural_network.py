"""Bayesian neural networks."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def dropout_network(sizes: tuple[int, ...], p: float = 0.5) -> nn.Sequential:
    """A perceptron with ReLU and dropout after every hidden layer (Gal and Ghahramani 2016).

    Args:
        sizes: Widths, input and classes included, such as (64, 128, 128, 10).
        p: Probability that a unit is dropped.

    Returns:
        ``x (N, D) -> logits (N, C)``.
    """
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(p)]
    return nn.Sequential(*layers[:-2])


def fit_network(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    epochs: int = 200,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
    weight_decay: float = 1e-4,
) -> nn.Module:
    """Train a classifier by cross-entropy with Adam, in place; returns it.

    The l2 term of ``weight_decay`` is the one that makes dropout a variational posterior under
    a Gaussian prior on the weights.

    Args:
        network: ``x (N, ...) -> logits (N, C)``.
        x: Inputs ``(N, ...)``.
        y: Labels ``(N,)``.
        epochs: Passes over the data.
        batch_size: Rows per step.
        learning_rate: Adam's.
        weight_decay: Coefficient of the l2 term.
    """
    optimizer = torch.optim.Adam(network.parameters(), learning_rate, weight_decay=weight_decay)
    network.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(batch_size):
            optimizer.zero_grad()
            cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
    return network.eval()
