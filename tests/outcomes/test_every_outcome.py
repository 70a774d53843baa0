"""Outcomes: what holds of every one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from posteriors import OUTCOMES, S, X
from pyro.infer import Predictive
from quick_distill import killed
from torch import nn

from pyro_opu import OnePassPredictive, Training, distill, parts
from pyro_opu.choosing import CHOICES, Choice, choice_of
from pyro_opu.judging import judge_of
from pyro_opu.parts.outcome import KINDS
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.teachers.finished import finished_teacher

pytestmark = pytest.mark.usefixtures("brief")

#: Every guide of every outcome, by name.
GUIDES = [(name, guide) for name, choice in CHOICES.items() for guide in choice.guides]
Found = tuple[Predictive, BaseTeacher, Choice]


def test_every_outcome_is_in_the_table() -> None:
    """And every kind of part."""
    teachers = {name: finished_teacher(source(), X) for name, source in OUTCOMES.items()}
    found = {part.kind for teacher in teachers.values() for part in teacher.outcome.parts}
    assert found == set(KINDS) and set(OUTCOMES) == set(CHOICES)


@pytest.fixture(params=OUTCOMES)
def found(request: pytest.FixtureRequest) -> Found:
    source = OUTCOMES[request.param]()
    teacher = finished_teacher(source, X)
    assert teacher.outcome.kind == request.param
    assert parts.outcome_from(json.loads(json.dumps(teacher.outcome.config))) == teacher.outcome
    return source, teacher, choice_of(teacher.outcome)


def test_sites_are_those_of_the_predictive(found: Found) -> None:
    source, teacher, choice = found
    layouts = teacher.layouts(X)
    assert {layout.kind for layout in layouts} <= set(teacher.outcome.site_kinds)
    held_out = judge_of(teacher.outcome, X, teacher.draws(X, S), S)
    guide = choice.guide(None, X, held_out, choice.describe(held_out))
    drawn = teacher.outcome.sample(choice.answer_of(guide, X), layouts, S)
    assert {k: (v.shape, v.dtype) for k, v in drawn.items()} == {
        k: (v.shape, v.dtype) for k, v in source(X).items()
    }
    with pytest.raises(ValueError, match="'nothing'"):
        teacher.layouts(X, ["nothing"])


def test_every_guide_by_name_is_judged_and_taught(found: Found) -> None:
    _, teacher, choice = found
    draws = teacher.draws(X, S)
    held_out = judge_of(teacher.outcome, X, draws, S)
    described = choice.describe(held_out)
    assert held_out.sampling_distance() <= 0  # of a posterior whose draws are all held: refine
    for name in choice.guides:
        guide = choice.guide(name, X, held_out, described)
        answer = choice.answer_of(guide, X)
        assert (
            isinstance(answer, teacher.outcome.answers)
            and tuple(answer.event_shape) == teacher.outcome.event_shape
        )
        for objective in choice.objectives(guide, X, None):
            objective.prepare(X, draws.shape[-1])
            assert objective(answer, draws, X).isfinite()
        scores = held_out.scores(guide)
        assert "energy_distance" in scores and all(torch.tensor(list(scores.values())).isfinite())
        assert json.loads(json.dumps(described)) == described  # a report is saved as text
    with pytest.raises(ValueError, match="`guide` must be one of"):
        choice.guide("nothing", X, held_out, described)


def test_guides_of_something_else_are_refused(found: Found) -> None:
    _, teacher, choice = found
    with pytest.raises(TypeError, match="`guide` must return .*got Tensor"):
        choice.answer_of(nn.Linear(X.shape[1], 2), X)


def test_draws_in_blocks_and_subsets(found: Found) -> None:
    _, teacher, _ = found
    whole = teacher.draws(X)
    few = teacher.draws(X, 4)
    gaps = (few[:, None] - whole).abs().amax((-2, -1))
    assert gaps.amin(1).max() < 1e-4 and len(gaps.argmin(1).unique()) == 4
    teacher.chunk_size = 8
    torch.testing.assert_close(teacher.draws(X), whole, rtol=1e-4, atol=1e-5)
    assert teacher.outcome.chain(whole).isfinite().all()


def same(one: OnePassPredictive, other: OnePassPredictive) -> bool:
    mine, theirs = (each.answer(X).as_tensors() for each in (one, other))
    return mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)


@pytest.mark.parametrize(("name", "guide"), GUIDES)
def test_a_student_of_it(name: str, guide: str, tmp_path: Path) -> None:
    source, state = OUTCOMES[name](), torch.get_rng_state()

    def taught(seed: int) -> OnePassPredictive:
        return distill(source, X, guide=guide, num_steps=5, seed=seed, progress=False)

    fast = taught(0)
    assert same(fast, taught(0)) and not same(fast, taught(1))
    assert torch.equal(torch.get_rng_state(), state)
    answer, outcome = fast.answer(X), fast.outcome
    assert isinstance(answer, outcome.answers)
    assert tuple(answer.event_shape) == outcome.event_shape
    found, expected = fast.fuse().answer(X).as_tensors(), answer.as_tensors()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5)
    fast.save(tmp_path / "fast.safetensors")
    again = OnePassPredictive.load(tmp_path / "fast.safetensors")
    assert again.outcome == outcome and same(again, fast)
    assert again.report == json.loads(json.dumps(fast.report))
    assert not any(each.requires_grad for each in again.parameters())
    drawn = []
    for student in (fast, again):
        torch.manual_seed(1)
        drawn.append(student(X))
    assert all(torch.equal(drawn[1][key], value) for key, value in drawn[0].items())


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_resumed_run_ends_as_an_unbroken_one(name: str, tmp_path: Path) -> None:
    source = OUTCOMES[name]()

    def taught(checkpoint: Path | None) -> OnePassPredictive:
        often = Training(evaluate_every=5)
        options = {"num_steps": 12, "guide": "network", "seed": 0, "progress": False}
        return distill(source, X, checkpoint=checkpoint, training=often, **options)

    with killed(9):
        taught(tmp_path / "run.ckpt")
    assert same(taught(tmp_path / "run.ckpt"), taught(None))
