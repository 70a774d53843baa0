"""Killed runs and writers, many writers, damaged files, threads and time stamps."""

from __future__ import annotations

import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pyro_opu import OnePassPredictive, PredictiveGuide, distill
from pyro_opu.guides.networks import Perceptron
from pyro_opu.utils import files
from reliability.jobs import LOSSES, X, contents, is_whole, killed, put, student


@pytest.fixture(scope="module")
def processes() -> Any:
    """Processes that are forked by one without threads, which has imported what they need."""
    try:
        context = multiprocessing.get_context("forkserver")
    except ValueError:
        pytest.skip("needs a system that forks")
    context.set_forkserver_preload(["pyro_opu"])
    return context


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_runs_killed_at_random_moments_end_as_an_unbroken_one(
    processes: Any, loss: str, tmp_path: Path
) -> None:
    worker = processes.Process(target=killed, args=(loss, tmp_path))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "unbroken").read_bytes()
    assert int((tmp_path / "kills").read_text()) > 2


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["moments", "wasserstein"])
def test_four_threads_at_once_distil_as_one_does_alone(loss: str) -> None:
    alone, before = contents(student(loss)), torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(student, loss) for _ in range(4)]
        assert all(contents(run.result(120)) == alone for run in runs)
    assert torch.equal(before, torch.get_rng_state())


def test_a_flipped_bit_of_a_students_file_is_a_value_error(tmp_path: Path) -> None:
    guide = PredictiveGuide.for_inputs(X, 3, hidden=(16, 16)).requires_grad_(False).eval()
    path = tmp_path / "fast"
    OnePassPredictive(guide, (4,), 3).save(path)
    whole = path.read_bytes()
    for bit in torch.randperm(8 * len(whole))[:400].tolist():
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError):
            OnePassPredictive.load(path)


@pytest.mark.slow
def test_four_processes_write_one_file(processes: Any, tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    put(path, 0, 1)
    workers = [processes.Process(target=put, args=(path, number, 20)) for number in range(4)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        assert is_whole(path)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert is_whole(path) and [each.name for each in tmp_path.iterdir()] == ["bytes"]


@pytest.mark.slow
def test_killed_writers_leave_a_whole_file_and_parts_that_the_next_removes(
    processes: Any, tmp_path: Path
) -> None:
    path, random = tmp_path / "bytes", Random(0)
    for number in range(20):
        put(path, 255, 1)
        worker = processes.Process(target=put, args=(path, number, 10**6))
        worker.start()
        while path.read_bytes()[:1] == b"\xff":  # it has begun
            time.sleep(1e-3)
        time.sleep(0.01 * random.random())
        worker.kill()
        worker.join()
        assert is_whole(path)
    parts = list(tmp_path.glob("*.part"))
    assert parts  # some were killed in the middle of a write
    for part in parts:
        os.utime(part, (0, time.time() - 2 * 3600))
    files.put(path, b"\0")
    assert [each.name for each in tmp_path.iterdir()] == ["bytes"]


@pytest.mark.slow
def test_time_stamps_are_learnt_as_what_is_centred() -> None:
    """Milliseconds since 1970 with a spread of 30 s, in float64."""
    stamps = 3e4 * torch.randn(1000, 1).double()
    slopes = 2 + 0.3 * torch.randn(50, 1).double()
    kl = {}
    for location in (0.0, 1.7e12):

        def ask(x: Tensor, location: float = location) -> Tensor:
            p = torch.sigmoid((x[:, 0] - location) / 3e4 * slopes)
            return torch.stack([1 - p, p], -1)

        x = location + stamps
        trunk = Perceptron((1,), (32, 32))
        trunk.fit_scale(x)
        guide: nn.Module = PredictiveGuide(trunk, 32, 2)
        kl[location] = distill(ask, x, guide=guide, num_steps=300, progress=False).report["kl"]
    assert kl[1.7e12] <= 2 * kl[0.0] + 1e-4
