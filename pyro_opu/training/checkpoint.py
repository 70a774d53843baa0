"""A killed run started again ends with the weights of an unbroken one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from pyro_opu.distributed import ALONE, Ranks, differences
from pyro_opu.rng import RandomStream
from pyro_opu.training.fit import Phase, Source, State
from pyro_opu.transfer.stream import Stream
from pyro_opu.utils import files
from pyro_opu.utils.warnings import warn_user

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
        self._saved: dict[str, Any] | None = ranks.broadcast(self._read() if ranks.first else None)
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
            run: The run's :func:`~pyro_opu.training.fingerprint.fingerprint`.

        Raises:
            ValueError: the file belongs to another run; every difference is named.
        """
        self._identity = run
        if self._saved is None:
            return 0
        theirs = self._saved["identity"]
        wrong = self.ranks.broadcast(differences(run, theirs))
        if wrong:
            plain = (bool, int, float, list)
            told = [
                f"{k} {theirs[k]!r} there, {run[k]!r} here"
                for k in wrong
                if isinstance(run.get(k), plain) and isinstance(theirs.get(k), plain)
            ]
            raise ValueError(
                f"`checkpoint` {str(self.path)!r} belongs to another run: {wrong} differ"
                f"{' (' + '; '.join(told) + ')' if told else ''}. Call distill with the same "
                "arguments (for threads: torch.set_num_threads), or name another file."
            )
        if self._saved["torch"] != torch.__version__ and self.ranks.first:
            warn_user(
                f"`checkpoint` {str(self.path)!r} was written by torch {self._saved['torch']}, and "
                f"this is {torch.__version__}: the weights may differ from an unbroken run's in "
                "their last digits."
            )
        state.guide.load_state_dict(self._saved["guide"])
        state.average.load_state_dict(self._saved["average"])
        state.best = self._saved["best"]
        for name in ("score", "step", "waited", "history"):
            setattr(state, name, self._saved[name])
        return self._saved["phase"]

    def restore(self, phase: Phase, feed: Source, random: RandomStream) -> None:
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
        random.states = own["random"]

    def save(
        self, state: State, phase: Phase, index: int, feed: Source, random: RandomStream
    ) -> None:
        """Write everything aside and move it into place; all ranks must call it."""
        policy = feed.policy
        own = {
            "random": random.states,
            "stream": policy.position() if isinstance(policy, Stream) else None,
        }
        everyones = self.ranks.all_gather(own)
        if not self.ranks.first:
            return
        tensors, plain = files.flatten(
            {
                "identity": self._identity,
                "torch": torch.__version__,
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


def _optimizers(phase: Phase) -> list[torch.optim.Optimizer]:
    extra = [] if phase.critic_optimizer is None else [phase.critic_optimizer]
    return [*phase.optimizers, *extra]
