"""Training: the warm start, the refinement, and what is kept of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from pyro_opu.choosing import Choice
from pyro_opu.guides.base import student_at
from pyro_opu.judging import Judge
from pyro_opu.objectives import Adversarial, Objective
from pyro_opu.rng import fold_in
from pyro_opu.training import tuned
from pyro_opu.training.batches import Batches, labelled
from pyro_opu.training.checkpoint import fingerprint
from pyro_opu.training.clock import Countdown
from pyro_opu.training.descent import settling
from pyro_opu.training.fit import KeepBest, fit, kept_record
from pyro_opu.training.phases import distillation_phase, few_threads
from pyro_opu.training.plan import AT_REST
from pyro_opu.training.run import Run

#: What stands in the record of an evaluation beside its scores, and what a report says of a student
#: that takes no step.
OF_START = ("phase", "step", "kept")
KEPT_AT_REST = "the closed form kept: it is as near as it begins as held-out draws can tell"


def train(
    guide: nn.Module,
    closed_form: Objective,
    objective: Objective,
    batches: Batches,
    judge: Judge,
    run: Run,
) -> dict[str, Any]:
    """Run the warm start and the refinement, and keep the best iterate in ``guide``.

    The warm start is by ``closed_form``, or by an ``objective`` of the same kind. It is not refined
    where it is nearer to the posterior than the judging draws are. Without it the objective begins
    from scratch, with a warm start's rate and labels. Returns the last scores, "kept" in words, and
    the "history".
    """
    plan, ranks, random, checkpoint = batches.plan, run.ranks, run.random, run.checkpoint
    with random.borrowed():
        skip_below = judge.sampling_distance()
        objective.to(batches.device).prepare(judge.x, judge.draws.shape[-1])
    identity: dict[str, Any] = {}
    if checkpoint is not None or ranks.size > 1:
        identity = fingerprint(guide, objective, batches, judge, run.inputs.tensor, run.seed)
        ranks.check_alike(identity)
    ranks.broadcast_state(guide, objective)
    skip_below = ranks.broadcast(skip_below)
    selection = KeepBest(guide, judge.scores, tuned.AVERAGING, ranks, skip_below, run.callback)
    start = (0, 0)
    if checkpoint is not None:
        start = checkpoint.start(identity, selection, batches.policy, random)
    if not selection.history:
        with random.borrowed():
            selection.evaluate("start", 0, {})
    if plan == AT_REST:
        guide.eval()
        scores = {k: v for k, v in selection.history[0].items() if k not in OF_START}
        return {**scores, "kept": KEPT_AT_REST, "history": selection.history}
    if ranks.size > 1:  # alike so far; from here on each rank draws its own
        random.begin(fold_in(run.seed, 1 + ranks.rank))
    cold = not plan.warm_steps
    first = objective if cold or isinstance(objective, type(closed_form)) else closed_form
    pool, countdown = None, Countdown(run.clock, plan.after, ranks)
    if plan.labelled and start[0] == 0:
        countdown.begin(tuned.LABEL_SHARE * countdown.left)
        with random.borrowed():  # a run that is resumed makes the same pool again
            pool = labelled(batches, first, start[1], run.progress, countdown)
    steps, rate = plan.warm_steps or plan.refine_steps, plan.learning_rate
    settle = round(tuned.SETTLE_SHARE * steps) if first.sufficient else 0
    opening = distillation_phase(
        "objective" if cold else "warm start",
        first,
        guide,
        batches,
        steps=steps,
        rate=rate,
        num_draws=plan.warm_draws,
        pool=pool,
        schedule=settling(rate, steps, settle, lambda: selection.settling) if settle else None,
    )
    patience = tuned.PLATEAU if settle else None
    phases = [replace(opening, patience=patience, settle=settle, near=tuned.NEAR)]
    if plan.refine_steps and not cold:
        refinement = distillation_phase(
            "objective",
            objective,
            guide,
            batches,
            steps=plan.refine_steps,
            rate=objective.learning_rate,
            num_draws=plan.num_draws,
        )
        phases.append(replace(refinement, patience=tuned.PATIENCE, skip_below=skip_below))
    with few_threads(selection.average, judge.x, batches.share):
        fit(
            phases,
            selection,
            evaluate_every=plan.evaluate_every,
            random=random,
            start=start,
            saver=checkpoint,
            progress=run.progress,
            countdown=countdown,
        )
    guide.requires_grad_(False).eval()  # as what was judged, and as it will answer
    history = selection.history
    with random.borrowed():
        last: dict[str, Any] = {**selection.scores(guide)}
        if isinstance(objective, Adversarial) and history[-1]["phase"] == "objective":
            last["critic"] = ranks.broadcast(examination(objective, guide, judge))
    return {**last, "kept": _kept(history, len(phases), skip_below), "history": history}


def recalibrated(
    guide: nn.Module, choice: Choice, label: Callable[[], Judge], law_is_open: bool, run: Run
) -> dict[str, Any]:
    """Shift a guide's log concentration, choose its distribution, and say both in the report."""
    found: dict[str, Any] = {}
    if not choice.recalibrates(guide):
        return found
    if run.ranks.first:
        with run.random.borrowed():
            found = choice.calibration(guide, label(), law_is_open)
    found = run.ranks.broadcast(found)
    choice.recalibrate(guide, found)
    return {"recalibration": found}


@torch.no_grad()
def examination(objective: Adversarial, guide: nn.Module, judge: Judge) -> dict[str, float]:
    """What the critic knows of the student that is kept, at held-out inputs."""
    student = student_at(guide, judge.x)
    return objective.examined(student, judge.draws, judge.x)


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
