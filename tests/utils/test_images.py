"""Images, and sequences that have the shape of images."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pyro_opu.guides.networks import default_trunk_config
from pyro_opu.transfer import ImageCorruption, default_transfer
from pyro_opu.utils.images import are_images


def walks(rows: int = 50) -> Tensor:
    """Sequences (T, F) of unrelated features, each of which moves slowly."""
    return torch.randn(rows, 12, 9, generator=torch.Generator().manual_seed(0)).cumsum(1)


def digits() -> Tensor:
    """Standardised by one mean and deviation, so that their corners are below zero."""
    images = torch.tensor(pytest.importorskip("sklearn.datasets").load_digits().images).float()
    return (images - images.mean()) / images.std()


def blobs(rows: int = 50) -> Tensor:
    """Standardised pictures of a spot."""
    place = torch.rand(rows, 2, 1, 1, generator=torch.Generator().manual_seed(0)) * 12
    down, across = torch.meshgrid(torch.arange(12), torch.arange(12), indexing="ij")
    spot = torch.exp(-((down - place[:, 0]) ** 2 + (across - place[:, 1]) ** 2) / 8)
    return (spot - spot.mean()) / spot.std()


INPUTS = {
    "a sequence": (walks(), False),
    "a noisy sequence": (torch.randn(50, 12, 9), False),
    "positive features of several scales": (walks().abs() * 100.0 ** (torch.arange(9) % 2), False),
    "pictures": (blobs(), True),
    "pixels": (torch.rand(50, 8, 8), True),
    "channels": (torch.randn(50, 3, 8, 8), True),
    "small": (torch.rand(50, 7, 8), False),
    "rows": (torch.rand(50, 64), False),
    "constants": (torch.zeros(5, 9, 9) - 1, False),
}


@pytest.mark.parametrize(("x", "expected"), INPUTS.values(), ids=INPUTS)
def test_a_sequence_is_not_taken_for_an_image(x: Tensor, expected: bool) -> None:
    assert are_images(x) == expected
    assert (default_trunk_config(x)["kind"] == "convolutions") == expected
    policies = [policy for _, policy in getattr(default_transfer(x), "components")]  # noqa: B009
    assert any(isinstance(policy, ImageCorruption) for policy in policies) == expected


def test_standardised_digits_are_images() -> None:
    assert are_images(digits())
