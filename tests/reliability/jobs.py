"""What processes do that are killed, or run beside others."""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from flat import distill_flat
from torch import Tensor

from pyro_opu import EnergyDistance, OnePassPredictive, WassersteinELBO
from pyro_opu.utils import files

WEIGHTS = torch.randn(40, 4, 3, generator=torch.Generator().manual_seed(0))
X = torch.randn(200, 4, generator=torch.Generator().manual_seed(1))
#: Evaluated, and saved, so often that many kills fall into a write.
SHORT: dict[str, Any] = {
    "num_steps": 60,
    "batch_size": 32,
    "num_draws": 8,
    "evaluate_every": 3,
    "progress": False,
}
#: What is distilled: in closed form, with draws, with an adversary whose state is saved too.
LOSSES: dict[str, Callable[[], Any]] = {
    "moments": lambda: "moments",
    "energy": lambda: EnergyDistance(16),
    "wasserstein": lambda: WassersteinELBO(critic_warmup=3, critic_steps=1, num_samples=8),
}


def posterior(x: Tensor) -> Tensor:
    """Draws of class probabilities ``(S, N, C)`` of logistic regressions."""
    return (x @ WEIGHTS).softmax(-1)


def student(loss: str, **changes: Any) -> OnePassPredictive:
    """One distillation of that posterior."""
    return distill_flat(posterior, X, **{**SHORT, "loss": LOSSES[loss](), "seed": 0, **changes})


def contents(fast: OnePassPredictive) -> bytes:
    """Weights and report, less the time it took, to be compared bit by bit."""
    weights = {name: value.numpy().tobytes() for name, value in fast.guide.state_dict().items()}
    return pickle.dumps((weights, repr({**fast.report, "spent": None})))


def killed(loss: str, folder: Path) -> None:
    """A run that is killed at random moments and started again, until it ends by itself.

    Run it in a process without threads, from which the runs can be forked.
    """
    torch.set_num_threads(1)
    student(loss)  # what is imported and made once
    start, random, kills = time.monotonic(), Random(0), 0
    (folder / "unbroken").write_bytes(contents(student(loss)))
    seconds = time.monotonic() - start
    most = 0.1 * seconds
    while True:
        worker = multiprocessing.get_context("fork").Process(target=resumed, args=(loss, folder))
        worker.start()
        worker.join(random.uniform(0.05, most))
        if worker.exitcode is not None:
            break
        worker.kill()
        worker.join()
        kills, most = kills + 1, most + 0.15 * seconds  # not for ever before the first save
    (folder / "kills").write_text(str(kills))


def resumed(loss: str, folder: Path) -> None:
    """A distillation that goes on from its checkpoint; what it ends as is written."""
    found = contents(student(loss, checkpoint=folder / "checkpoint"))
    (folder / "resumed").write_bytes(found)


def put(path: Path, number: int, times: int) -> None:
    """A megabyte of one byte, written so many times."""
    for _ in range(times):
        files.put(path, bytes([number]) * 2**20)


def is_whole(path: Path) -> bool:
    content = path.read_bytes()
    return len(content) == 2**20 and content == content[:1] * 2**20
