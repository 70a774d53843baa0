"""MNIST and other images as rows, and the dropout network of the OPU paper, 784-400-400-10."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from papers import datasets
from papers.datasets import Dataset
from pyro_opu.models.neural_network import dropout_network, fit_network

SIZES = (784, 400, 400, 10)


def pixels(data: Dataset, most: int | None = None) -> Tensor:
    """The first rows ``(N, 784)`` in [-1, 1], as the paper scales them."""
    return 2 * data.x[:most].flatten(1) - 1


def images(*, train: bool) -> tuple[Tensor, Tensor]:
    """Pixels of MNIST ``(N, 784)`` in [-1, 1], and labels."""
    data = datasets.mnist(train=train)
    return pixels(data), data.y


def judged(rows: int) -> dict[str, Tensor]:
    """The first test rows of MNIST and of two other sets, pixels ``(rows, 784)``."""
    sets = {
        "MNIST": datasets.mnist,
        "KMNIST": datasets.kmnist,
        "Fashion-MNIST": datasets.fashion_mnist,
    }
    return {name: pixels(each(train=False), rows) for name, each in sets.items()}


def trained(seed: int, train: tuple[Tensor, Tensor], epochs: int) -> nn.Module:
    """The network after so many epochs of Adam, two thirds of them at the full rate."""
    torch.manual_seed(seed)
    network, late = dropout_network(SIZES, 0.5), epochs // 3
    for part, rate in ((epochs - late, 1e-3), (late, 1e-4)):
        if part:  # one epoch has no third
            fit_network(
                network,
                *train,
                epochs=part,
                batch_size=256,
                learning_rate=rate,
                weight_decay=1e-6,
            )
    return network
