"""Outcomes: what holds of every one."""

from __future__ import annotations

import json

import pytest
import torch
from posteriors import OUTCOMES, S, X
from pyro.infer import Predictive
from torch import nn

from pyro_opu import distill, parts
from pyro_opu.choosing import Choice, choice_of
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.teachers.finished import finished_teacher

Found = tuple[Predictive, BaseTeacher, Choice]


def test_every_outcome_is_in_the_table() -> None:
    assert set(OUTCOMES) == set(parts.OUTCOMES)


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
    held_out = choice.judge(X, teacher.draws(X, S), S)
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
    held_out = choice.judge(X, draws, S)
    described = choice.describe(held_out)
    assert held_out.sampling_distance() <= 0  # of a posterior whose draws are all held: refine
    for name in choice.guides:
        guide = choice.guide(name, X, held_out, described)
        answer = choice.answer_of(guide, X)
        assert (
            teacher.outcome.is_answer(answer)
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
    assert not teacher.outcome.is_answer(torch.ones(3))
    with pytest.raises(TypeError, match="`guide` must return .*got Tensor"):
        choice.answer_of(nn.Linear(X.shape[1], 2), X)


def test_a_student_of_it(found: Found) -> None:
    source, teacher, choice = found
    fast = distill(source, X, num_steps=5, seed=0, progress=False)
    answer = fast.answer(X)
    assert (
        teacher.outcome.is_answer(answer)
        and tuple(answer.event_shape) == teacher.outcome.event_shape
    )
    assert teacher.outcome.chain(teacher.draws(X, S)).isfinite().all()
