"""Options, one thread, a clean state and as many processes as cores, for tests and doctests."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Iterator
from types import FunctionType

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, and by what the tests start
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # on a GPU each process would take most of its memory

import numpy as np
import pyro
import pytest
import torch

torch.set_num_threads(1)

#: Functions whose examples read a data set that a user may not have.
NAMED_DATA = ("mnist", "fashion_mnist", "kmnist", "semeion", "pima", "spambase", "boston_housing")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="torch device for tests that use `device`")
    parser.addoption(
        "--shuffle",
        type=int,
        help="run modules, and the tests of each, in an order drawn from this seed",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the whole suite in a process per core with pytest-xdist; a part of it as ``-n`` says.

    Slow tests are left out of the whole: ``-m slow`` runs these, and those of a
    file given by hand are run with the others.
    """
    option = config.option
    started_by_xdist = "PYTEST_XDIST_WORKER" in os.environ  # such a process must start no others
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not option.usepdb
    if whole and config.pluginmanager.hasplugin("xdist") and not started_by_xdist:
        if option.numprocesses is None:
            cores = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
            option.numprocesses = len(cores(0))
        if option.dist == "no":  # each process begins with files of its own: fixtures made once
            option.dist = "worksteal"
    if whole and not option.markexpr:
        option.markexpr = "not slow"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.shuffle is not None:
        draw = random.Random(config.option.shuffle).random  # fixtures of a module are made once
        modules = {item.path: draw() for item in items}
        items.sort(key=lambda item: (modules[item.path], draw()))
    no_gpu = pytest.mark.skip(reason="needs a CUDA device")
    no_data = pytest.mark.skip(reason="needs PYRO_OPU_DATA, the folder of the data sets")
    for item in items:
        if isinstance(item, pytest.DoctestItem) and item.name.split(".")[-1] in NAMED_DATA:
            item.add_marker("data")
        if "device" in getattr(item, "fixturenames", ()):
            item.add_marker("device")
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(no_gpu)
        if "data" in item.keywords and not os.environ.get("PYRO_OPU_DATA"):
            item.add_marker(no_data)


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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected stays to the end: garbage is not looked for in it."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


def _seed() -> None:
    """``pyro.set_rng_seed(0)``, which takes longer than most tests where there is no GPU."""
    random.seed(0)
    np.random.seed(0)
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)


def pytest_collectstart() -> None:
    """Numbers drawn where a module is imported are the same, whatever was imported before."""
    _seed()


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef) -> None:
    """What tests share is the same, whichever of them comes first."""
    if fixturedef.scope != "function":
        _seed()


@pytest.fixture(autouse=True)
def clean_state() -> Iterator[None]:
    """Seed, clear the param store, and fail a test that leaves global state changed."""
    _seed()
    pyro.clear_param_store()
    before = _global_state()
    yield
    after = _global_state()
    changed = [f"{k}: {before[k]} -> {after[k]}" for k in before if before[k] != after[k]]
    if changed:
        _restore(before)
        pytest.fail("global state left changed: " + "; ".join(changed))


def _functions() -> dict[tuple[str, str], object]:
    """Functions and classes of Pyro and of torch.distributions, and their methods."""
    found: dict[tuple[str, str], object] = {}
    for module, entries in list(sys.modules.items()):
        if not module.startswith(("pyro.", "torch.distributions")):
            continue
        for name, value in list(vars(entries).items()):
            if isinstance(value, (FunctionType, type)):
                found[module, name] = value
            if isinstance(value, type) and value.__module__ == module:
                methods = (FunctionType, staticmethod, classmethod, property)
                own = {k: v for k, v in vars(value).items() if isinstance(v, methods)}
                found |= {(module, f"{name}.{k}"): v for k, v in own.items()}
    return found


@pytest.fixture(autouse=True, scope="module")
def clean_functions() -> Iterator[None]:
    """Fail the last test of a module that leaves a function of Pyro or torch replaced."""
    before = _functions()
    yield
    after = _functions()
    # torch wraps the step of an optimiser's class once, when the first is made.
    own = {k for k, function in after.items() if hasattr(function, "hooked")}
    replaced = [".".join(k) for k in before if k not in own and after.get(k) is not before[k]]
    if replaced:
        pytest.fail(f"functions left replaced: {', '.join(replaced)}")


@pytest.fixture(scope="module")
def coarse() -> Iterator[None]:
    """Find the shift of g by a 32nd of the numbers: by all it takes most of a short distillation.

    For modules that are about something else.
    """
    from pyro_opu.judging import laws

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(laws, "DISTANCE_NUMBERS", 2**13)
        yield


@pytest.fixture(scope="module")
def brief(coarse: None) -> Iterator[None]:
    """Judge and calibrate by few draws, too, for students that are good for nothing."""
    from pyro_opu.judging import laws
    from pyro_opu.training import tuned

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(laws, "CHOOSING_NUMBERS", 2**17)
        patch.setattr(laws, "CALIBRATING_NUMBERS", 2**17)
        patch.setattr(tuned, "VALIDATION_NUMBERS", 2**17)
        patch.setattr(tuned, "CALIBRATION_NUMBERS", 2**19)
        yield
