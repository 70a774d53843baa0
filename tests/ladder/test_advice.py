"""What ``advise`` measures, and what it makes of the numbers."""

from __future__ import annotations

import json
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from torch import Tensor, nn

import pyro_opu
from pyro_opu.ladder import advice
from pyro_opu.ladder.advice import CLOSED, EXACT, LOOP, STUDENT, Advice

S, N, D = 300, 200, 3
X = torch.randn(N, D, generator=torch.Generator().manual_seed(0))


def model(x: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(x @ w, 1.0))


def predictive() -> Predictive:
    torch.manual_seed(0)
    return Predictive(model, {"w": torch.randn(S, D)}, return_sites=("obs",))


def network(*last: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(D, 4), nn.Tanh(), *last, nn.Linear(4, 3))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "REPEATED", 0.0)


#: Sources, and the ways that there are to answer by each.
SOURCES: dict[str, tuple[Any, list[str]]] = {
    "affine model": (predictive, [LOOP, EXACT, CLOSED]),
    "function": (
        lambda: lambda x: torch.softmax(x[:, :1].cos() * torch.arange(9).reshape(3, 1, 3), -1),
        [EXACT, STUDENT],
    ),
    "networks": (lambda: [network() for _ in range(4)], [EXACT, STUDENT]),
    "dropout": (lambda: network(nn.Dropout()), [EXACT, STUDENT]),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_is_timed_in_all_its_ways(name: str, quick: None) -> None:
    torch.manual_seed(1)
    source, ways = SOURCES[name][0](), SOURCES[name][1]
    state = torch.get_rng_state()
    found = pyro_opu.advise(source, X)
    assert list(found.milliseconds) == ways
    assert all(
        time is not None and time > 0 for pair in found.milliseconds.values() for time in pair
    )
    assert found.take in ("exact", "distill") and found.distilling > 0
    assert json.loads(json.dumps(found.to_dict()))["num_inputs"] == N
    shown, html = str(found), found._repr_html_()
    assert all(way in shown for way in ways) and found.advice in shown and "<table>" in html
    assert torch.equal(torch.get_rng_state(), state)


def test_bytes_are_those_of_a_file(quick: None) -> None:
    """A file holds draws and weights, and few constants."""
    pair = {"w": torch.randn(S, D)}, lambda draw, x: (x @ draw["w"], torch.ones(len(x)))
    networks = [network() for _ in range(4)]
    numbers = 4 * (4 * (D + 1) + 3 * (4 + 1))
    for source, count in ((predictive(), S * D), (pair, S * D), (networks, numbers)):
        assert pyro_opu.advise(source, X).exact_bytes == pytest.approx(4 * count, abs=100)
    assert pyro_opu.advise(SOURCES["function"][0](), X).exact_bytes is None


def advised(exact: tuple[Any, Any], student: tuple[Any, Any], way: str = STUDENT) -> Advice:
    """The advice at these milliseconds; distilling takes ten seconds."""
    teacher = pyro_opu.as_teacher(lambda x: x)
    return advice._advised({EXACT: exact, way: student}, 10.0, teacher, X, S)


def test_calls_to_pay_are_cost_over_what_each_saves() -> None:
    found = advised((2.0, 101.0), (1.9, 1.0))
    assert found.take == "distill" and found.calls == (None, 100)
    assert "pays after 100 calls of 200 rows" in found.advice and "stay exact, 2 ms" in found.advice


def test_a_student_that_saves_little_is_not_advised() -> None:
    for exact, student in (((0.1, 1.0), (0.3, 0.9)), ((1.0, 1.0), (None, None))):
        found = advised(exact, student)
        assert found.take == "exact" and found.calls == (None, None)
        assert "hardly quicker" in found.advice
    found = advised((1.0, 1.0), (0.1, 0.1))
    assert found.take == "exact" and found.calls == (11_112, 11_112)
    assert "pays only after 11,112 calls of 1 row" in found.advice


def test_a_closed_form_takes_no_step() -> None:
    assert "takes no step" in advised((5.0, 50.0), (0.5, 0.5), CLOSED).advice


def test_overhead_is_no_reason_to_distil(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model whose exact call takes long is better written in NumPyro."""
    monkeypatch.setattr(advice, "OVERHEAD", 0.0)
    assert "overhead" in str(pyro_opu.advise(predictive(), X))
    monkeypatch.setattr(advice, "FEW_OPERATIONS", 0)
    assert "jax.jit, took a half" in str(pyro_opu.advise(predictive(), X))
    monkeypatch.setattr(advice, "OVERHEAD", 1e9)
    assert "jax.jit" not in str(pyro_opu.advise(predictive(), X))


@pytest.mark.parametrize(
    ("first", "expected"), [((2.0,), 100.0), ((6.0,), 6000.0), ((2.0, 1.0), 100.0)]
)
def test_what_the_first_call_records_is_not_counted(
    first: tuple[float, ...], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it takes so long that it is the only one; nor is what else a second has waited for."""
    now, takes = [0.0], iter([*first, *[0.1] * 200])
    monkeypatch.setattr(advice.time, "perf_counter", lambda: now[0])

    def way(x: Tensor) -> None:
        now[0] += next(takes)

    assert advice._best(way, X) == pytest.approx(expected)


def test_few_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 4"):
        pyro_opu.advise(predictive(), X[:3])
