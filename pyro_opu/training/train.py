"""The phases of a distillation: a closed-form warm start, and the objective."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.guides import PredictiveGuide
from pyro_opu.guides.base import student_at
from pyro_opu.objectives import Adversarial, Objective
from pyro_opu.outcomes import ValidationSet
from pyro_opu.rng import RandomStream, fold_in
from pyro_opu.training.autocast import in_precision
from pyro_opu.training.checkpoint import Checkpoint, fingerprint
from pyro_opu.training.fit import Descent, KeepBest, Phase, cosine, fit
from pyro_opu.training.settings import Batches


def prepare_guide(guide: nn.Module, device: torch.device) -> nn.Module:
    """Move a guide to the device; make one that is frozen, as distilled ones are, trainable."""
    guide = guide.to(device).train()
    if not any(parameter.requires_grad for parameter in guide.parameters()):
        guide.requires_grad_(True)
    return guide


def distillation_phase(
    name: str,
    objective: Objective,
    guide: nn.Module,
    batches: Batches,
    *,
    steps: int,
    rate: float,
    num_draws: int,
    patience: int | None = None,
    skip_below: float = -math.inf,
) -> Phase:
    """A phase with fresh optimizers: two where h and g are stepped in turn, else one.

    The objective must be prepared, so that its critic exists. The schedule rises to ``rate``; the
    teacher gives ``num_draws`` per input and step.
    """
    descent = partial(
        Descent,
        accumulate=batches.settings.accumulate,
        ranks=batches.ranks,
        weight=batches.share / batches.settings.batch_size,
    )
    groups = [list(guide.parameters())]
    if objective.alternate and isinstance(guide, PredictiveGuide):
        groups = [list(group) for group in guide.parameter_groups()]

    def student_losses(turn: int) -> tuple[dict[str, Tensor], Any]:
        x, draws = batches.batch(num_draws)
        student = student_at(guide, x)
        stepped = student
        if len(groups) > 1:  # the other part is held
            stepped = student.detach_concentration() if turn == 0 else student.detach_mean()
        return objective.parts(stepped, draws, x), student

    critics = []
    if isinstance(objective, Adversarial):

        def critic_losses() -> tuple[dict[str, Tensor], Any]:
            x, draws = batches.batch(num_draws)
            with torch.no_grad():
                student = student_at(guide, x)
            return objective.critic_parts(student, draws, x), student

        optimizer, rounds = objective.critic_optimizer(), objective.critic_rounds
        critics = [descent(critic_losses, optimizer, rounds=rounds, prefix="critic ")]
    turns = []
    for turn, group in enumerate(groups):
        adam = torch.optim.Adam(group, lr=rate, betas=objective.betas)
        turns.append(descent(partial(student_losses, turn), adam, cosine(rate, steps)))
    return Phase(
        name, steps, turns, critics, objective.anneal, patience, skip_below, module=objective
    )


def train(
    guide: nn.Module,
    closed_form: Objective,
    objective: Objective,
    batches: Batches,
    validation: ValidationSet,
    x: Tensor,
    random: RandomStream,
    checkpoint: Checkpoint | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Run the warm start and the refinement, and keep the best iterate in ``guide``.

    The warm start is by ``closed_form``, or by an ``objective`` of the same kind. It is not refined
    where it is nearer to the posterior than the judging draws are. All transfer inputs ``x`` are a
    part of the run's fingerprint. Returns the last scores, "kept" in words, and the "history".
    """
    settings, ranks = batches.settings, batches.ranks
    with random.borrowed():
        skip_below = validation.sampling_distance()
        objective.to(batches.device).prepare(validation.x, validation.draws.shape[-1])
    run = fingerprint(guide, random.seed, batches, objective, validation, x)
    ranks.check_alike(run)
    ranks.broadcast_state(guide, objective)
    skip_below = ranks.broadcast(skip_below)
    first = objective if isinstance(objective, type(closed_form)) else closed_form
    make_phase = partial(distillation_phase, guide=guide, batches=batches)
    warm = make_phase(
        "warm start",
        first,
        steps=settings.warm_steps,
        rate=settings.learning_rate,
        num_draws=settings.warm_draws,
    )
    refinement = make_phase(
        "objective",
        objective,
        steps=settings.refine_steps,
        rate=objective.learning_rate,
        num_draws=settings.num_draws,
        patience=settings.patience,
        skip_below=skip_below,
    )
    phases = [phase for phase in (warm, refinement) if phase.steps]
    selection = KeepBest(guide, validation.judge, settings.averaging, ranks)
    start = (0, 0)
    if checkpoint is not None:
        start = checkpoint.start(run, selection, batches.policy, random)
    if not selection.history:
        with random.borrowed():
            selection.evaluate("start", 0, {})
    if ranks.size > 1:  # alike so far; from here on each rank draws its own
        random.begin(fold_in(random.seed, 1 + ranks.rank))
    with in_precision(guide, settings.precision):
        fit(
            phases,
            selection,
            evaluate_every=settings.evaluate_every,
            random=random,
            start=start,
            saver=checkpoint,
            progress=progress and ranks.first,
        )
    guide.eval()
    with random.borrowed():
        last = selection.scores(guide)
    history = selection.history
    return {**last, "kept": _kept(history, len(phases), skip_below), "history": history}


def _kept(history: list[dict[str, Any]], phases: int, skip_below: float) -> str:
    """Say in words whether the last phase improved on those before it."""
    best: dict[str, float] = {}
    for record in history:
        name, score = record["phase"], record["energy_distance"]
        best[name] = min(score, best.get(name, score))
    names = list(best)
    last, before = best[names[-1]], min(best[name] for name in names[:-1])
    if len(names) <= phases:  # the start is one more name
        return (
            f"refinement left out, as the warm start is nearer to the posterior than its draws "
            f"are: held-out energy distance {last:.5f}, theirs {skip_below:.5f}"
        )
    what = "refinement" if "warm start" in names and names[-1] == "objective" else names[-1]
    verdict = "kept" if last < before else "not kept, no better than what it started from"
    return f"{what} {verdict}: held-out energy distance {before:.5f} -> {last:.5f}"
