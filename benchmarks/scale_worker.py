"""What one process of ``benchmarks.scale`` does, alone or as a rank of ``torchrun``."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import pyro_opu
from benchmarks.digits import digits
from benchmarks.digits_fidelity import SIZES
from pyro_opu.distributed import join
from pyro_opu.models.neural_network import dropout_network
from pyro_opu.transfer import TransferPolicy, default_transfer


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
        dies_at: At its so manieth batch rank 1 is killed, in the first attempt.
    """

    teacher: str
    seed: int
    num_steps: int
    batch_size: int
    evaluate_every: int
    loss: str
    rows: int
    folder: str
    dies_at: int | None = None


@dataclass(frozen=True)
class Watched(TransferPolicy):
    """The default policy, which writes down when it is asked, and once does not answer."""

    job: Job
    rank: int = field(compare=False)  # what ranks may differ in
    times: list[float] = field(default_factory=list, compare=False)
    policy: TransferPolicy | None = None

    def fit(self, x: Tensor) -> Watched:
        return replace(self, policy=default_transfer(x).fit(x))

    def sample(self, n: int) -> Tensor:
        self.times.append(time.perf_counter())
        attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        if self.rank == 1 and attempt == 0 and len(self.times) == self.job.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.policy.sample(n)


def network(path: str) -> nn.Module:
    """The teacher, from its file."""
    found = dropout_network(SIZES)
    found.load_state_dict(load_file(path))
    return found


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    ranks, folder = join(), Path(job.folder)
    policy = Watched(job, ranks.rank)
    start = time.perf_counter()
    fast = pyro_opu.distill(
        network(job.teacher),
        digits(job.seed).transfer.x[: job.rows],
        loss=job.loss,
        transfer=policy,
        num_steps=job.num_steps,
        batch_size=job.batch_size,
        evaluate_every=job.evaluate_every,
        seed=job.seed,
        checkpoint=None if job.dies_at is None else folder / "checkpoint.safetensors",
        progress=False,
    )
    found = {
        "seconds": time.perf_counter() - start,
        "ms per step": 1e3 * statistics.median(b - a for a, b in pairwise(policy.times)),
        "batches": len(policy.times),
        "attempt": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
    }
    save_file(fast.guide.state_dict(), folder / f"weights-{ranks.rank}.safetensors")
    if ranks.first:
        fast.save(folder / "student.safetensors")
        (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
