"""The commands that need a GPU: that they rest without one, and what they count."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest
import torch

from benchmarks import gpu_tests, on_gpu


@pytest.mark.parametrize(
    ("command", "parts"),
    [(gpu_tests, ("tested", "finish")), (on_gpu, ("teachers", "of_seed", "finish"))],
)
def test_nothing_is_written_without_one(
    command: ModuleType,
    parts: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def never(*args: object) -> None:
        raise AssertionError("there is nothing to run or to write")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["command"])
    for name in parts:
        monkeypatch.setattr(command, name, never)
    command.main()
    assert "There is no GPU here" in capsys.readouterr().out


def test_counts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    process = subprocess.Popen

    def says(text: str) -> None:
        program = f"import sys; print({text!r}); sys.exit(1)"
        monkeypatch.setattr(
            subprocess,
            "Popen",
            lambda command, **settings: process([sys.executable, "-c", program], **settings),
        )

    says("lines\n2 failed, 31 passed, 4 skipped, 1 warning, 1 error in 9.87s")
    row = gpu_tests.tested("-m", "gpu")
    assert {**row, "s": 0} == {
        "command": "pytest -m gpu", "passed": 31, "failed": 3, "skipped": 4, "s": 0,
    }  # fmt: skip
    assert "lines\n2 failed" in capsys.readouterr().out
    says("no tests ran in 0.01s")
    with pytest.raises(RuntimeError, match="status 1 after: no tests ran"):
        gpu_tests.tested()
