"""Tables whose fields are computed when they are read: what is computed, when, and its values."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import pyro_opu
from pyro_opu import OnePassPredictive, PredictiveDirichlet, PredictiveGuide
from pyro_opu.distributions import NormalSticks
from pyro_opu.distributions.measures import DirichletMeasures, _digamma_gap, _tabulated_gap
from pyro_opu.guides.novelty import Novelty, fit_novelty
from pyro_opu.metrics.uncertainty import uncertainty
from pyro_opu.utils.chunks import rows_at_once

MEASURES = ("total", "aleatoric", "epistemic", "expected_pairwise_kl", "variance")
MEASURES += ("max_probability", "differential_entropy", "concentration")


@pytest.fixture
def fast() -> OnePassPredictive:
    torch.manual_seed(0)
    x = torch.randn(300, 5)
    guide = PredictiveGuide.for_inputs(x, 4, hidden=(8,)).requires_grad_(False).eval()
    guide.mean_head.weight.mul_(8.0)
    student = OnePassPredictive(guide, (5,), 4)
    student.detector = fit_novelty(guide, x)
    return student


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often a pass, a novelty and each measure of a Dirichlet has been computed."""
    counts: dict[str, int] = {}

    def counting(holder: Any, name: str, label: str) -> None:
        before = getattr(holder, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            counts[label] = counts.get(label, 0) + 1
            return before(*args, **kwargs)

        monkeypatch.setattr(holder, name, call)

    counting(PredictiveGuide, "forward", "pass")
    counting(Novelty, "forward", "novelty")
    for name in MEASURES:
        found = vars(DirichletMeasures).get(name) or vars(DirichletMeasures.__mro__[1])[name]
        read = found.func if hasattr(found, "func") else found.fget
        label = name

        def measured(self: Any, read: Any = read, label: str = label) -> Tensor:
            counts[label] = counts.get(label, 0) + 1
            value: Tensor = read(self)
            return value

        monkeypatch.setattr(DirichletMeasures, name, property(measured))
    return counts


def test_what_is_not_read_is_not_computed(fast: OnePassPredictive, counted: dict[str, int]) -> None:
    table = fast.uncertainty(torch.randn(9, 5))
    assert counted == {"pass": 1}
    first = table.epistemic
    assert counted == {"pass": 1, "epistemic": 1}
    assert table["epistemic"] is first and table.mutual_information is first
    assert "novelty" in table.keys() and "quantiles" not in table.keys()  # noqa: SIM118
    assert counted == {"pass": 1, "epistemic": 1}
    assert table.novelty is table.novelty
    assert counted == {"pass": 2, "epistemic": 1, "novelty": 1}
    assert set(table.to_dict()) == {"mean", *MEASURES, "novelty"}
    before = dict(counted)
    assert repr(table) and dict(table) and counted == before


@pytest.mark.parametrize("rows", [1, 7, 10_000])
@pytest.mark.parametrize("law", ["dirichlet", "sticks"])
def test_rows_in_blocks_are_rows_alone(fast: OnePassPredictive, rows: int, law: Any) -> None:
    fast.guide.read_as(law)
    x = torch.randn(rows, 5)
    assert (rows > rows_at_once(x)) == (rows == 10_000)
    table, answer = fast.uncertainty(x), fast.distribution(x)
    for name in MEASURES:
        value = getattr(answer.measures(), name).float()
        # A block may round a product otherwise: 1e-6 of a logit.
        torch.testing.assert_close(table[name], value, rtol=2e-5, atol=1e-6)
    assert fast.detector is not None
    torch.testing.assert_close(table.novelty, fast.novelty(x))
    assert len(table.novelty) == rows


def test_no_rows() -> None:
    none = PredictiveDirichlet(torch.zeros(0, 3), torch.zeros(0), validate_args=False)
    found = uncertainty(none).to_dict()
    assert found.pop("mean").shape == (0, 3)
    assert all(value.shape == (0,) for value in found.values())


@pytest.mark.parametrize("classes", [2, 10, 100])
@pytest.mark.parametrize("size", [0.1, 1.0, 5.0])
def test_the_table_is_the_closed_form_in_float64(classes: int, size: float) -> None:
    log_mean = (size * torch.randn(2000, classes)).log_softmax(-1)
    g = 24 * torch.rand(2000) - 8
    found = DirichletMeasures(log_mean, g).epistemic
    exact = DirichletMeasures(log_mean.double(), g.double()).epistemic
    # 1e-14: rounding of gaps of up to 20 in float64.
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-14)
    assert torch.equal(found.argsort(), exact.argsort())


