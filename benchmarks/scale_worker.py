"""What one process of ``benchmarks.scale`` does, alone or as a rank of ``torchrun``."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

import pyro_opu
from benchmarks.posteriors import SIZES
from papers.digits import digits
from pyro_opu.distributed import join
from pyro_opu.models.neural_network import dropout_network


@dataclass(frozen=True)
class Job:
    """One distillation of the digits teacher.

    Attributes:
        teacher: File of the network's weights.
        seed: Of the split and of the distillation.
        num_steps: Steps in all.
        batch_size: Inputs per step, of all ranks together.
        evaluate_every: Steps between evaluations, and so between checkpoints.
        loss: By name.
        rows: Transfer inputs.
        folder: Where results and the checkpoint go.
        warm_start: Whether the closed-form losses come first, whose labels are made before.
        dies_at: At its so manieth evaluation rank 0 is killed, in the first attempt.
    """

    teacher: str
    seed: int
    num_steps: int
    batch_size: int
    evaluate_every: int
    loss: str
    rows: int
    folder: str
    warm_start: bool = True
    dies_at: int | None = None


@dataclass
class Watch:
    """What rank 0 is told of the evaluations: phase, step and time of each; and its death."""

    dies_at: int | None
    seen: list[tuple[str, int, float]] = field(default_factory=list)

    def __call__(self, record: dict[str, Any]) -> None:
        self.seen.append((record["phase"], record["step"], time.perf_counter()))
        if attempt() == 0 and len(self.seen) == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def per_step(self) -> float:
        """Median seconds of a step, with its share of an evaluation."""
        return statistics.median(
            (later - earlier) / (last - first)
            for (phase, first, earlier), (other, last, later) in pairwise(self.seen)
            if phase == other
        )


def attempt() -> int:
    """How often torchrun has started the ranks again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def network(path: str) -> nn.Module:
    """The teacher, from its file."""
    found = dropout_network(SIZES)
    found.load_state_dict(load_file(path))
    return found


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    ranks, folder = join(), Path(job.folder)
    watch = Watch(job.dies_at)
    start = time.perf_counter()
    fast = pyro_opu.distill(
        network(job.teacher),
        digits(job.seed).transfer.x[: job.rows],
        loss=job.loss,
        num_steps=job.num_steps,
        training=pyro_opu.Training(
            batch_size=job.batch_size,
            evaluate_every=job.evaluate_every,
            warm_start=job.warm_start,
        ),
        callback=watch,
        seed=job.seed,
        checkpoint=None if job.dies_at is None else folder / "checkpoint.safetensors",
        progress=False,
    )
    seconds = time.perf_counter() - start
    save_file(fast.guide.state_dict(), folder / f"weights-{ranks.rank}.safetensors")
    if ranks.first:
        fast.save(folder / "student.safetensors")
        found = {
            "seconds": seconds,
            "ms per step": 1e3 * watch.per_step(),
            "evaluations": len(watch.seen),
            "attempt": attempt(),
        }
        (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
