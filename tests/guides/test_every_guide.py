"""Guides: what holds of every one, of classes or of a real y."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable

import pytest
import torch
from posteriors import GUIDES, C
from torch import Tensor, nn

from pyro_opu.distributions import Answer

Build, Inputs = Callable[[], nn.Module], Callable[[int], Tensor]


def same(one: Answer, other: Answer) -> bool:
    mine, theirs = one.as_tensors(), other.as_tensors()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)


@pytest.mark.parametrize(("build", "inputs"), GUIDES.values(), ids=GUIDES)
class TestEveryGuide:
    @pytest.mark.parametrize("rows", [1, 6])
    def test_shapes_and_finite_answers(self, build: Build, inputs: Inputs, rows: int) -> None:
        answer = build()(inputs(rows))
        assert isinstance(answer, Answer)
        assert answer.batch_shape == (rows,) and answer.event_shape in ((C,), ())
        assert answer.mean.shape == (rows, *answer.event_shape) and answer.mean.isfinite().all()
        assert all(value.dtype == torch.float32 for value in answer.as_tensors().values())
        assert answer.predict(3)[0].shape == (3, rows)

    def test_rows_do_not_see_each_other(self, build: Build, inputs: Inputs) -> None:
        guide, x = build(), inputs(6)
        whole = guide(x).measures().rounded()
        alone = [guide(row[None]).measures().rounded() for row in x]
        for name, value in whole.items():
            found = torch.cat([each[name] for each in alone])
            # Sums in another order for one row than for six.
            torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-5, msg=name)

    def test_gradient_reaches_every_parameter(self, build: Build, inputs: Inputs) -> None:
        guide = build()
        values = guide(inputs(6)).as_tensors().values()
        sum((value * torch.randn_like(value)).sum() for value in values).backward()
        for name, parameter in guide.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all() and parameter.grad.abs().max() > 0, name

    def test_eval_equals_train(self, build: Build, inputs: Inputs) -> None:
        guide, x = build(), inputs(6)
        assert same(guide.train()(x), guide.eval()(x))

    def test_state_and_description_make_it_again(self, build: Build, inputs: Inputs) -> None:
        guide, x, other = build(), inputs(6), build()
        assert not same(other(x), guide(x)) and repr(other) == repr(guide)
        others = [other]
        if getattr(guide, "config", None) is not None:  # a user's own trunk has none
            others.append(type(guide).from_config(json.loads(json.dumps(guide.config))))
            assert others[1].config == guide.config and repr(others[1]) == repr(guide)
        for again in others:
            again.load_state_dict(guide.state_dict())
            assert same(again(x), guide(x))
        assert same(copy.deepcopy(guide)(x), guide(x))

    def test_float64_module(self, build: Build, inputs: Inputs) -> None:
        guide, x = build(), inputs(6).double()
        single = guide(x.float()).as_tensors()
        for name, value in guide.double()(x).as_tensors().items():
            assert value.dtype == torch.float64
            # Rounding in float32, of a y of up to a hundred.
            torch.testing.assert_close(value.float(), single[name], rtol=1e-4, atol=1e-5, msg=name)
