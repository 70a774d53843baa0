"""One run of a distillation: its inputs, random numbers, ranks and checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyro_opu.checks import check_inputs
from pyro_opu.distributed import ALONE, Ranks, together
from pyro_opu.inputs import Inputs, inputs_of
from pyro_opu.rng import RandomStream, fold_in, preserve_rng
from pyro_opu.training.batches import Sampler
from pyro_opu.training.checkpoint import Checkpoint, run_seed
from pyro_opu.training.clock import Clock, Countdown, pace
from pyro_opu.training.held_out import keep_apart
from pyro_opu.transfer import TransferPolicy
from pyro_opu.transfer.stream import Stream, is_loader
from pyro_opu.utils.chunks import spread_rows

__all__ = ["Run", "run_of"]


@dataclass(frozen=True)
class Run:
    """What a run has beside its plan.

    Attributes:
        inputs: The transfer inputs that teach, judge and calibrate, in random order.
        kept: Those that only the student's bound sees, maybe none.
        stream: A loader's, of which these are the first window.
        random: Random numbers of the run, and its seed.
        device: Where the student is trained.
        ranks: The processes that train it.
        checkpoint: The file to resume from and to write.
        progress: Whether to show a bar for each phase.
        callback: Is given the record of every evaluation.
        clock: The seconds of the run.
    """

    inputs: Inputs
    kept: Tensor
    stream: Stream | None
    random: RandomStream
    device: torch.device
    ranks: Ranks = ALONE
    checkpoint: Checkpoint | None = None
    progress: bool = False
    callback: Callable[[dict[str, Any]], object] | None = None
    clock: Clock = field(default_factory=Clock)

    @property
    def seed(self) -> int:
        """The seed of all random numbers."""
        return self.random.seed

    def sampler(self, policy: TransferPolicy, x: Tensor, held_out: Tensor) -> Sampler:
        """Where inputs to teach at come from, which the policy makes of ``x`` or of the stream."""
        if self.stream is None:
            return policy.fit(x)
        return self.stream.follow(policy, x, torch.cat([held_out, self.kept.to(held_out)]))

    def timer(self, share: float, least: int = 2, ranks: Ranks = ALONE) -> Callable[[int], bool]:
        """Says from now on of rows whether so many are enough: ``least``, and the seconds are over.

        The same on these ``ranks``, all of which ask.
        """
        countdown = Countdown(self.clock, ranks=ranks)
        countdown.begin(share * self.clock.seconds)
        return lambda rows: countdown.over and rows >= least

    def some(self, x: Tensor, call: Callable[[Tensor], object], share: float, least: int) -> Tensor:
        """As many rows of ``x`` as a call takes this share of the seconds at, but so many at least.

        All of them where no seconds were asked for.
        """
        if not self.clock.runs:
            return x
        with torch.no_grad(), preserve_rng():
            of_row = pace(lambda rows: call(x[:rows]), len(x), self.device, self.clock.telling)
        rows = self.ranks.broadcast(int(share * self.clock.seconds / of_row))
        return spread_rows(x, max(least, rows))


@contextmanager
def run_of(
    source: object,
    x: Any,
    seed: int | None = None,
    device: torch.device | str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = False,
    callback: Callable[[dict[str, Any]], object] | None = None,
    *,
    keep: bool = True,
    clock: Clock = Clock(),  # noqa: B008 - without an end
) -> Iterator[Run]:
    """Begin a run of all ranks, by the arguments of :func:`~pyro_opu.distill`.

    It will ``keep`` rows apart for the student's bound.
    """
    with together() as ranks:
        saved = None if checkpoint is None else Checkpoint(checkpoint, ranks)
        seed = ranks.broadcast(run_seed(seed, saved))
        inputs, stream = as_transfer_inputs(x, source, seed, ranks)
        target = ranks.device(torch.device(inputs.tensor.device if device is None else device))
        random = RandomStream(seed, target)
        with random.borrowed():
            kept, others = keep_apart(inputs.tensor, keep)
        inputs, progress = Inputs(others, inputs.form), progress and ranks.first
        yield Run(inputs, kept, stream, random, target, ranks, saved, progress, callback, clock)


def as_transfer_inputs(
    x: Any, source: object, seed: int, ranks: Ranks
) -> tuple[Inputs, Stream | None]:
    """The transfer inputs, and a loader's stream, of which they are the first window."""
    if is_loader(x):
        stream = Stream(x, fold_in(seed, 0), ranks)
        first, stream.first = stream.first, torch.empty(0)  # the run has copies of its rows
        return Inputs(check_inputs(first), stream.form), stream
    inputs = inputs_of(x, source)
    found = inputs.like(inputs)  # whose indices are those that are seen in it
    return Inputs(found.tensor.detach(), found.form), None
