"""What every rank does in ``test_distributed.py``.

It is started by ``torchrun ... rank_worker.py FOLDER MODE``, or by :func:`start` in a process that
has imported all this before.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from flat import distill_flat
from safetensors.torch import save_file
from taught import Scripted, X, teacher
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from pyro_opu import MomentMatching, PredictiveGuide, WassersteinELBO
from pyro_opu.distributed import ALONE, Ranks, join
from pyro_opu.judging import ClassJudge
from pyro_opu.objectives import Objective
from pyro_opu.objectives.cross_entropy import cross_entropy
from pyro_opu.training.batches import Batches
from pyro_opu.training.fit import Phase
from pyro_opu.training.phases import distillation_phase
from pyro_opu.training.plan import Plan
from pyro_opu.training.tuned import EFFORTS
from pyro_opu.transfer import HeldOut, Jitter

QUICK: dict[str, Any] = {
    "num_steps": 20,
    "num_draws": 8,
    "batch_size": 17,  # 9 inputs for rank 0, 8 for rank 1
    "evaluate_every": 5,
    "seed": 3,
    "progress": False,
}
GIVEN: list[Tensor] = []


class Recording(HeldOut):
    """Writes down what it gives."""

    def _draw(self, n: int) -> Tensor:
        GIVEN.append(self._rows(n))
        return GIVEN[-1]


def averages(ranks: Ranks) -> dict[str, Any]:
    """Gradients of (1, 2) and (5, 6), one on rank 1 alone, one nowhere; weights 1/4 and 3/4."""
    both, one, none = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    both.grad = torch.tensor([1.0, 2.0]) + 4 * ranks.rank
    if ranks.rank == 1:
        one.grad = torch.tensor([8.0, 0.0])
    values = ranks.all_reduce_gradients(
        [both, one, none], [float(ranks.rank), 1.0], (0.25, 0.75)[ranks.rank]
    )
    assert one.grad is not None
    return {
        "gradients": [both.grad.tolist(), one.grad.tolist(), none.grad],
        "values": values,
    }


def gradient_of_a_step(ranks: Ranks, batch: Tensor, size: int) -> list[list[float]]:
    """Gradients, clipped, of a step on a given batch from a guide that is always the same."""
    torch.manual_seed(0)
    guide = PredictiveGuide.for_inputs(X, 3, hidden=(4,))
    plan = Plan(10, 0, size, 12, 12, 1e-3, 5)
    feed = Batches(lambda x, n: teacher(x), Scripted(batch), plan, torch.device("cpu"), 12, ranks)
    phase = distillation_phase(
        "warm start", MomentMatching(), guide, feed, steps=10, rate=1e-3, num_draws=12
    )
    phase.step(0)
    return [p.grad.flatten().tolist() for p in guide.parameters()]


class BrokenOnOneRank(Objective):
    """Cross-entropy that is no number on rank 1."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank

    def parts(self, student: Any, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        return {"loss": cross_entropy(student, draws) * (float("nan") if self._rank else 1.0)}


def refused(**changes: Any) -> str:
    """The message of the error that a distillation ends with."""
    try:
        source, x = changes.pop("source", teacher), changes.pop("x", X)
        distill_flat(source, x, **{**QUICK, **changes})
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def narrow(x: Tensor) -> Tensor:
    """The teacher's mean with 1/25 of its variance."""
    draws = teacher(x)
    return draws.mean(0) + (draws - draws.mean(0)) / 5


def other_row(ranks: Ranks) -> list[str]:
    """What is said where one of two rows, at most one of them judging, differs a little."""
    said = []
    for row in range(2):
        other = X.clone()
        other[row] += 1e-6 * ranks.rank
        said.append(refused(x=other))
    return said


def decided_apart(ranks: Ranks) -> list[str]:
    """Phases of a run that one rank alone, by its own draws, would not refine."""
    decided = (-1.0, 1.0)[ranks.rank]
    with mock.patch.object(ClassJudge, "sampling_distance", lambda _: decided):
        fast = distill_flat(teacher, X, **{**QUICK, "loss": "energy"})
    return sorted({record["phase"] for record in fast.report["history"]})


def left_early(folder: Path, ranks: Ranks) -> str:
    """What is said where a step of rank 1 breaks in training.

    Rank 1 then does nothing until rank 0 goes on: if rank 0 waits for rank 1, neither ends.
    """
    step = Phase.step

    def breaking(phase: Phase, number: int) -> dict[str, float]:
        if ranks.rank == 1 and number == 12:
            raise ValueError("the user's own")
        return step(phase, number)

    with mock.patch.object(Phase, "step", breaking):
        said = refused()
    goes_on = folder / "rank 0 goes on"
    if ranks.first:
        goes_on.touch()
    while not goes_on.exists():
        time.sleep(0.01)
    return said


def inputs_labelled() -> int:
    """How many inputs this rank labels of the 64 that are labelled together, in batches of 17."""
    GIVEN.clear()
    with mock.patch.dict(EFFORTS, default=(3000, 64)):
        distill_flat(teacher, X, guide="network", transfer=Recording(), **QUICK)
    return sum(len(batch) for batch in GIVEN)


def whole(folder: Path, ranks: Ranks) -> None:
    """All that is done without a death; every rank writes what it found."""
    torch.manual_seed(100 + ranks.rank)  # nothing may depend on what a rank did before
    trunk = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Tanh())
    guide = PredictiveGuide(trunk, 6, 3)
    loss = WassersteinELBO(critic_warmup=2, critic_steps=1, num_samples=8)
    fast = distill_flat(teacher, X, guide=guide, loss=loss, transfer=Recording(), **QUICK)
    save_file(guide.state_dict(), folder / f"weights-{ranks.rank}.safetensors")
    cut = X[:9] if ranks.first else X[9:17]
    found = {
        "report": fast.report,
        "sizes": sorted({len(batch) for batch in GIVEN}),
        "first batch": GIVEN[0].tolist(),
        "labelled": inputs_labelled(),
        "seed": distill_flat(teacher, X, **{**QUICK, "seed": None, "num_steps": 1}).report["seed"],
        "average": averages(ranks),
        "share": [ranks.share(17), ranks.share(2), ranks.share(1)],
        "same": ranks.broadcast(ranks.rank),
        "all": ranks.all_gather(ranks.rank),
        "step": gradient_of_a_step(ranks, cut, size=17),
        "step alone": gradient_of_a_step(ALONE, X[:17], size=17),
        "other inputs": refused(x=X + ranks.rank),
        "other steps": refused(num_steps=20 + ranks.rank),
        "small batch": refused(batch_size=1),
        "other policy": refused(transfer=Jitter(0.5 + ranks.rank)),
        "a row": other_row(ranks),
        "narrow": refused(source=narrow if ranks.first else teacher, guide="network"),
        "apart": decided_apart(ranks),
        "left": left_early(folder, ranks),
        "several inputs": several_inputs(folder, ranks),
        "joint": distill_flat(rough, X, guide="joint", **QUICK).probs(X[:3]).tolist(),
        "not finite": refused(loss=BrokenOnOneRank(ranks.rank), warm_start=False),
    }
    (folder / f"found-{ranks.rank}.json").write_text(json.dumps(found))
    streamed(folder / f"unbroken-{ranks.rank}.safetensors", teacher)


