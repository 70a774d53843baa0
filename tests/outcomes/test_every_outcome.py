"""Outcomes: what holds of every one."""

from __future__ import annotations

import json

import pytest
import torch
from posteriors import OUTCOMES, S, X
from pyro.infer import Predictive
from torch import nn

from pyro_opu import distill, outcomes
from pyro_opu.outcomes import Outcome, outcome_of
from pyro_opu.teachers.base import JointDraws
from pyro_opu.teachers.finished import finished_teacher

Found = tuple[Predictive, JointDraws, Outcome]


def test_every_outcome_is_in_the_table() -> None:
    assert set(OUTCOMES) == set(outcomes.OUTCOMES)


@pytest.fixture(params=OUTCOMES)
def found(request: pytest.FixtureRequest) -> Found:
    source = OUTCOMES[request.param]()
    teacher = finished_teacher(source, X)
    assert teacher.kind == request.param
    return source, teacher, outcome_of(teacher)


def test_sites_are_those_of_the_predictive(found: Found) -> None:
    source, teacher, outcome = found
    layouts = outcome.layouts(teacher, X)
    assert {layout.kind for layout in layouts} <= set(outcome.site_kinds)
    held_out = outcome.judge(X, teacher.draws(X, S), S)
    guide = outcome.guide(None, X, held_out, outcome.describe(held_out))
    drawn = outcome.sample(outcome.answer_of(guide, X), layouts, S)
    assert {k: (v.shape, v.dtype) for k, v in drawn.items()} == {
        k: (v.shape, v.dtype) for k, v in source(X).items()
    }
    with pytest.raises(ValueError, match="'nothing'"):
        outcome.layouts(teacher, X, ["nothing"])


def test_every_guide_by_name_is_judged_and_taught(found: Found) -> None:
    _, teacher, outcome = found
    draws = teacher.draws(X, S)
    held_out = outcome.judge(X, draws, S)
    described = outcome.describe(held_out)
    assert held_out.sampling_distance() <= 0  # of a posterior whose draws are all held: refine
    for name in outcome.guides:
        guide = outcome.guide(name, X, held_out, described)
        answer = outcome.answer_of(guide, X)
        assert outcome.is_answer(answer) and tuple(answer.event_shape) == outcome.event_shape
        for objective in outcome.objectives(guide, X, None):
            objective.prepare(X, draws.shape[-1])
            assert objective(answer, draws, X).isfinite()
        scores = held_out.scores(guide)
        assert "energy_distance" in scores and all(torch.tensor(list(scores.values())).isfinite())
        about = outcome.about(guide, described)
        assert json.loads(json.dumps(about)) == about  # a report is saved as text
    with pytest.raises(ValueError, match="`guide` must be one of"):
        outcome.guide("nothing", X, held_out, described)


def test_guides_of_something_else_are_refused(found: Found) -> None:
    outcome = found[2]
    assert not outcome.is_answer(torch.ones(3))
    with pytest.raises(TypeError, match="`guide` must return .*got Tensor"):
        outcome.answer_of(nn.Linear(X.shape[1], 2), X)


def test_a_student_of_it(found: Found) -> None:
    source, teacher, outcome = found
    fast = distill(source, X, num_steps=5, seed=0, progress=False)
    answer = fast.answer(X)
    assert outcome.is_answer(answer) and tuple(answer.event_shape) == outcome.event_shape
    assert outcome.chain(teacher.draws(X, S)).isfinite().all()
