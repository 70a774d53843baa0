"""Peak memory of a call, and the calls whose memory is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import (
    memory,
    speed_memory,
)
from benchmarks.speed_models import ALIKE, SUBJECTS, Kit

CPU = torch.device("cpu")


class TestMemory:
    @pytest.mark.skipif(not memory.STATUS.exists(), reason="reads Linux's /proc")
    def test_peak_of_a_call(self) -> None:
        """100 MB for a moment, then another 40; nothing of what was there before."""
        before = torch.ones(10_000_000)

        def call() -> None:
            torch.ones(25_000_000)
            torch.ones(10_000_000)

        # Pages of the allocator and of Python.
        assert memory.peak_of(call) == pytest.approx(100.0, abs=10.0)
        assert memory.peak_of(lambda: before.sum()) < 10.0

    @pytest.mark.parametrize("way", speed_memory.WAYS)
    def test_every_way_is_ready(self, way: str) -> None:
        """As it is measured: a call without gradients, for all draws."""
        for name, package in (("NumPyro", "numpyro"), ("laplace", "laplace")):
            if way.startswith(name):
                pytest.importorskip(package)
        # A regression has no widths that its student could have.
        kit = Kit(SUBJECTS["mlp" if way.endswith(ALIKE) else "logistic"], 3, 4, CPU)
        answer = speed_memory.answer(kit, way, kit.inputs(5), 4)()
        labels = answer["obs"] if isinstance(answer, dict) else answer
        assert 5 in labels.shape
        assert not getattr(labels, "requires_grad", False)

    def test_last_number_of_a_module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "says_so.py").write_text("import sys; print('peak'); print(sys.argv[1])")
        monkeypatch.chdir(tmp_path)
        assert memory.in_a_process("says_so", "12.5") == 12.5
