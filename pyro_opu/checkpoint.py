"""A killed run started again ends with the weights of an unbroken one."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from pyro_opu import files
from pyro_opu.objectives import Objective
from pyro_opu.training import Judge, Phase, Settings, State

_KIND = "distillation checkpoint"


class Checkpoint:
    """One file with all that changes while training, random state included.

    Args:
        path: Read if it exists, else written at the first evaluation.

    Raises:
        ValueError: a corrupt or foreign file.
        FileNotFoundError: the folder does not exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise FileNotFoundError(
                "`checkpoint` must lie in an existing folder; "
                f"{str(self.path.parent)!r} does not exist. Create it first."
            )
        self._saved: dict[str, Any] | None = None
        if self.path.is_file():
            tensors, plain = files.read(self.path, _KIND)
            self._saved = files.unflatten(tensors, plain)
        self._identity: dict[str, Any] = {}

    @property
    def exists(self) -> bool:
        """Whether there is something to resume from."""
        return self._saved is not None

    @property
    def seed(self) -> int:
        """Seed of the run that was saved."""
        assert self._saved is not None
        return self._saved["identity"]["seed"]

    def start(
        self,
        state: State,
        seed: int,
        settings: Settings,
        objective: Objective,
        held_out: Judge | None = None,
    ) -> int:
        """Put the saved state into ``state``; returns the phase to go on with, 0 if none is saved.

        Raises:
            ValueError: the file belongs to a run with other settings, seed, objective, guide,
                transfer inputs or teacher.
        """
        shapes = {k: list(v.shape) for k, v in state.guide.state_dict().items()}
        self._identity = {
            "seed": seed,
            "objective": repr(objective),
            **asdict(settings),
            "guide": shapes,
            **({} if held_out is None else _fingerprint(held_out)),
        }
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

    def restore(self, phase: Phase) -> None:
        """Put saved optimizers, critic and random state into the phase that was interrupted."""
        if self._saved is None:
            return
        saved, self._saved = self._saved, None
        phase.objective.load_state_dict(saved["objective"])
        for optimizer, values in zip(_optimizers(phase), saved["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        torch.set_rng_state(saved["random"])
        if saved["cuda random"] is not None:
            torch.cuda.set_rng_state(saved["cuda random"], _device(phase))

    def save(self, state: State, phase: Phase, index: int) -> None:
        """Write everything aside and move it into place."""
        device = _device(phase)
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
                "random": torch.get_rng_state(),
                "cuda random": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
            }
        )
        files.write(self.path, _KIND, tensors, plain)


def _fingerprint(held_out: Judge) -> dict[str, Any]:
    """What tells other transfer inputs, or another teacher on the same ones, apart."""
    content = held_out.x.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    # To three digits, so that it is the same on a machine that rounds otherwise.
    mean = [f"{value:.3f}" for value in held_out.draws.double().mean((0, 1)).tolist()]
    return {"x": hashlib.sha256(content).hexdigest(), "teacher": mean}


def _device(phase: Phase) -> torch.device:
    return phase.optimizers[0].param_groups[0]["params"][0].device


def _optimizers(phase: Phase) -> list[torch.optim.Optimizer]:
    extra = [] if phase.critic_optimizer is None else [phase.critic_optimizer]
    return [*phase.optimizers, *extra]
