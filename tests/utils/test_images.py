"""Images, and sequences that have the shape of images."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pyro_opu.guides.networks import default_trunk_config
from pyro_opu.transfer import ImageCorruption, default_transfer
from pyro_opu.utils.images import are_images, flattened_shape


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


def pictures(side: int, channels: int = 1, rows: int = 200) -> Tensor:
    """Pictures of a spot in every channel, with a frame that is the same in all, ``(N, D)``."""
    place = torch.rand(rows, channels, 2, 1, 1, generator=torch.Generator().manual_seed(0)) * side
    down, across = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    spot = torch.exp(-((down - place[:, :, 0]) ** 2 + (across - place[:, :, 1]) ** 2) / 8)
    spot[..., 0, :] = 0.3
    return spot.flatten(1) * 255


ROWS = {
    "pictures": (pictures(16), (1, 16, 16)),
    "of 28 x 28, a few": (pictures(28, rows=20), (1, 28, 28)),
    "of three channels": (pictures(16, 3), (3, 16, 16)),
    "small": (pictures(8), None),
    "no square": (pictures(17)[:, 17:], None),
    "in another order": (pictures(16)[:, torch.randperm(256)], None),
    "of one row": (pictures(16, rows=1), None),
    "noise": (torch.randn(200, 256), None),
    "walks": (torch.randn(200, 256).cumsum(1), None),
    "waves": ((torch.arange(784) / 20 + 7 * torch.rand(200, 1)).sin(), None),
    "one large column": (torch.randn(200, 256) * (1 + 1e3 * (torch.arange(256) == 0)), None),
    "constants": (torch.ones(5, 256), None),
    "images": (pictures(16).view(-1, 16, 16), None),
}


@pytest.mark.parametrize(("x", "expected"), ROWS.values(), ids=ROWS)
def test_rows_of_pixels_are_known_by_their_neighbours(
    x: Tensor, expected: tuple[int, ...] | None
) -> None:
    assert flattened_shape(x) == expected
    if x.ndim == 2:
        policies = [policy for _, policy in getattr(default_transfer(x), "components")]  # noqa: B009
        shapes = [p.image_shape for p in policies if isinstance(p, ImageCorruption)]
        assert shapes == ([] if expected is None else [expected])
