"""Fixtures for the tests of the package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def clean_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """On a GPU, fail the test that leaves it unusable, and mend it for those that come after."""
    wanted = "gpu" in request.keywords or "cuda" in request.config.getoption("--device")
    if not (wanted and torch.cuda.is_available()):
        yield
        return
    torch.cuda.synchronize()  # what raises here was lost to an earlier test for good
    yield
    torch.cuda.synchronize()
    try:
        torch.rand(1, device="cuda")
    except RuntimeError as error:
        with torch.cuda.stream(torch.cuda.Stream()):
            cell, graph = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
            graph.capture_begin()
            cell.zero_()
            graph.capture_end()
        pytest.fail(f"the GPU's random generator left unusable: {error}")


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device of ``--device``."""
    return torch.device(request.config.getoption("--device"))
