"""Work and peaks of a GPU, and its recorded passes."""

from __future__ import annotations

import argparse

import pytest

from benchmarks import (
    speed_bars,
    speed_cuda,
)
from benchmarks.speed_models import SUBJECTS


class TestWork:
    def test_of_a_network(self) -> None:
        """784-400-400-10 at three rows: 477,600 products, and 1,594 numbers in or out of a row."""
        network = SUBJECTS["mlp"].plug_in(10)
        found = speed_cuda.work_of(network, 3)
        assert found.flops == 2 * 3 * (784 * 400 + 400 * 400 + 400 * 10)
        assert found.bytes == 4 * (784 * 400 + 400 * 400 + 400 * 10 + 3 * (784 + 400 + 400 + 10))

    def test_share_of_the_peak(self) -> None:
        work, peak = speed_cuda.Work(flops=6e12, bytes=1e12), speed_cuda.Peak(4e12, 60e12)
        row = speed_cuda.achieved(work, 0.5, peak)
        assert row["GB/s"] == 2000 and row["TFLOP/s"] == 12
        assert row["share of peak bandwidth"] == 0.5 and row["share of peak FLOP/s"] == 0.2
        assert speed_cuda.achieved(work, 0.5, None)["share of peak bandwidth"] == "unknown"

    def test_devices_by_name(self) -> None:
        assert speed_cuda.peak_of("NVIDIA H200") == speed_cuda.PEAKS["H200"]
        assert speed_cuda.peak_of("NVIDIA H100 PCIe") == speed_cuda.PEAKS["H100 PCIe"]
        assert speed_cuda.peak_of("NVIDIA H100 80GB HBM3") == speed_cuda.PEAKS["H100"]
        assert speed_cuda.peak_of("some other") is None


@pytest.mark.gpu
class TestOnTheGPU:
    def test_tables(self) -> None:
        args = argparse.Namespace(device="cuda", quick=True, budget=0.1)
        rows = speed_cuda.part(args)["CUDA"]
        assert {row["N"] for row in rows} == {1, 1000}
        assert all(row["us"] > 0 for row in rows)
        assert len(speed_bars.bars({"CUDA": rows}, "cuda")) == 5
