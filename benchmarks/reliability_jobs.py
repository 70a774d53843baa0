"""Small distillations that are killed, run by two ranks and run by several threads at once."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pyro_opu import EnergyDistance, OnePassPredictive, WassersteinELBO, distill
from pyro_opu.transfer import HeldOut, Jitter

#: Draws, features and classes of a posterior of logistic regressions, and its transfer inputs.
S, D, C, ROWS = 40, 4, 3, 200
WEIGHTS = torch.randn(S, D, C, generator=torch.Generator().manual_seed(0))
X = torch.randn(ROWS, D, generator=torch.Generator().manual_seed(1))
#: Evaluated, and saved, so often that many kills fall into a write.
SHORT: dict[str, Any] = {
    "num_steps": 150,
    "batch_size": 32,
    "num_draws": 8,
    "evaluate_every": 5,
    "progress": False,
}
#: What is distilled: in closed form, with draws, with an adversary whose state is saved too.
LOSSES: dict[str, Callable[[], Any]] = {
    "moments": lambda: "moments",
    "energy": lambda: EnergyDistance(16),
    "wasserstein": lambda: WassersteinELBO(critic_warmup=3, critic_steps=1, num_samples=8),
}

#: What is tried with ranks that are alike.
FAILS = "one fails in the midst of training"


def posterior(x: Tensor) -> Tensor:
    """Draws of class probabilities ``(S, N, C)``."""
    return (x @ WEIGHTS).softmax(-1)


def narrow(x: Tensor) -> Tensor:
    """The same means with 1/25 of the variance."""
    draws = posterior(x)
    return draws.mean(0) + (draws - draws.mean(0)) / 5


def student(loss: str, seed: int, **changes: Any) -> OnePassPredictive:
    """One distillation of that posterior."""
    settings = {**SHORT, "loss": LOSSES[loss](), "seed": seed, **changes}
    return distill(settings.pop("source", posterior), settings.pop("x", X), **settings)


def contents(fast: OnePassPredictive) -> bytes:
    """Weights and report, less the time it took, to be compared bit by bit."""
    weights = {name: value.numpy().tobytes() for name, value in fast.guide.state_dict().items()}
    return pickle.dumps((weights, repr({**fast.report, "spent": None})))


def forked(work: Callable[[], bytes], path: Path) -> int:
    """Start ``work`` in a process of its own, which writes what it returns; its number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        torch.set_num_threads(1)
        aside = path.with_suffix(".part")
        aside.write_bytes(work())
        os.replace(aside, path)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def ended(child: int, within: float) -> bool:
    """Whether a process ends by itself within so many seconds; it is killed if not.

    Raises:
        RuntimeError: it ended with an error.
    """
    end = time.monotonic() + within
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            if status:
                raise RuntimeError(f"a child process ended with status {status}")
            return True
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def refusals(rank: int, folder: Path) -> bytes:
    """What rank 0 or 1 of two is told, from when to when, where they differ in one thing."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2
    )
    found = {}
    for name, changes in {
        "teacher": {"source": (posterior, narrow)[rank]},
        "policy": {"transfer": (HeldOut(), Jitter())[rank]},
        "rows": {"x": X + 1e-6 * rank * torch.eye(ROWS)[:, -1:]},
        FAILS: {"source": (posterior, failing())[rank]},
    }.items():
        dist.barrier()
        start, said = time.monotonic(), "nothing"
        try:
            student("energy", 0, **changes)
        except (ValueError, RuntimeError) as error:
            said = f"{type(error).__name__}: {error}"
        found[name] = (said, start, time.monotonic())  # one clock for all processes
    return pickle.dumps(found)


def failing(after: int = 40) -> Callable[[Tensor], Tensor]:
    """A teacher that fails at its call number ``after``, in the midst of training."""
    calls = 0

    def probs(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > after:
            raise ValueError("no answer")
        return posterior(x)

    return probs
