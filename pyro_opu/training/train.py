"""The phases of a distillation: a closed-form warm start, and the objective."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.guides.base import student_at
from pyro_opu.judging import Judge
from pyro_opu.objectives import Adversarial, Objective
from pyro_opu.objectives.base import Meeting
from pyro_opu.rng import RandomStream, fold_in
from pyro_opu.training.checkpoint import Checkpoint, fingerprint
from pyro_opu.training.descent import Descent, RecordedDescent, RecordedRounds, Steps
from pyro_opu.training.fit import NEAR, Callback, KeepBest, Phase, fit, kept_record
from pyro_opu.training.game import Game
from pyro_opu.training.pool import Pool, labelled, read_once
from pyro_opu.training.rates import Schedule, cosine, falling, settling
from pyro_opu.training.settings import Batches, pass_operations

#: Share of the warm start in which the rate falls, and evaluations without an improvement that
#: begin it.
SETTLE_SHARE, PLATEAU = 0.5, 6
#: Operations of a step, forward and back, up to which one thread takes it.
SINGLE = 2**28


@contextmanager
def few_threads(guide: nn.Module, x: Tensor, rows: int) -> Iterator[None]:
    """One thread while the steps of a small student are taken on a processor, then as before.

    Threads of a small product wait for one another longer than they work: beside any other busy
    process such a step takes up to 30 times as long on two threads as on one.
    """
    before = torch.get_num_threads()
    small = not x.is_cuda and 3 * rows * pass_operations(guide, x) <= SINGLE
    torch.set_num_threads(1 if small else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
    pool: Pool | None = None,
    schedule: Schedule | None = None,
    settle: int = 0,
    near: float = math.inf,
) -> Phase:
    """A phase with fresh optimizers, of the student and of a critic.

    The objective must be prepared, so that its critic exists. The schedule rises to ``rate``; the
    teacher gives ``num_draws`` per input and step where there is no ``pool`` of labelled inputs.
    """
    descent = partial(
        Descent,
        ranks=batches.ranks,
        weight=batches.share / batches.settings.batch_size,
    )
    reader = guide
    if pool is not None:
        reader, pool = read_once(guide, pool)

    def labelled_batch(rows: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        if pool is not None:
            return pool.batch(batches.share) if rows is None else pool.at(rows)
        x, draws = batches.batch(num_draws)
        return x, objective.statistics(draws)

    def student_losses(rows: Tensor | None = None) -> tuple[dict[str, Tensor], Any]:
        x, statistics = labelled_batch(rows)
        student = student_at(reader, x)
        return objective.parts_at(student, statistics, x), student

    recorded = pool is not None and _recordable(pool, objective, batches)
    rows: Any = None if pool is None else partial(pool.rows, batches.share)
    losses: Any = student_losses
    critics: list[Any] = []
    if isinstance(objective, Adversarial):

        def meet(rows: Tensor | None) -> Meeting:
            x, statistics = labelled_batch(rows)
            return objective.meet(student_at(reader, x), statistics["draws"].movedim(0, 1), x)

        game = Game(objective, meet)
        losses, rival = game.student_losses, objective.critic_optimizer()
        pace = falling(objective.critic_learning_rate, steps), objective.critic_rounds
        if recorded:
            critics = [RecordedRounds(lambda r: game.critic_losses(r)[0], rows, rival, *pace)]
        else:
            critics = [descent(game.critic_losses, rival, *pace, prefix="critic ")]
    rates = schedule or cosine(rate, steps)
    adam = torch.optim.Adam(guide.parameters(), lr=rate, betas=objective.betas, fused=True)
    turn: Steps = descent(losses, adam, rates)
    if recorded:
        turn = RecordedDescent(lambda r: losses(r)[0], rows, adam, rates, *critics)
    return Phase(
        name,
        steps,
        [turn],
        critics,
        objective.anneal,
        patience,
        near,
        settle,
        skip_below,
        objective,
    )


def _recordable(pool: Pool, objective: Objective, batches: Batches) -> bool:
    """Whether a step is one run of kernels on one GPU, the same for every batch."""
    if isinstance(objective, Adversarial):
        if type(objective).critic_rounds is not Adversarial.critic_rounds:
            return False  # they may differ from step to step
    return pool.x.is_cuda and batches.ranks.size == 1


def train(
    guide: nn.Module,
    closed_form: Objective,
    objective: Objective,
    batches: Batches,
    validation: Judge,
    x: Tensor,
    random: RandomStream,
    checkpoint: Checkpoint | None = None,
    progress: bool = True,
    callback: Callback | None = None,
) -> dict[str, Any]:
    """Run the warm start and the refinement, and keep the best iterate in ``guide``.

    The warm start is by ``closed_form``, or by an ``objective`` of the same kind. It is not refined
    where it is nearer to the posterior than the judging draws are. Without it the objective begins
    from scratch, with a warm start's rate and labels. All transfer inputs ``x`` are a
    part of the run's fingerprint. Returns the last scores, "kept" in words, and the "history".
    """
    settings, ranks = batches.settings, batches.ranks
    with random.borrowed():
        skip_below = validation.sampling_distance()
        objective.to(batches.device).prepare(validation.x, validation.draws.shape[-1])
    run: dict[str, Any] = {}
    if checkpoint is not None or ranks.size > 1:
        run = fingerprint(guide, random.seed, batches, objective, validation, x)
        ranks.check_alike(run)
    ranks.broadcast_state(guide, objective)
    skip_below = ranks.broadcast(skip_below)
    selection = KeepBest(guide, validation.scores, settings.averaging, ranks, skip_below, callback)
    start = (0, 0)
    if checkpoint is not None:
        start = checkpoint.start(run, selection, batches.policy, random)
    if not selection.history:
        with random.borrowed():
            selection.evaluate("start", 0, {})
    if ranks.size > 1:  # alike so far; from here on each rank draws its own
        random.begin(fold_in(random.seed, 1 + ranks.rank))
    cold = not settings.warm_steps
    first = objective if cold or isinstance(objective, type(closed_form)) else closed_form
    pool = None
    if settings.pool.inputs and start[0] == 0:
        with random.borrowed():  # a run that is resumed makes the same pool again
            pool = labelled(batches, first, start[1], progress and ranks.first)
    make_phase = partial(distillation_phase, guide=guide, batches=batches)
    steps, rate = settings.warm_steps or settings.refine_steps, settings.learning_rate
    settle = round(SETTLE_SHARE * steps) if first.sufficient else 0
    opening = make_phase(
        "objective" if cold else "warm start",
        first,
        steps=steps,
        rate=rate,
        num_draws=settings.warm_draws,
        pool=pool,
        schedule=settling(rate, steps, settle, lambda: selection.settling) if settle else None,
        settle=settle,
        patience=PLATEAU if settle else None,
        near=NEAR,
    )
    phases = [opening]
    if settings.refine_steps and not cold:
        refinement = make_phase(
            "objective",
            objective,
            steps=settings.refine_steps,
            rate=objective.learning_rate,
            num_draws=settings.num_draws,
            patience=settings.patience,
            skip_below=skip_below,
        )
        phases.append(refinement)
    with few_threads(selection.average, validation.x, batches.share):
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
    history = selection.history
    with random.borrowed():
        last: dict[str, Any] = {**selection.scores(guide)}
        if isinstance(objective, Adversarial) and history[-1]["phase"] == "objective":
            last["critic"] = ranks.broadcast(examination(objective, guide, validation))
    return {**last, "kept": _kept(history, len(phases), skip_below), "history": history}


@torch.no_grad()
def examination(objective: Adversarial, guide: nn.Module, validation: Any) -> dict[str, float]:
    """What the critic knows of the student that is kept, at held-out inputs."""
    student = student_at(guide, validation.x)
    return objective.examined(student, validation.draws, validation.x)


def _kept(history: list[dict[str, Any]], phases: int, skip_below: float) -> str:
    """Say in words whether the weights that are kept are of the last phase."""
    names = list(dict.fromkeys(record["phase"] for record in history))
    kept = kept_record(history)
    score = kept["energy_distance"]
    if len(names) <= phases:  # the start is one more name
        return (
            f"refinement left out, as the warm start is nearer to the posterior than its draws "
            f"are: held-out energy distance {score:.5f}, theirs {skip_below:.5f}"
        )
    what = "refinement" if "warm start" in names and names[-1] == "objective" else names[-1]
    earlier = [record for record in history if record["phase"] != names[-1]]
    before = kept_record(earlier)["energy_distance"]
    if kept["phase"] == names[-1]:
        return f"{what} kept: held-out energy distance {before:.5f} -> {score:.5f}"
    tried = min(r["energy_distance"] for r in history if r["phase"] == names[-1])
    return (
        f"{what} not kept, no better than what it started from: held-out energy distance "
        f"{before:.5f} -> {tried:.5f}"
    )
