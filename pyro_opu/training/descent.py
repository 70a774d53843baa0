"""Gradient steps, one at a time or on a GPU as one CUDA graph, and their learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pyro_opu.distributed import ALONE, Ranks
from pyro_opu.training import tuned
from pyro_opu.utils.graphs import record

#: Named parts of a loss; those of a step that waits for nothing are tensors on its device.
Parts = dict[str, Any]
#: Draws a batch; returns the named parts of the loss there, and the student's answer.
Losses = Callable[[], tuple[dict[str, Tensor], object]]
#: Learning rate by the number of the step.
Schedule = Callable[[int], float]


class DistillationError(RuntimeError):
    """Training stopped at a loss or an answer that is not finite; what was saved is untouched."""


class Steps(Protocol):
    """Gradient steps on one loss; a step returns its parts."""

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    def step(self, number: int) -> Parts: ...


@dataclass(frozen=True)
class Descent:
    """Gradient steps on one loss, looked at in every step.

    Attributes:
        rate: Schedule of the learning rate; ``None`` leaves the optimizer's own.
        rounds: Gradient steps in a step of training.
        clip: Largest norm of a gradient; infinity clips none.
        weight: This rank's share of the inputs.
        prefix: Before the names of the parts in records.
    """

    losses: Losses
    optimizer: torch.optim.Optimizer
    rate: Schedule | None = None
    rounds: Callable[[int], int] = lambda step: 1
    clip: float = tuned.CLIP
    ranks: Ranks = ALONE
    weight: float = 1.0
    prefix: str = ""

    def step(self, number: int) -> dict[str, float]:
        """Take the rounds of this step; returns the parts of the loss in the last one."""
        if self.rate is not None:
            _set_rate(self.optimizer, self.rate(number))
        parts: dict[str, float] = {}
        for _ in range(self.rounds(number)):
            parts = self._round(number)
        return parts

    def _round(self, number: int) -> dict[str, float]:
        self.optimizer.zero_grad(set_to_none=True)
        stepped = [p for group in self.optimizer.param_groups for p in group["params"]]
        parts, student = self.losses()
        values = {self.prefix + name: float(value.detach()) for name, value in parts.items()}
        if math.isfinite(sum(values.values())):
            loss = torch.stack(list(parts.values())).sum()
            loss.backward(inputs=[p for p in stepped if p.requires_grad])
        means = self.ranks.all_reduce_gradients(stepped, list(values.values()), self.weight)
        values = dict(zip(values, means, strict=True))
        if not math.isfinite(sum(means)):
            alpha = getattr(student, "concentration", None)
            least = "" if alpha is None else f", smallest alpha {float(alpha.detach().min()):.3g}"
            raise DistillationError(
                f"the loss is not finite at step {number}: parts {values}{least}, learning rate "
                f"{self.optimizer.param_groups[0]['lr']:.3g}. Nothing saved before is lost; lower "
                "`learning_rate`, or look at the teacher's draws on the generated transfer inputs."
            )
        if math.isfinite(self.clip):
            nn.utils.clip_grad_norm_(stepped, self.clip)
        self.optimizer.step()
        return values


class RecordedDescent:
    """Gradient steps on the labels of a pool, by Adam; the first of them are recorded.

    A loss that cannot be recorded, as it waits for the host, is stepped as before. Nothing here
    looks at the loss: one that is not finite is seen at the next evaluation, before anything is
    saved.

    Args:
        losses: Rows of the pool ``(B,)`` -> the named parts of the loss.
        rows: Gives those of the next batch.
        optimizer: Adam on the GPU; its learning rate becomes a tensor, which a graph reads.
        rate: Schedule of the learning rate.
        critic: Rounds of a critic that are a part of every step.
    """

    def __init__(
        self,
        losses: Callable[[Tensor], dict[str, Tensor]],
        rows: Callable[[], Tensor],
        optimizer: torch.optim.Optimizer,
        rate: Schedule,
        critic: RecordedRounds | None = None,
    ) -> None:
        self.critic = critic
        self.losses, self.rows, self.optimizer, self.rate = losses, rows, optimizer, rate
        self._stepped = [optimizer] if critic is None else [optimizer, critic.optimizer]
        self._taken, self._recordable = 0, True
        self._graph: Any = None
        self._aside: Any = None

    def step(self, number: int) -> Parts:
        """Take the step of this number; the parts that it returns are those of the last step."""
        count = 1 if self.critic is None else self.critic.recorded
        chosen = torch.stack([self.rows() for _ in range(count)])
        with torch.cuda.device(chosen.device):  # streams are the current device's
            if not self._taken:
                self._begin(chosen)
            _set_rate(self.optimizer, self.rate(number))
            self._rows.copy_(chosen)
            self._taken += 1
            if self._recordable and self._graph is None and self._taken > tuned.EAGER:
                self._record()
            if self._graph is not None:
                self._graph.replay()
            elif self._recordable:
                self._parts = self._on_the_side()
            else:
                self._parts = self._descend()
        return self._parts

    def _begin(self, chosen: Tensor) -> None:
        """Before the first step, after a checkpoint has put back what the optimizer had."""
        self._rows, self._aside = chosen.clone(), torch.cuda.Stream()
        for group in (group for each in self._stepped for group in each.param_groups):
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=chosen.device)

    def _descend(self) -> Parts:
        """What a step does on the device; it waits for nothing."""
        parts: Parts = {}
        if self.critic is not None:
            for rows in self._rows:
                parts |= self.critic.descend(rows)
        return parts | _descended(self.losses(self._rows[-1]), self.optimizer)

    def _on_the_side(self) -> Parts:
        """A step on the stream where the next ones are recorded."""
        before = torch.cuda.current_stream()
        self._aside.wait_stream(before)
        with torch.cuda.stream(self._aside):
            parts = self._descend()
        before.wait_stream(self._aside)
        return parts

    def _record(self) -> None:
        self._may_be_recorded(True)  # torch warns where such steps are taken outside of a graph
        try:
            self._graph, self._parts = record(  # students may answer in other threads
                self._descend, self._rows, warm=0, aside=self._aside, mode="thread_local"
            )
        except RuntimeError:
            self._recordable = False
        finally:
            self._may_be_recorded(False)

    def _may_be_recorded(self, yes: bool) -> None:
        for optimizer in self._stepped:
            for group in optimizer.param_groups:
                group["capturable"] = yes


@dataclass(frozen=True)
class RecordedRounds:
    """Rounds of a critic: those of every step are recorded with it, and those of a warm-up are not.

    Attributes:
        losses: Rows of the pool ``(B,)`` -> the named parts of the critic's loss.
        rows: Gives those of the next batch.
        optimizer: Adam on the GPU.
        rate: Schedule of the learning rate.
        rounds: Number of them before the student's step of a number, from 0.
    """

    losses: Callable[[Tensor], dict[str, Tensor]]
    rows: Callable[[], Tensor]
    optimizer: torch.optim.Optimizer
    rate: Schedule
    rounds: Callable[[int], int]

    @property
    def recorded(self) -> int:
        """Rounds of every step."""
        return self.rounds(1)

    def step(self, number: int) -> Parts:
        """Take the rounds that are more than are recorded."""
        _set_rate(self.optimizer, self.rate(number))
        parts: Parts = {}
        for _ in range(self.rounds(number) - self.recorded):
            parts = self.descend(self.rows())
        return parts

    def descend(self, rows: Tensor) -> Parts:
        """One round."""
        parts = _descended(self.losses(rows), self.optimizer)
        return {f"critic {name}": value for name, value in parts.items()}


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set a learning rate, or of a group its "share" of it, in place where a graph reads it."""
    for group in optimizer.param_groups:
        own = rate * group.get("share", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(own)
        else:
            group["lr"] = own


def _descended(parts: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> Parts:
    """Descend a loss of named parts on the device, where nothing is waited for."""
    optimizer.zero_grad(set_to_none=True)
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    torch.stack(list(parts.values())).sum().backward(inputs=trained)
    nn.utils.clip_grad_norm_(trained, tuned.CLIP)
    optimizer.step()
    return {name: value.detach() for name, value in parts.items()}


def _scheduled(rate: float, rise: int, fall: Callable[[int], float]) -> Schedule:
    """A rise to ``rate``, then by the cosine of the angle ``fall`` down to a hundredth of it."""

    def schedule(step: int) -> float:
        if step < rise:
            return rate * ((step + 1) / rise)
        return rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(fall(step))))

    return schedule


def _rise(steps: int) -> int:
    return min(50, max(1, steps // 10))


def cosine(rate: float, steps: int) -> Schedule:
    """A short rise to ``rate``, then a cosine down to a hundredth of it."""
    rise = _rise(steps)
    return _scheduled(rate, rise, lambda step: math.pi * (step - rise) / max(1, steps - rise))


def falling(rate: float, steps: int) -> Schedule:
    """A cosine from ``rate`` down to a hundredth of it, as :func:`cosine` without a rise."""
    return _scheduled(rate, 0, lambda step: math.pi * step / max(1, steps))


def settling(
    rate: float, steps: int, settle: int, moved: Callable[[], tuple[int, int] | None]
) -> Schedule:
    """A short rise to ``rate``, which then stays; at last a cosine down to a hundredth of it.

    That settling is the last ``settle`` of the steps, or from and to where ``moved`` says.
    """

    def fall(step: int) -> float:
        begin, end = moved() or (steps - settle, steps)
        return math.pi * min(1.0, max(0, step - begin) / max(1, end - begin))

    return _scheduled(rate, _rise(steps), fall)
