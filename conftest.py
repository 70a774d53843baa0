"""Fixtures and options for the tests and for the doctests of the package."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyro
import pytest
import torch

#: Functions whose examples read a data set that a user may not have.
NAMED_DATA = ("mnist", "fashion_mnist", "kmnist", "semeion", "pima", "spambase", "boston_housing")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="torch device for tests that use `device`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    no_gpu = pytest.mark.skip(reason="needs a CUDA device")
    no_data = pytest.mark.skip(reason="needs PYRO_OPU_DATA, the folder of the data sets")
    for item in items:
        if isinstance(item, pytest.DoctestItem) and item.name.split(".")[-1] in NAMED_DATA:
            item.add_marker("data")
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(no_gpu)
        if "data" in item.keywords and not os.environ.get("PYRO_OPU_DATA"):
            item.add_marker(no_data)


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


def _global_state() -> dict[str, object]:
    """The switches of torch and Pyro that no code under test may leave changed."""
    return {
        **{f"pyro.settings {name}": value for name, value in pyro.settings.get().items()},
        "torch default dtype": torch.get_default_dtype(),
        "torch default device": torch.get_default_device(),
        "torch gradient mode": torch.is_grad_enabled(),
        "torch anomaly mode": torch.is_anomaly_enabled(),
        "torch deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch number of threads": torch.get_num_threads(),
        "Pyro handler stack": len(pyro.poutine.runtime._PYRO_STACK),
    }


def _restore(state: dict[str, object]) -> None:
    prefix = "pyro.settings "
    settings = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    pyro.settings.set(**settings)
    torch.set_default_dtype(state["torch default dtype"])
    torch.set_default_device(state["torch default device"])
    torch.set_grad_enabled(bool(state["torch gradient mode"]))
    torch.autograd.set_detect_anomaly(bool(state["torch anomaly mode"]))
    torch.use_deterministic_algorithms(bool(state["torch deterministic algorithms"]))
    torch.set_num_threads(int(str(state["torch number of threads"])))
    del pyro.poutine.runtime._PYRO_STACK[int(str(state["Pyro handler stack"])) :]


@pytest.fixture(autouse=True)
def clean_state() -> Iterator[None]:
    """Seed, clear the param store, and fail a test that leaves global state changed."""
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    before = _global_state()
    yield
    after = _global_state()
    changed = [f"{k}: {before[k]} -> {after[k]}" for k in before if before[k] != after[k]]
    if changed:
        _restore(before)
        pytest.fail("global state left changed: " + "; ".join(changed))
