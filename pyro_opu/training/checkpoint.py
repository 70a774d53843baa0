"""Checkpoints: a killed run started again ends with the weights of an unbroken one."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.checks import ArgumentError, is_sequence
from pyro_opu.distributed import ALONE, Ranks, differences
from pyro_opu.judging import Judge
from pyro_opu.objectives import Objective
from pyro_opu.rng import RandomStream, drawing
from pyro_opu.training.batches import Batches, Sampler
from pyro_opu.training.fit import KeepBest, Phase
from pyro_opu.transfer.stream import Stream
from pyro_opu.utils import files
from pyro_opu.utils.warnings import warn_user

_KIND = "distillation checkpoint"
#: Another where a release resumes otherwise, or keeps its state in another form.
_FORM = 4
#: Length of a sketch, and the period of its signs.
BUCKETS, PERIOD = 64, 2**14
#: Deviations of draws below this share of the draws themselves are rounding.
SMALL = 1e-3


class Checkpoint:
    """One file with all that changes while training, the random state of every rank included.

    Only rank 0 reads and writes it, so the other ranks need not see its folder. It is read if it
    exists, else written at the first evaluation.
    """

    def __init__(self, path: str | os.PathLike[str], ranks: Ranks = ALONE) -> None:
        self.path, self.ranks = Path(path), ranks
        saved: dict[str, Any] | None = None
        if ranks.first and self.path.is_file():
            saved = files.unflatten(*files.read(self.path, _KIND))
        self.saved = ranks.broadcast(saved)

    def start(
        self, run: Mapping[str, object], selection: KeepBest, policy: Sampler, random: RandomStream
    ) -> tuple[int, int]:
        """Put the saved weights into ``selection``; returns the phase and step to go on with.

        Raises:
            ValueError: the file is of another run; the message names every difference.
        """
        self._run, self._selection, self._policy, self._random = run, selection, policy, random
        if self.saved is None:
            return 0, 0
        theirs = self.saved["identity"]
        wrong = self.ranks.broadcast(differences(run, theirs))
        if wrong:
            plain = (bool, int, float, list)
            values = [
                f"{k} {theirs[k]!r} there, {run[k]!r} here"
                for k in wrong
                if isinstance(run.get(k), plain) and isinstance(theirs.get(k), plain)
            ]
            raise ArgumentError(
                f"`checkpoint` {str(self.path)!r} belongs to another run: {wrong} differ"
                f"{' (' + '; '.join(values) + ')' if values else ''}. Call distill with the same "
                "arguments (for threads: torch.set_num_threads), or name another file."
            )
        if self.saved["torch"] != torch.__version__ and self.ranks.first:
            warn_user(
                f"`checkpoint` {str(self.path)!r} was written by torch {self.saved['torch']}, and "
                f"this is {torch.__version__}: weights may differ in their last digits."
            )
        selection.load(self.saved["selection"])
        return self.saved["phase"], self.saved["step"]

    def restore(self, phase: Phase) -> None:
        """Put saved optimizers, critic, stream and random state where they were interrupted."""
        if self.saved is None:
            return
        saved, self.saved = self.saved, None
        phase.module.load_state_dict(saved["objective"])
        for optimizer, values in zip(phase.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        own = saved["ranks"][self.ranks.rank]
        if isinstance(self._policy, Stream):
            self._policy.seek(own["stream"])
        self._random.states = own["random"]

    def save(self, phase: Phase, index: int, step: int) -> None:
        """Write the file; all ranks must call it."""
        policy = self._policy
        position = policy.position() if isinstance(policy, Stream) else None
        everyones = self.ranks.all_gather({"random": self._random.states, "stream": position})
        if not self.ranks.first:
            return
        content = {
            "identity": self._run,
            "torch": torch.__version__,
            "phase": index,
            "step": step,
            "selection": self._selection.state(),
            "objective": dict(phase.module.state_dict()),
            "optimizers": [optimizer.state_dict() for optimizer in phase.optimizers],
            "ranks": everyones,
        }
        files.write(self.path, _KIND, *files.flatten(content))


def run_seed(seed: int | None, checkpoint: Checkpoint | None) -> int:
    """The seed asked for, that of the run to resume, or one drawn from torch's generator."""
    if seed is None and checkpoint is not None and checkpoint.saved is not None:
        seed = int(checkpoint.saved["identity"]["seed"])
    if seed is not None:
        return seed
    with drawing() as generator:
        return int(torch.randint(2**31, (), generator=generator))


