"""A right call with one changed argument: no wrong answer without a word, and few raw errors."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from bad_calls import mutated
from bad_calls.mutated import LONG, RIGHT, Mutant, every, outcome, some

#: Of all mutants of slips, so many may end in an error of another library.
RAW = 0.01
pytestmark = pytest.mark.filterwarnings("ignore")


def judged(mutants: list[Mutant]) -> None:
    found = {mutant.name: outcome(mutant) for mutant in mutants}
    silent = {name: said for name, (kind, said) in found.items() if kind == "silent"}
    raw = {name: said for name, (kind, said) in found.items() if kind == "raw"}
    assert not silent
    assert len(raw) <= RAW * len(found), raw


def test_some_of_them() -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("polyagamma")
    judged(some(RIGHT, 150, seed=0))


@pytest.mark.slow
def test_all_of_them() -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("polyagamma")
    judged(every(RIGHT))


@pytest.mark.slow
def test_all_of_what_takes_longer() -> None:
    judged(every(LONG))


def test_changes_that_are_told() -> None:
    """The judge itself: what it says of functions that answer rightly, wrongly, or not at all."""

    def mean(x: torch.Tensor) -> torch.Tensor:
        return mutated.pyro_opu.checks.check_inputs(x).mean(0)

    calls = {"right": (mean, {"x": mutated.X})}
    kinds = Counter(outcome(mutant)[0] for mutant in every(calls))
    assert kinds["silent"] == 1  # an axis more is an input to this one
    assert kinds["raw"] == 0
    careless = {"careless": (lambda x: torch.as_tensor(x)[:0].sum(), {"x": mutated.X})}
    kinds = Counter(outcome(mutant)[0] for mutant in every(careless))
    assert kinds["silent"] >= 5
    assert kinds["raw"] >= 5
    drifting = {
        "drifting": (lambda x: x.double().mean() + (x.dtype == torch.float64), {"x": mutated.X})
    }
    assert ("silent", "returned other numbers") in [outcome(mutant) for mutant in every(drifting)]


def test_names_of_readings_are_those_of_mutants() -> None:
    assert {mutant.name for mutant in every({**RIGHT, **LONG})} >= set(mutated.READ)