def rough(x: Tensor) -> Tensor:
    """Draws that are not linear in x."""
    return (teacher(x).log() + teacher(3 * x).sin()).softmax(-1)


def several_inputs(folder: Path, ranks: Ranks) -> list[Any]:
    """The indices that a student has seen where each rank's rows hold some of them."""
    rows: Any = [{"x": x, "group": torch.tensor(i % 6)} for i, x in enumerate(X)]
    sampler = DistributedSampler(rows, shuffle=False)  # every other row
    draws = torch.randn(12, 6, 3, generator=torch.Generator().manual_seed(4))
    fast = distill_flat(
        lambda x, group: (teacher(x).log() + draws[:, group]).softmax(-1),
        DataLoader(rows, batch_size=8, sampler=sampler),
        **QUICK,
    )
    save_file(fast.guide.state_dict(), folder / f"several-{ranks.rank}.safetensors")
    return fast.form.indices


def streamed(path: Path, source: Any, **changes: Any) -> None:
    """Distil from a shuffled loader, and write the student's weights."""
    loader = DataLoader(TensorDataset(X), batch_size=8, shuffle=True)
    fast = distill_flat(source, loader, **{**QUICK, "loss": "energy", **changes})
    save_file(fast.guide.state_dict(), path)


def mortal(folder: Path, ranks: Ranks) -> None:
    """The streamed run, in which rank 1 is killed once, between two checkpoints."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    steps, step = 0, Phase.step

    def dies_once(phase: Phase, number: int) -> dict[str, float]:
        nonlocal steps
        steps += 1
        if ranks.rank == 1 and attempt == 0 and steps == 12:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(phase, number)

    path = folder / f"resumed-{ranks.rank}.safetensors"
    with mock.patch.object(Phase, "step", dies_once):
        streamed(path, teacher, checkpoint=folder / "run.safetensors")
    note = {"attempt": attempt, "steps": steps}
    (folder / f"resumed-{ranks.rank}.json").write_text(json.dumps(note))


def run(folder: Path, mode: str) -> None:
    torch.set_num_threads(1)
    if mode == "whole":  # before there is a process group
        said = refused(num_steps=(20, 0)[int(os.environ["RANK"])])
        (folder / f"refused-{os.environ['RANK']}.txt").write_text(said)
    {"whole": whole, "mortal": mortal}[mode](folder, join())


def start(rank: int, port: int, folder: Path, mode: str) -> None:
    """Be one of two ranks, with the variables that ``torchrun`` sets; its store is at ``port``."""
    found = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    found |= {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": 0}
    os.environ.update({name: str(value) for name, value in found.items()}, MASTER_ADDR="127.0.0.1")
    try:
        run(folder, mode)
    except BaseException:
        (folder / f"error-{rank}.txt").write_text(traceback.format_exc())
        raise


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])
