"""Every study and every table of the papers runs in its quick form, and writes nothing."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent
STUDIES = (
    "asking",
    "batch_bald",
    "concentration",
    "conformal",
    "flagship",
    "following",
    "forests",
    "gpu_tests",
    "implicit",
    "joint_testbed",
    "main_job",
    "many_classes",
    "memory",
    "novelty",
    "on_gpu",
    "refinements",
    "scale",
    "scoring",
    "serving",
    "speed",
    "students",
    "tools",
    "verdicts",
    "wasserstein",
)
TABLES = (
    "boston",
    "dark_knowledge",
    "gaussian_process",
    "laplace_bridge",
    "laplace_mnist",
    "mnist_sgld",
    "opu_objective",
    "opu_table1",
    "opu_table2",
    "opu_table3",
    "toy_regression",
)
#: They read a data set that a user may not have.
DATA = (
    "boston",
    "conformal",
    "flagship",
    "following",
    "forests",
    "gaussian_process",
    "laplace_mnist",
)
DATA += ("mnist_sgld", "novelty", "opu_objective", "opu_table1", "opu_table2", "opu_table3")
DATA += ("refinements",)


def parameters(room: str, names: tuple[str, ...]) -> list:
    return [
        pytest.param(f"{room}.{name}", marks=pytest.mark.data if name in DATA else (), id=name)
        for name in names
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("brief")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "command", parameters("benchmarks", STUDIES) + parameters("papers", TABLES)
)
def test_quick_form(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In seconds, without an error; no file of the checkout is changed."""
    status = ["git", "status", "--porcelain", "--", "benchmarks", "papers", "docs"]
    before = subprocess.run(status, cwd=ROOT, capture_output=True).stdout
    threads = torch.get_num_threads()
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [command, "--quick"])
    try:
        runpy.run_module(command, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        assert not end.code, end.code
    finally:
        torch.set_num_threads(threads)
    assert subprocess.run(status, cwd=ROOT, capture_output=True).stdout == before


def test_all_commands_are_run() -> None:
    """A new command is a line above, or one that has a test of its own."""
    for room, names in (("papers", TABLES), ("benchmarks", STUDIES)):
        found = {
            path.stem
            for path in (ROOT / room).glob("*.py")
            if 'if __name__ == "__main__"' in path.read_text()
        }
        assert set(names) <= found
        assert room == "benchmarks" or set(names) == found
