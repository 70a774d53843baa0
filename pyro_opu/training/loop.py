"""The loop over the steps of a distillation: phases, judgements, checkpoints, what is kept."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn
from tqdm.auto import tqdm

from pyro_opu.objectives import Objective
from pyro_opu.rng import RandomStream, fold_in
from pyro_opu.training.autocast import in_precision
from pyro_opu.training.checkpoint import Checkpoint
from pyro_opu.training.fingerprint import fingerprint
from pyro_opu.training.fit import (
    Judge,
    Phase,
    Source,
    State,
    evaluate,
    init_phase,
    init_state,
    step,
)


def train(
    guide: nn.Module,
    closed_form: Objective,
    objective: Objective,
    feed: Source,
    held_out: Judge,
    x: Tensor,
    random: RandomStream,
    resume: Checkpoint | None,
    progress: bool,
    enough: float = -math.inf,
) -> dict[str, Any]:
    """Run the phases and keep the best iterate in ``guide``.

    Args:
        guide: The student; trained in place.
        closed_form: Objective of the warm start.
        objective: Objective of the refinement; where it is of the same kind it is used for both.
        feed: Where batches come from, the settings and the ranks.
        held_out: Judges the iterates.
        x: All transfer inputs at hand, which tell this run from another.
        random: Random numbers of the run; other threads may use torch's between two steps.
        resume: The checkpoint, if there is one.
        progress: Show a bar.
        enough: Held-out energy distance from which on a warm start is not refined.

    Returns:
        The record: the last judgement, "kept" in words, and the "history".
    """
    settings, ranks = feed.settings, feed.ranks
    with random.borrowed():
        objective.to(feed.device).prepare(held_out.x, held_out.draws.shape[-1])
    run = fingerprint(guide, random.seed, feed, objective, held_out, x)
    ranks.check_alike(run)
    ranks.broadcast_state(guide, objective)
    enough = ranks.broadcast(enough)
    state = init_state(guide)
    if isinstance(objective, type(closed_form)):
        closed_form = objective
    plan = [
        phase
        for phase in (
            ("warm start", closed_form, settings.warm_steps, settings.learning_rate),
            ("objective", objective, settings.refine_steps, objective.learning_rate),
        )
        if phase[2]
    ]
    first = 0 if resume is None else resume.start(state, run)
    if not state.history:
        with random.borrowed():
            evaluate(state, "start", held_out, {}, ranks)
    if ranks.size > 1:  # alike so far; from here on each draws its own
        random.begin(fold_in(random.seed, 1 + ranks.rank))
    done = sum(entry[2] for entry in plan[:first])
    shown = progress and ranks.first
    with (
        tqdm(
            total=settings.warm_steps + settings.refine_steps, initial=done, disable=not shown
        ) as bar,
        in_precision(guide, settings.precision),
    ):
        for index, (name, each, steps, rate) in enumerate(plan[first:], first):
            draws = settings.warm_draws if name == "warm start" else settings.num_draws
            if index and state.step == 0 and state.score <= enough:
                break  # one that had begun when the run was killed goes on
            phase = init_phase(name, each, guide, steps, rate, draws)
            if resume is not None:
                resume.restore(phase, feed, random)
            _run_phase(state, phase, feed, held_out, random, bar, resume, index)
            if state.best is not None:
                guide.load_state_dict(state.best)
                state.average.load_state_dict(state.best)
            state.step = state.waited = 0
    guide.eval()
    with random.borrowed():
        last = ranks.broadcast(held_out.judge(guide) if ranks.first else {})
    return {**last, "kept": _kept(state.history, len(plan), enough), "history": state.history}


def _run_phase(
    state: State,
    phase: Phase,
    feed: Source,
    held_out: Judge,
    random: RandomStream,
    bar: Any,  # noqa: ANN401 - tqdm's own type differs between terminals
    resume: Checkpoint | None,
    index: int,
) -> None:
    """Steps of one phase, judged every so often; ends early when the score stops falling."""
    settings = feed.settings
    bar.update(state.step)
    while state.step < phase.steps:
        with random.borrowed():
            parts = step(state, phase, feed)
        bar.update(1)
        if state.step % settings.evaluate_every and state.step < phase.steps:
            continue
        with random.borrowed():
            record = evaluate(state, phase.name, held_out, parts, feed.ranks)
        shown = {**parts, "held-out energy": record["energy_distance"], "KL": record["kl"]}
        bar.set_description(phase.name)
        bar.set_postfix({name: f"{value:.4g}" for name, value in shown.items()})
        if phase.name != "warm start" and state.waited >= settings.patience:
            break
        if resume is not None:
            resume.save(state, phase, index, feed, random)


def _kept(history: list[dict[str, Any]], phases: int, enough: float) -> str:
    """In words, which phase the result comes from and what came of it."""
    best: dict[str, float] = {}
    for record in history:
        name, score = record["phase"], record["energy_distance"]
        best[name] = min(score, best.get(name, score))
    names = list(best)
    last, before = best[names[-1]], min(best[name] for name in names[:-1])
    if len(names) <= phases:  # the start is one more name
        return (
            f"refinement left out, as the warm start is nearer to the posterior than its draws "
            f"are: held-out energy distance {last:.5f}, theirs {enough:.5f}"
        )
    what = "refinement" if "warm start" in names and names[-1] == "objective" else names[-1]
    verdict = "kept" if last < before else "not kept, no better than what it started from"
    return f"{what} {verdict}: held-out energy distance {before:.5f} -> {last:.5f}"
