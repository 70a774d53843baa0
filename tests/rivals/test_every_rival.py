"""Rivals, and distillation itself: what holds of every one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from posteriors import RIVALS, C, X, model, samples
from pyro.infer import Predictive
from torch import Tensor

from pyro_opu import OnePassPredictive, as_teacher, fidelity
from pyro_opu.rivals import load_compact

Method = Callable[..., OnePassPredictive]
QUIET = {"seed": 0, "progress": False}


@pytest.fixture(scope="module")
def predictive() -> Predictive:
    torch.manual_seed(2)
    return Predictive(model, samples())


def answer(fast: OnePassPredictive) -> Tensor:
    found = fast.distribution(X)
    return torch.cat([found.log_mean, fast.uncertainty(X).variance[:, None]], -1)


@pytest.mark.parametrize("method", RIVALS.values(), ids=RIVALS)
class TestEveryRival:
    def test_same_call_as_the_predictive_it_replaces(
        self, method: Method, predictive: Predictive
    ) -> None:
        fast = method(predictive, X, **QUIET)
        for x in (X, X[:1]):
            found, expected = fast(x), predictive(x)
            assert {k: (v.shape, v.dtype) for k, v in found.items()} == {
                k: (v.shape, v.dtype) for k, v in expected.items()
            }
        assert not fast.guide.training
        assert not any(parameter.requires_grad for parameter in fast.parameters())
        assert fidelity(fast, predictive, X, seed=0).to_dict()

    def test_sites_and_samples_that_are_asked_for(
        self, method: Method, predictive: Predictive
    ) -> None:
        asked = {"return_sites": ["probs", "obs"], "num_samples": 9}
        source = as_teacher(predictive, inputs=lambda x, y=None: x, **asked)
        fast = method(source, X, **QUIET)
        found = fast(x=X[:2])
        assert found["probs"].shape == (9, 2, C) and found["obs"].shape == (9, 2)

    @pytest.mark.parametrize(
        ("call", "error", "message"),
        [
            ({"return_sites": ["bias%2E"]}, ValueError, "'bias%2E'"),
            ({"return_sites": ["nothing"]}, ValueError, "'nothing'"),
            ({"site": "a.weight"}, ValueError, "a.weight"),
            ({"sites": ["obs"]}, TypeError, "sites"),
            ({"num_samples": 0}, ValueError, "`num_samples` must be a positive integer; got 0"),
            ({"seed": 1.5}, ValueError, "`seed` must be an integer"),
        ],
        ids=str,
    )
    def test_refused_options(
        self,
        method: Method,
        predictive: Predictive,
        call: dict[str, object],
        error: type[Exception],
        message: str,
    ) -> None:
        own = {name: value for name, value in call.items() if name in ("seed", "sites")}
        said: dict[str, Any] = {name: value for name, value in call.items() if name not in own}
        with pytest.raises(error, match=message):
            method(as_teacher(predictive, **said), X, **{**QUIET, **own})

    def test_the_seed_fixes_everything_and_the_generator_is_left_alone(
        self, method: Method, predictive: Predictive
    ) -> None:
        state = torch.get_rng_state()
        source = as_teacher(predictive, num_samples=7)
        runs = [method(source, X, **{**QUIET, "seed": s}) for s in (3, 3, 4)]
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(answer(runs[0]), answer(runs[1])) and runs[0].report == runs[1].report
        begun = runs[0].report.get("start")
        learns = runs[0].report.get("seed") == 3 and begun != "closed form"
        assert torch.equal(answer(runs[0]), answer(runs[2])) is not learns

    def test_saved_and_loaded(self, method: Method, predictive: Predictive, tmp_path: Path) -> None:
        source, path = as_teacher(predictive, num_samples=7), tmp_path / "fast.safetensors"
        fast = method(source, X, **QUIET)
        fast.save(path)
        if "size" in fast.report:
            again = load_compact(path, predictive)
        elif hasattr(fast.guide, "config"):
            again = OnePassPredictive.load(path)
        else:
            again = OnePassPredictive.load(path, guide=fast.guide)
        assert again.report == fast.report and again(X)["obs"].shape == (7, len(X))
        # Weights that lie elsewhere in memory may be summed in another order.
        torch.testing.assert_close(answer(again), answer(fast), rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize(
        ("x", "error", "message"),
        [
            (X / 0, ValueError, "`x` must be finite"),
            (X.long(), TypeError, "`x` must have a floating dtype"),
            (X.tolist(), TypeError, "`x` must be a torch.Tensor"),
        ],
    )
    def test_refused_inputs(
        self,
        method: Method,
        predictive: Predictive,
        x: object,
        error: type[Exception],
        message: str,
    ) -> None:
        with pytest.raises(error, match=message):
            method(predictive, x, **QUIET)