def test_the_table_of_the_gap() -> None:
    x = torch.linspace(-60.0, 43.0, 100_001, dtype=torch.float64)
    torch.testing.assert_close(_tabulated_gap(x), _digamma_gap(x), rtol=3e-9, atol=0)
    odd = torch.tensor([-torch.inf, torch.nan, 1e5], dtype=torch.float64)
    assert _tabulated_gap(odd)[1].isnan() and _tabulated_gap(odd)[2].abs() < 1e-17


@pytest.mark.parametrize("classes", [2, 5])
def test_sticks_of_one_look_up_are_those_of_all(classes: int) -> None:
    """The information alone, and by the table of all four numbers."""
    law = NormalSticks((3 * torch.randn(500, classes)).log_softmax(-1), 12 * torch.rand(500) - 4)
    sticks = law.sticks
    slow = (sticks.log_left + sticks.of.log_information).exp().sum(-1)
    torch.testing.assert_close(law.measures().epistemic, slow, rtol=1e-6, atol=0)


def test_copies_hold_values(fast: OnePassPredictive) -> None:
    for rows in (3, 5000):
        x = torch.randn(rows, 5)
        expected = fast.uncertainty(x).to_dict()
        for copied in (
            pickle.loads(pickle.dumps(fast.uncertainty(x))),
            copy.copy(fast.uncertainty(x)),
            copy.deepcopy(fast.uncertainty(x)),
            dataclasses.replace(fast.uncertainty(x)),
        ):
            assert copied.to_dict().keys() == expected.keys() and copied.quantiles is None
            for name, value in expected.items():
                assert torch.equal(copied[name], value), name
    with pytest.raises(AttributeError, match="no attribute 'doubt'"):
        _ = fast.uncertainty(x).doubt
    with pytest.raises(dataclasses.FrozenInstanceError):
        fast.uncertainty(x).total = expected["total"]


def test_a_field_is_computed_in_the_modes_of_the_call(fast: OnePassPredictive) -> None:
    x = torch.randn(4, 5, requires_grad=True)
    table = fast.uncertainty(x)
    with torch.no_grad():
        first, other = fast.uncertainty(x), table.epistemic
    assert other.requires_grad and not first.epistemic.requires_grad
    with torch.inference_mode():
        assert not table.total.is_inference()
    (slope,) = torch.autograd.grad(table.novelty.sum() + table.total.sum(), x)
    assert slope.isfinite().all()


@pytest.mark.parametrize("rows", [3, 5000])
def test_inputs_that_were_changed_are_refused(fast: OnePassPredictive, rows: int) -> None:
    x = torch.randn(rows, 5)
    table, expected = fast.uncertainty(x), fast.uncertainty(x).epistemic
    x.zero_()
    assert torch.equal(table.epistemic, expected)
    with pytest.raises(ValueError, match="`x` must stay as it is until novelty is read"):
        _ = table.novelty


def test_draws_are_read_at_once() -> None:
    draws = torch.rand(9, 4, 3).softmax(-1)
    table, expected = uncertainty(draws), uncertainty(draws.clone())
    draws.fill_(1 / 3)
    assert torch.equal(table.epistemic, expected.epistemic)


def test_many_rows_of_another_family(fast: OnePassPredictive) -> None:
    """What is no closed form is computed with its block."""
    x = torch.randn(5000, 5)
    guide = pyro_opu.guides.GUIDES["mixture"].for_inputs(x, 4, hidden=(8,), num_components=2)
    other = OnePassPredictive(guide.requires_grad_(False).eval(), (5,), 4)
    found, expected = other.uncertainty(x), uncertainty(other.distribution(x))
    for name, value in expected.to_dict().items():
        torch.testing.assert_close(found[name], value, rtol=2e-5, atol=1e-6)
