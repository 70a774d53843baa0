"""Rivals, figures and ArviZ take several inputs, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from input_forms import FORMS, GROUP, NUMBERS, N, TwoInputs, posterior, quick

import pyro_opu
from pyro_opu import OnePassPredictive, as_teacher, rivals

X, TUPLE, Y = FORMS["dict"], FORMS["tuple"], GROUP % 2
STEPS = {"num_steps": 4, "seed": 0, "progress": False}
RIVALS: dict[str, Callable[[], OnePassPredictive]] = {
    "endd": lambda: rivals.endd(posterior(), X, **STEPS),
    "proxy": lambda: rivals.proxy_dirichlet(posterior(), TUPLE, **STEPS),
    "dark knowledge": lambda: rivals.dark_knowledge(posterior(), X, **STEPS),
    "compact": lambda: rivals.compact_approx(posterior(), X, size=5, tries=50, progress=False),
    "bridge": lambda: rivals.laplace_bridge_predictive(posterior(), X),
    "prior": lambda: rivals.prior_network(posterior(), X, outside={**X, "x": 9 * NUMBERS}, **STEPS),
}


@pytest.mark.filterwarnings("ignore:The student has learned little")
@pytest.mark.parametrize("name", RIVALS)
def test_a_rival_is_called_as_the_model_is(name: str) -> None:
    fast = RIVALS[name]()
    assert fast(NUMBERS, GROUP)["obs"].shape[1:] == (N,)
    mean = fast.dirichlet((NUMBERS, GROUP) if name == "proxy" else X).mean
    if name == "compact":
        assert mean.sub(as_teacher(posterior()).probs(X).mean(0)).abs().mean() < 0.05
    with pytest.raises(ValueError, match="has seen"):
        fast(NUMBERS, GROUP + 1)


def test_a_compact_posterior_is_read_again(tmp_path: Path) -> None:
    networks = [TwoInputs().eval() for _ in range(6)]
    fast = rivals.compact_approx(networks, X, size=3, tries=20, seed=0, progress=False)
    fast.save(tmp_path / "compact")
    again = rivals.load_compact(tmp_path / "compact", networks)
    assert torch.equal(again.distribution(X).mean, fast.distribution(X).mean)


def test_arviz_holds_each_input() -> None:
    pytest.importorskip("arviz")
    sources: list[Any] = [quick(posterior(), X), as_teacher(posterior())]
    for source in sources:
        held = pyro_opu.to_inference_data(source, X, Y).constant_data
        assert sorted(held) == ["group", "x"]
        assert held["group"].values.tolist() == GROUP.tolist() and held["x"].shape == (N, 2)


def test_figures_take_them() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    from pyro_opu.plots import decision_map, fidelity_scatter

    fast = quick(posterior(), X)
    assert "N = 60" in fidelity_scatter(fast, posterior(), X).get_title()
    with pytest.raises(ValueError, match="`x` must be a dict of tensors"):
        decision_map(fast, ((-1.0, 1.0), (-1.0, 1.0)))