def fingerprint(
    guide: nn.Module,
    objective: Objective,
    batches: Batches,
    judge: Judge,
    x: Tensor,
    seed: int,
) -> dict[str, Any]:
    """Fingerprint of a run as plain values; a checkpoint is resumed only if it matches.

    Inputs, plan and shapes must be equal. The teacher's draws, what the transfer policy has
    computed and the weights of an earlier student are compared by a :func:`sketch`, since a machine
    that rounds otherwise changes any hash of them. Ranks that train together must have the same
    fingerprint.
    """
    draws = judge.draws.detach().cpu().float()
    mean = draws.mean(0)
    shapes = {name: list(value.shape) for name, value in guide.state_dict().items()}
    stream = batches.policy if isinstance(batches.policy, Stream) else None
    return {
        "form of the file": _FORM,
        "seed": seed,
        "objective": text(objective),
        **asdict(batches.plan),
        "start": weights_sketch(guide) if batches.plan.follows else None,
        "ranks": batches.ranks.size,
        "threads": batches.ranks.all_gather(torch.get_num_threads()),
        "device": batches.device.type,
        "guide": {"modules": text(guide), "shapes": shapes},
        "x": digest(x),
        "loader": None if stream is None else stream.settings,
        "transfer": describe(batches.policy if stream is None else stream.fitted),
        "teacher": {
            "draws held": batches.max_draws,
            "shape": list(draws.shape),
            "mean": sketch(mean),
            "deviations": sketch(draws - mean, SMALL * float(draws.norm())),
        },
    }


def digest(x: Tensor) -> str:
    """Hash of a tensor's bytes, shape and dtype."""
    content = hashlib.sha256(f"{x.dtype} {tuple(x.shape)}".encode())
    content.update(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return content.hexdigest()


def sketch(x: Tensor, least: float = 0.0) -> dict[str, list[float]]:
    r"""Reduce a tensor to :math:`\log \|x\|` and B numbers that move as far as it does.

    .. math:: b_j = \frac{\sqrt{B}}{\|x\|} \sum_{i \equiv j \;(B)} s_i x_i, \qquad s_i = \pm 1

    A count sketch with fixed signs: relative to the norm, or to ``least`` where that is more,
    sketches are about as far apart as the tensors.
    """
    flat = x.detach().cpu().flatten().float()
    random = torch.Generator().manual_seed(0)
    rows = -(-len(flat) // PERIOD)
    across, along = (
        torch.randint(0, 2, (size,), generator=random).float() * 2 - 1 for size in (PERIOD, rows)
    )
    padded = nn.functional.pad(flat, (0, rows * PERIOD - len(flat))).view(rows, PERIOD)
    buckets = ((along @ padded) * across).view(-1, BUCKETS).double().sum(0)
    norm = max(float(flat.double().norm()), least, torch.finfo(torch.float32).tiny)
    return {"sketch": [math.log(norm), *(buckets * math.sqrt(BUCKETS) / norm).tolist()]}


def weights_sketch(guide: nn.Module) -> dict[str, list[float]]:
    """The :func:`sketch` of all weights and buffers of a guide."""
    values = guide.state_dict().values()
    return sketch(torch.cat([value.detach().cpu().float().flatten() for value in values]))


def describe(value: object) -> Any:
    """Settings and state of a transfer policy, or of any other object, as plain values.

    A dataclass gives the fields that are compared, and its ``buffers``, computed from x.
    """
    if isinstance(value, Tensor):
        return sketch(value) if value.is_floating_point() else digest(value)
    if is_dataclass(value) and not isinstance(value, type):
        own = [f.name for f in fields(value) if f.compare or f.name == "buffers"]
        return {"type": type(value).__qualname__, **{k: describe(getattr(value, k)) for k in own}}
    if isinstance(value, Mapping):
        return {str(key): describe(each) for key, each in value.items()}
    if is_sequence(value):
        return [describe(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else text(value)


def text(value: object) -> str:
    """The printed form, without the addresses that differ between processes."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
