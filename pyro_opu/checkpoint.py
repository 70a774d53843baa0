"""A killed run started again ends with the weights of an unbroken one."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pyro_opu import files
from pyro_opu.objectives import Objective
from pyro_opu.parallel import ALONE, Ranks
from pyro_opu.training import Judge, Phase, Source, State
from pyro_opu.transfer.stream import Stream

_KIND = "distillation checkpoint"


class Checkpoint:
    """One file with all that changes while training, random state included.

    Rank 0 reads and writes it, with the random state of every rank in it; the others need not see
    its folder. After a worker has died ``torchrun`` starts all of them again, and they go on.

    Args:
        path: Read if it exists, else written at the first evaluation.
        ranks: Those that train together.

    Raises:
        ValueError: a corrupt or foreign file.
        FileNotFoundError: the folder does not exist.
    """

    def __init__(self, path: str | os.PathLike[str], ranks: Ranks = ALONE) -> None:
        self.path, self.ranks = Path(path), ranks
        self._saved: dict[str, Any] | None = ranks.same(self._read() if ranks.first else None)
        self._identity: dict[str, Any] = {}

    def _read(self) -> dict[str, Any] | None:
        if not self.path.parent.is_dir():
            raise FileNotFoundError(
                "`checkpoint` must lie in an existing folder; "
                f"{str(self.path.parent)!r} does not exist. Create it first."
            )
        if not self.path.is_file():
            return None
        saved: dict[str, Any] = files.unflatten(*files.read(self.path, _KIND))
        return saved

    @property
    def exists(self) -> bool:
        """Whether there is something to resume from."""
        return self._saved is not None

    @property
    def seed(self) -> int:
        """Seed of the run that was saved."""
        assert self._saved is not None
        return self._saved["identity"]["seed"]

    def start(self, state: State, run: dict[str, Any]) -> int:
        """Put the saved state into ``state``; returns the phase to go on with, 0 if none is saved.

        Args:
            state: State before the first step.
            run: The :func:`identity` of the run.

        Raises:
            ValueError: the file belongs to a run with other settings, seed, objective, guide,
                transfer inputs, teacher or number of ranks.
        """
        self._identity = run
        if self._saved is None:
            return 0
        theirs = self._saved["identity"]
        wrong = sorted(key for key, value in self._identity.items() if theirs.get(key) != value)
        if wrong:
            raise ValueError(
                f"`checkpoint` {str(self.path)!r} belongs to another run: {wrong} differ. Call "
                "distill with the same arguments, or name another file."
            )
        state.guide.load_state_dict(self._saved["guide"])
        state.average.load_state_dict(self._saved["average"])
        state.best = self._saved["best"]
        for name in ("score", "step", "waited", "history"):
            setattr(state, name, self._saved[name])
        return self._saved["phase"]

    def restore(self, phase: Phase, feed: Source) -> None:
        """Put saved optimizers, critic, stream and random state where they were interrupted."""
        if self._saved is None:
            return
        saved, self._saved = self._saved, None
        phase.objective.load_state_dict(saved["objective"])
        for optimizer, values in zip(_optimizers(phase), saved["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        own = saved["ranks"][self.ranks.rank]
        if isinstance(feed.policy, Stream):
            feed.policy.seek(own["stream"])
        torch.set_rng_state(own["random"])
        if own["cuda random"] is not None:
            torch.cuda.set_rng_state(own["cuda random"], feed.device)

    def save(self, state: State, phase: Phase, index: int, feed: Source) -> None:
        """Write everything aside and move it into place; all ranks must call it."""
        device, policy = feed.device, feed.policy
        own = {
            "random": torch.get_rng_state(),
            "cuda random": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
            "stream": policy.position() if isinstance(policy, Stream) else None,
        }
        everyones = self.ranks.all(own)
        if not self.ranks.first:
            return
        tensors, plain = files.flatten(
            {
                "identity": self._identity,
                "phase": index,
                "guide": dict(state.guide.state_dict()),
                "average": dict(state.average.state_dict()),
                "best": state.best,
                "score": state.score,
                "step": state.step,
                "waited": state.waited,
                "history": state.history,
                "objective": dict(phase.objective.state_dict()),
                "optimizers": [optimizer.state_dict() for optimizer in _optimizers(phase)],
                "ranks": everyones,
            }
        )
        files.write(self.path, _KIND, tensors, plain)


def identity(
    guide: nn.Module, seed: int, feed: Source, objective: Objective, held_out: Judge
) -> dict[str, Any]:
    """What tells one run from another, as plain values: only the same one is gone on with."""
    return {
        "seed": seed,
        "objective": repr(objective),
        **asdict(feed.settings),
        "ranks": feed.ranks.size,
        "guide": {name: list(value.shape) for name, value in guide.state_dict().items()},
        **_fingerprint(held_out),
    }


def _fingerprint(held_out: Judge) -> dict[str, Any]:
    """What tells other transfer inputs, or another teacher on the same ones, apart."""
    content = held_out.x.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    # To three digits, so that it is the same on a machine that rounds otherwise.
    mean = [f"{value:.3f}" for value in held_out.draws.double().mean((0, 1)).tolist()]
    return {"x": hashlib.sha256(content).hexdigest(), "teacher": mean}


def _optimizers(phase: Phase) -> list[torch.optim.Optimizer]:
    extra = [] if phase.critic_optimizer is None else [phase.critic_optimizer]
    return [*phase.optimizers, *extra]
