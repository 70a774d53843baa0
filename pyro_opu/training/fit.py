"""Settings, state, init and step of distillation; the loop over them is in ``loop.py``."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pyro_opu.checks import positive_float, positive_int
from pyro_opu.distributed import ALONE, Ranks
from pyro_opu.guides import PredictiveGuide
from pyro_opu.guides.base import student_at
from pyro_opu.objectives import Adversarial, Objective

#: Named parts of a loss, and the student they are of.
Losses = tuple[dict[str, Tensor], Any]
#: Parts of a batch with draws of their own. Draws are joint over the inputs of one call, and the
#: luck of one set shared by a whole batch does not average out within the batch.
DRAW_BLOCKS = 4


class Judge(Protocol):
    """Held-out inputs with the teacher's answers, which say how good a guide is there."""

    @property
    def x(self) -> Tensor:
        """Inputs ``(N, ...)``, on the student's device."""
        ...

    @property
    def draws(self) -> Tensor:
        """The teacher's draws there, ``(S, N, ...)``."""
        ...

    def judge(self, guide: nn.Module) -> dict[str, float]:
        """Named numbers; "energy_distance", the less the better, decides what is kept."""
        ...


class Sampler(Protocol):
    """Where inputs come from: a fitted transfer policy, or a stream."""

    def sample(self, n: int) -> Tensor:
        """Draw n inputs ``(n, ...)``."""
        ...


class DistillationError(RuntimeError):
    """Training stopped at a loss or an answer that is not finite; what was saved is untouched."""


@dataclass(frozen=True)
class Settings:
    """Numbers of a distillation; see :func:`~pyro_opu.distill`.

    ``warm_draws`` and ``num_draws`` are the teacher's draws per input and step in the warm start
    and under the objective; ``accumulate`` batches make a step; ``precision`` names that of the
    student's trunk.
    """

    warm_steps: int
    refine_steps: int
    batch_size: int
    warm_draws: int
    num_draws: int
    learning_rate: float
    evaluate_every: int
    patience: int = 5
    averaging: float = 0.99
    accumulate: int = 1
    precision: str | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "num_draws", "evaluate_every", "patience", "accumulate"):
            positive_int(name, getattr(self, name))
        if self.warm_steps + self.refine_steps < 1:
            raise ValueError("`num_steps` must be at least 1.")
        if self.num_draws < 2:
            raise ValueError(
                "`num_draws` must be at least 2, since one draw per input says nothing about the "
                "spread; got 1."
            )
        positive_float("learning_rate", self.learning_rate)


@dataclass
class Phase:
    """One stretch of training with its own objective, optimizers and schedule.

    Attributes:
        name: "warm start" or "objective".
        objective: What is made small.
        steps: How many.
        optimizers: One, or one for h and one for g, stepped in turn.
        rate: Learning rate at the top of the schedule.
        num_draws: Teacher's draws per input and step.
        critic_optimizer: For an adversarial objective.
    """

    name: str
    objective: Objective
    steps: int
    optimizers: list[torch.optim.Optimizer]
    rate: float
    num_draws: int
    critic_optimizer: torch.optim.Optimizer | None = None

    @property
    def adversary(self) -> Adversarial | None:
        """The objective, if it has a critic."""
        return self.objective if isinstance(self.objective, Adversarial) else None


@dataclass
class State:
    """All that changes while training; saved and restored whole.

    Attributes:
        guide: The student being stepped.
        average: Exponential average of its weights, the one that is judged.
        best: Weights of the best average so far, and None before the first evaluation.
        score: Held-out energy distance of ``best``.
        step: Steps done in this phase.
        waited: Evaluations since ``best``.
        history: One record per evaluation.
    """

    guide: nn.Module
    average: nn.Module
    best: dict[str, Tensor] | None = None
    score: float = math.inf
    step: int = 0
    waited: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)


def made_ready(guide: nn.Module, device: torch.device) -> nn.Module:
    """The guide where it is trained; one that is wholly frozen, as distilled guides are, thawed."""
    guide = guide.to(device).train()
    if not any(parameter.requires_grad for parameter in guide.parameters()):
        guide.requires_grad_(True)
    return guide


