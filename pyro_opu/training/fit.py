"""The training loop of ``distill`` and its rivals: phases, gradient steps, and what is kept."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pyro_opu.distributed import ALONE, Ranks
from pyro_opu.judging.yardstick import in_draws
from pyro_opu.rng import RandomStream, preserve_rng
from pyro_opu.training import tuned
from pyro_opu.training.clock import Countdown
from pyro_opu.training.console import line
from pyro_opu.training.descent import (
    Descent,
    DistillationError,
    Losses,
    Parts,
    Schedule,
    Steps,
    cosine,
)

#: Scores of a guide; "energy_distance", the less the better, decides what is kept.
Judge = Callable[[nn.Module], dict[str, float]]
#: Is given the record of an evaluation.
Callback = Callable[[dict[str, Any]], object]
#: Attributes of a selection that are saved beside the weights.
_COUNTED = ("best", "score", "mark", "evals_since_best", "settling", "history")


@dataclass(frozen=True)
class Phase:
    """One stretch of training with its own losses, optimizers and schedule.

    Attributes:
        student: Its gradient steps.
        critics: Steps before each of these.
        anneal: Called before every step with the share of the steps that is done.
        patience: Evaluations without an improvement that begin the settling.
        near: Posterior draws, whose mean errs as the student's, from which one is enough.
        settle: Steps of the settling, the last ones of the phase; 0 ends it at a plateau.
        skip_below: The phase is left out where the best score is already no more than this.
        module: Saved with the optimizers: an objective, with its critic.
    """

    name: str
    steps: int
    student: Steps
    critics: Sequence[Steps] = ()
    anneal: Callable[[float], None] = lambda done: None
    patience: int | None = None
    near: float = math.inf
    settle: int = 0
    skip_below: float = -math.inf
    module: nn.Module = field(default_factory=nn.Module)

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers, in the order in which they are saved."""
        return [steps.optimizer for steps in (self.student, *self.critics)]

    def in_time(self, step: int, selection: KeepLast, more: float) -> int:
        """The last step, where there is time for so many more; half of all are for settling."""
        if not self.settle:
            return min(self.steps, step + int(more))
        last = step + int(more)
        begun = math.inf if selection.settling is None else selection.settling[0]
        selection.settling = (int(begun) if begun <= step else max(step, last // 2)), last
        return last

    def settled(self, step: int, selection: KeepLast) -> int | None:
        """Last step of a settling that begins now, if the evaluations say that it should.

        Where the student is near it is as long as what was before.
        """
        near = selection.draws >= self.near
        if self.patience is None or selection.evals_since_best < (1 if near else self.patience):
            return None
        return step + (min(step, self.settle) if near else self.settle)

    def step(self, number: int) -> Parts:
        """Step the critics, then the student; returns the parts of all losses."""
        self.anneal(number / max(1, self.steps))
        parts: Parts = {}
        for critic in self.critics:
            parts |= critic.step(number)
        return parts | self.student.step(number)


class KeepLast:
    """Keeps the last weights, and a running mean of the loss.

    ``score`` is that of the best weights so far, the less the better.
    """

    def __init__(self) -> None:
        self.loss = self.score = math.inf
        self.evals_since_best = 0
        #: First and last step of a settling that a plateau has moved forward.
        self.settling: tuple[int, int] | None = None

    @property
    def draws(self) -> float:
        """Posterior draws whose mean errs as the student's, at the last evaluation."""
        return 0.0

    def update(self, step: int, parts: Parts) -> None:
        """Note that a step, counted from 1 in its phase, has been taken."""
        total = sum(parts.values())
        known = math.isfinite(self.loss)
        self.loss = self.loss + tuned.LOSS_WEIGHT * (total - self.loss) if known else total

    def evaluate(self, phase: str, step: int, parts: dict[str, float]) -> None:
        """Judge the run."""

    @property
    def shown(self) -> str:
        """What the bar shows."""
        return f"loss {self.loss:.3g}"

    def restore(self) -> None:
        """Put the kept weights into the student, at the end of a phase."""


class KeepBest(KeepLast):
    """Keeps the best exponential average of the weights by held-out energy distance.

    All ranks take the weights of rank 0, which judges. ``history`` has one record per evaluation,
    "kept" where the weights took the place of those before; the ``callback`` gets a copy.
    An improvement by less than a fiftieth, or by as little of the distance that the judging draws
    have by ``chance``, is kept but ends no plateau. While the rate falls after a plateau, weights
    that are near (``tuned.NEAR``) are kept too where their distance is above the best one by
    chance at most: of many that are level the last has the least noise of steps.
    """

    def __init__(
        self,
        guide: nn.Module,
        judge: Judge,
        averaging: float = tuned.AVERAGING,
        ranks: Ranks = ALONE,
        chance: float = 0.0,
        callback: Callback | None = None,
    ) -> None:
        super().__init__()
        self.callback = callback
        self.chance, self.mark = max(0.0, chance), math.inf
        self.guide, self.judge, self.averaging, self.ranks = guide, judge, averaging, ranks
        self.average = copy.deepcopy(guide).requires_grad_(False).eval()
        self._averaged: list[Tensor] = list(self.average.parameters())
        self._trained: list[Tensor] = list(guide.parameters())
        self._buffers = list(zip(self.average.buffers(), guide.buffers(), strict=True))
        self.best: dict[str, Tensor] | None = None
        self.history: list[dict[str, Any]] = []

    @torch.no_grad()
    def update(self, step: int, parts: Parts) -> None:
        """Move the average towards the student."""
        decay = min(self.averaging, step / (9 + step))
        torch._foreach_lerp_(self._averaged, self._trained, 1 - decay)

    def scores(self, guide: nn.Module) -> dict[str, float]:
        """Scores of a guide, by rank 0 for all."""
        return self.ranks.broadcast(self.judge(guide) if self.ranks.first else {})

    def evaluate(self, phase: str, step: int, parts: dict[str, float]) -> None:
        """Judge the average; keep its weights if they are the best so far."""
        for own, buffer in self._buffers:  # a frozen network's weights are among them
            own.copy_(buffer)
        self.ranks.broadcast_state(self.guide, self.average)
        found = self.scores(self.average)
        score = found["energy_distance"]
        if not math.isfinite(score):
            raise DistillationError(
                f"the student is not finite in evaluation mode at step {step} of the {phase}: at "
                f"held-out inputs {found}. If its loss was finite while it trained, look for parts "
                "of the guide that answer otherwise after guide.eval(), such as running "
                "statistics; else lower `learning_rate`, or look at the teacher's draws at `x`."
            )
        settles = self.settling is not None and step >= self.settling[0]
        level = settles and found["draws"] >= tuned.NEAR
        kept = self.best is None or score < self.score + level * self.chance
        if kept:
            self.score = min(score, self.score)
            self.best = {k: v.detach().clone() for k, v in self.average.state_dict().items()}
        self.evals_since_best += 1
        least = tuned.LEAST_GAIN * max(self.chance, abs(self.mark))
        if self.mark == math.inf or score < self.mark - least:
            self.mark, self.evals_since_best = score, 0
        self.history.append({**parts, "phase": phase, "step": step, "kept": kept, **found})
        if self.callback is not None and self.ranks.first:
            with preserve_rng():  # what it draws is not the run's
                self.callback(dict(self.history[-1]))

    @property
    def draws(self) -> float:
        found: float = self.history[-1]["draws"]
        return found

    @property
    def shown(self) -> str:
        """How near the weights are that are kept."""
        return f"mean as of {in_draws(kept_record(self.history)['draws'])} draws"

    def restore(self) -> None:
        """Put the best weights into the student and its average, and restart the count."""
        if self.best is not None:
            self.guide.load_state_dict(self.best)
            self.average.load_state_dict(self.best)
        self.mark, self.evals_since_best, self.settling = self.score, 0, None

    def state(self) -> dict[str, Any]:
        """Everything that changes while training."""
        return {
            "guide": dict(self.guide.state_dict()),
            "average": dict(self.average.state_dict()),
            **{name: getattr(self, name) for name in _COUNTED},
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Put a saved :meth:`state` back."""
        self.guide.load_state_dict(saved["guide"])
        self.average.load_state_dict(saved["average"])
        for name in _COUNTED:
            setattr(self, name, saved[name])


def kept_record(history: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The record of the weights that are kept after these evaluations."""
    return next(record for record in reversed(history) if record["kept"])


class Saver(Protocol):
    """Writes a run to a file and resumes it; see ``checkpoint.py``."""

    def restore(self, phase: Phase) -> None: ...
    def save(self, phase: Phase, index: int, step: int) -> None: ...


def minimize(
    name: str,
    losses: Losses,
    optimizer: torch.optim.Optimizer,
    rate: float | Schedule,
    num_steps: int,
    *,
    clip: float = tuned.CLIP,
    progress: bool = True,
) -> float:
    """Take steps on one loss, and keep the last weights; returns a running mean of the loss.

    ``losses`` gives the parts of the loss at a new batch, and the student there; a ``rate`` that is
    no schedule is the top of a short rise and a cosine fall.
    """
    schedule = rate if callable(rate) else cosine(rate, num_steps)
    descent, selection = Descent(losses, optimizer, schedule, clip=clip), KeepLast()
    fit([Phase(name, num_steps, descent)], selection, progress=progress)
    return selection.loss


def fit(
    phases: Sequence[Phase],
    selection: KeepLast,
    *,
    evaluate_every: int = 100,
    random: RandomStream | None = None,
    start: tuple[int, int] = (0, 0),
    saver: Saver | None = None,
    progress: bool = True,
    countdown: Countdown | None = None,
) -> None:
    """Run the phases one after another, from the phase and step ``start`` on.

    ``random`` numbers are borrowed for every step, so that other threads may draw between two; by
    default they are torch's own. The ``saver`` is called at the evaluations. Where a ``countdown``
    runs they end with it, and no plateau ends them before.
    """
    first, step = start
    countdown = countdown or Countdown()
    borrowed = nullcontext if random is None else random.borrowed
    for index, phase in enumerate(phases[first:], first):
        if index and not step and selection.score <= phase.skip_below:
            break  # one that had begun when the run was killed goes on
        if saver is not None:
            saver.restore(phase)
        end = phase.steps if selection.settling is None else selection.settling[1]
        countdown.begin(countdown.left * phase.steps / sum(each.steps for each in phases[index:]))
        number = f"{index + 1}/{len(phases)} " if len(phases) > 1 else ""
        before = step
        with line(number + phase.name, end, step, show=progress) as bar:
            bar.set_postfix_str(selection.shown, refresh=False)
            while step < end:
                with borrowed():
                    parts = phase.step(step)
                    step += 1
                    selection.update(step, parts)
                bar.update(1)
                if step % evaluate_every and step < end:
                    continue
                with borrowed():
                    selection.evaluate(phase.name, step, {k: float(v) for k, v in parts.items()})
                bar.set_postfix_str(selection.shown)
                if countdown.clock.runs:
                    more = countdown.more(step - before)
                    bar.total = end = phase.in_time(step, selection, more)
                elif selection.settling is None:
                    last = phase.settled(step, selection)
                    if last is not None and last < phase.steps:
                        selection.settling = step, last
                        bar.total = end = last
                if saver is not None:
                    saver.save(phase, index, step)
            bar.total = step
        selection.restore()
        step = 0