def init_state(guide: nn.Module) -> State:
    """State before the first step."""
    return State(guide, copy.deepcopy(guide).requires_grad_(False).eval())


def init_phase(
    name: str, objective: Objective, guide: nn.Module, steps: int, rate: float, num_draws: int
) -> Phase:
    """A phase with fresh optimizers: two where h and g are stepped in turn, else one.

    The objective must be prepared, so that its critic exists.
    """
    groups = [list(guide.parameters())]
    if objective.alternate and isinstance(guide, PredictiveGuide):
        groups = [list(group) for group in guide.parameter_groups()]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Adam(group, lr=rate, betas=objective.betas) for group in groups
    ]
    critic_optimizer = None
    if isinstance(objective, Adversarial):
        critic_optimizer = objective.critic_optimizer()
    return Phase(name, objective, steps, optimizers, rate, num_draws, critic_optimizer)


def schedule(step: int, steps: int) -> float:
    """Factor on the learning rate: a short rise, then a cosine down to a hundredth."""
    rise = min(50, max(1, steps // 10))
    if step < rise:
        return (step + 1) / rise
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


@dataclass(frozen=True)
class Source:
    """Where batches come from: a fitted transfer policy labelled by the teacher.

    ``ask(x, num_draws)`` gives the teacher's joint draws ``(S, N, ...)``; a posterior that holds
    its draws has ``max_draws`` of them. Ranks divide the inputs, not the draws: each asks for all
    ``num_draws`` at its own share of the batch. So work and memory per rank fall with their number,
    and what an objective makes of all pairs of draws at an input is what it makes of them alone.
    """

    ask: Callable[[Tensor, int], Tensor]
    policy: Sampler
    settings: Settings
    device: torch.device
    max_draws: int | None = None
    ranks: Ranks = ALONE

    def __post_init__(self) -> None:
        if self.settings.batch_size < self.ranks.size:
            raise ValueError(
                f"`batch_size` must be at least {self.ranks.size}, the number of ranks that share "
                f"a batch; got {self.settings.batch_size}. Take larger batches, or fewer ranks."
            )

    @property
    def share(self) -> int:
        """Inputs in a batch of this rank."""
        return self.ranks.share(self.settings.batch_size)

    def batch(self, num_draws: int) -> tuple[Tensor, Tensor]:
        """Inputs ``(N, ...)`` and so many of the teacher's draws ``(S, N, C)`` there."""
        x = self.policy.sample(self.share)
        if num_draws == self.max_draws:  # no luck in all of them
            draws = self.ask(x, num_draws)
        elif DRAW_BLOCKS * num_draws <= self.settings.warm_draws:  # so many cost little
            each = self.ask(x, DRAW_BLOCKS * num_draws).unflatten(0, (DRAW_BLOCKS, num_draws))
            draws = torch.cat([b[i] for i, b in enumerate(each.chunk(DRAW_BLOCKS, 2))], 1)
        else:
            draws = torch.cat([self.ask(b, num_draws) for b in x.chunk(DRAW_BLOCKS)], 1)
        return x.to(self.device), draws.to(self.device, torch.float32)


def step(state: State, phase: Phase, source: Source) -> dict[str, float]:
    """One student step (and the critic's before it); returns the named parts of the loss."""
    for optimizer in phase.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = phase.rate * schedule(state.step, phase.steps)
    phase.objective.anneal(state.step / max(1, phase.steps))
    parts: dict[str, float] = {}
    if phase.adversary is not None:
        for _ in range(phase.adversary.critic_rounds(state.step)):
            parts |= critic_step(state, phase, source)
    turn = state.step % len(phase.optimizers)

    def losses() -> Losses:
        x, draws = source.batch(phase.num_draws)
        student = student_at(state.guide, x)
        part = _in_turn(student, turn, len(phase.optimizers))
        return phase.objective.parts(part, draws, x), student

    parts |= _descend(phase.optimizers[turn], losses, state, source)
    _update_average(state, source.settings.averaging)
    state.step += 1
    return parts


def _in_turn(student: Any, turn: int, turns: int) -> Any:
    """The student as the stepped part sees it: the other part held."""
    if turns == 1:
        return student
    return student.detach_concentration() if turn == 0 else student.detach_mean()


def critic_step(state: State, phase: Phase, source: Source) -> dict[str, float]:
    """One step of the critic against the student as it is."""
    adversary, optimizer = phase.adversary, phase.critic_optimizer
    assert adversary is not None and optimizer is not None

    def losses() -> Losses:
        x, draws = source.batch(phase.num_draws)
        with torch.no_grad():
            student = student_at(state.guide, x)
        return adversary.critic_parts(student, draws, x), student

    return _descend(optimizer, losses, state, source, "critic ")


def _descend(
    optimizer: torch.optim.Optimizer,
    losses: Callable[[], Losses],
    state: State,
    source: Source,
    prefix: str = "",
) -> dict[str, float]:
    """One step down the mean loss of the step's batches on all ranks; returns its parts."""
    optimizer.zero_grad(set_to_none=True)
    count, total = source.settings.accumulate, 0.0
    values: dict[str, float] = {}
    for _ in range(count):
        parts, student = losses()
        loss = torch.stack(list(parts.values())).sum() / count
        total += float(loss.detach())
        for name, value in parts.items():
            values[prefix + name] = values.get(prefix + name, 0.0) + float(value.detach()) / count
        if not math.isfinite(total):
            break
        loss.backward()
    stepped = [p for group in optimizer.param_groups for p in group["params"]]
    weight = source.share / source.settings.batch_size
    total, *means = source.ranks.all_reduce_gradients(stepped, [total, *values.values()], weight)
    values = dict(zip(values, means, strict=True))
    if not math.isfinite(total):
        raise DistillationError(
            f"the loss is not finite at step {state.step}: parts {values}"
            f"{_smallest_alpha(student)}. Nothing saved before is lost; lower `learning_rate`, or "
            "look at the teacher's draws on the generated transfer inputs."
        )
    nn.utils.clip_grad_norm_(stepped, 5.0)
    optimizer.step()
    return values


def _smallest_alpha(student: Any) -> str:
    alpha = getattr(student, "concentration", None)
    return "" if alpha is None else f", smallest alpha {float(alpha.detach().min()):.3g}"


@torch.no_grad()
def _update_average(state: State, decay: float) -> None:
    decay = min(decay, (1 + state.step) / (10 + state.step))
    for mine, new in zip(state.average.parameters(), state.guide.parameters(), strict=True):
        mine.lerp_(new, 1 - decay)
    for kept, buffer in zip(state.average.buffers(), state.guide.buffers(), strict=True):
        kept.copy_(buffer)


def evaluate(
    state: State, phase: str, held_out: Judge, parts: dict[str, float], ranks: Ranks = ALONE
) -> dict[str, Any]:
    """Judge the average; keep its weights if they are the best so far.

    All ranks take the weights of rank 0, which judges, and decide by what it found. Up to then
    theirs were equal but for buffers, and for rounding where machines differ.

    Raises:
        DistillationError: the student's answers are not finite.
    """
    ranks.broadcast_state(state.guide, state.average)
    found = ranks.broadcast(held_out.judge(state.average) if ranks.first else {})
    if not math.isfinite(found["energy_distance"]):
        raise DistillationError(
            f"the student is not finite in evaluation mode at step {state.step} of the {phase}: at "
            f"held-out inputs {found}. If its loss was finite while it trained, look for parts "
            "of the guide that answer otherwise after guide.eval(), such as running statistics; "
            "else lower `learning_rate`, or look at the teacher's draws at `x`."
        )
    record: dict[str, Any] = {**parts, "phase": phase, "step": state.step, **found}
    if state.best is None or found["energy_distance"] < state.score:
        state.score, state.waited = found["energy_distance"], 0
        state.best = {k: v.detach().clone() for k, v in state.average.state_dict().items()}
    else:
        state.waited += 1
    state.history.append(record)
    return record
