"""A student that begins at an earlier one: nearer in fewer steps, and refused where it cannot."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import input_forms
import pyro
import pyro.distributions as dist
import pytest
import regressions
import torch
from flat import distill_flat
from pyro.infer import Predictive
from quick_distill import inputs, killed, quick, same, teacher, truth, weights
from torch import Tensor

from pyro_opu import OnePassPredictive, distill
from pyro_opu.teachers import finished
from pyro_opu.training.fit import Phase
from pyro_opu.training.tuned import EFFORTS, FOLLOWING

pytestmark = pytest.mark.usefixtures("brief")

LONGER: dict[str, Any] = {"loss": None, "batch_size": 64, "num_draws": 32}


def moved(x: Tensor, num_draws: int) -> Tensor:
    """The teacher, after a little more data."""
    return truth(x + 0.2).sample((num_draws,))


def error(student: OnePassPredictive) -> float:
    """KL of the mean from the moved teacher's own."""
    x = torch.randn(4000, 2, generator=torch.Generator().manual_seed(1))
    mean = truth(x + 0.2).mean
    return float((mean * (mean / student.dirichlet(x).mean).log()).sum(-1).mean())


@pytest.fixture(scope="module")
def before() -> OnePassPredictive:
    return quick(num_steps=600, **LONGER)


def test_few_steps_from_an_earlier_student_are_worth_many(before: OnePassPredictive) -> None:
    kept = copy.deepcopy(weights(before))
    after = quick(moved, start=before, num_steps=20, **LONGER)
    anew = quick(moved, num_steps=20, **LONGER)
    assert error(after) < min(error(anew), error(before)) / 4
    assert after.report["earlier"]["draws"] < after.report["draws"] / 2
    # 30 held-out inputs stand for all.
    assert after.report["earlier"]["kl"] == pytest.approx(error(before), rel=0.3)
    assert all(torch.equal(value, kept[name]) for name, value in weights(before).items())
    line = str(after.report).splitlines()[1]
    assert (
        line.startswith("start     a student whose mean errs as that of ")
        and ", of its own" in line
    )
    assert "earlier" not in before.report and before.report["start"] == "scratch"
    assert after.report["start"] == "student"


def test_where_nothing_has_moved_the_report_says_so(before: OnePassPredictive) -> None:
    again = quick(start=before, num_steps=1, **LONGER)
    found = again.report["earlier"]
    assert found["draws"] == pytest.approx(found["draws_before"])  # the same held-out draws
    assert found["kl"] == pytest.approx(before.report["kl"])


def test_a_tenth_of_the_steps_and_a_fifth_of_the_labels_by_default(
    before: OnePassPredictive, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    rows: list[int] = []

    def counted(x: Tensor, num_draws: int) -> Tensor:
        rows.append(len(x))
        return moved(x, num_draws)

    step = Phase.step
    monkeypatch.setattr(finished, "check_alone", lambda *_: None)
    monkeypatch.setattr(Phase, "step", lambda self, n: (steps.append(n), step(self, n))[1])
    after = distill(counted, inputs(), start=before, seed=0, progress=False)
    assert FOLLOWING == (10, 5)
    most_steps, most_inputs = EFFORTS["default"]
    assert len(steps) <= most_steps / 10 == after.report["spent"]["num_steps"]
    few = 3 * len(inputs())  # that are looked at, held out and calibrate
    assert most_inputs / 5 - 256 < sum(rows) < most_inputs / 5 + few


def several(x: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2, 2), 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Bernoulli(logits=x @ w).to_event(1))


def held(x: Tensor) -> Tensor:
    return (x @ W).softmax(-1)


W = torch.randn(20, 2, 2, generator=torch.Generator().manual_seed(0))
KINDS: dict[str, Callable[[], tuple[Any, Any, dict[str, Any]]]] = {
    "mixture": lambda: (teacher(), inputs(), {"guide": "mixture"}),
    "real y": lambda: (regressions.predictive(), torch.randn(60, regressions.D), {}),
    "several": lambda: (Predictive(several, {"w": W}), inputs(), {}),
    "dict": lambda: (input_forms.posterior(), input_forms.FORMS["dict"], {}),
    "tuple": lambda: (input_forms.posterior(), input_forms.FORMS["tuple"], {}),
    "model's network": lambda: (input_forms.TwoInputs(), input_forms.FORMS["tuple"], {}),
    "joint": lambda: (held, inputs(), {"guide": "joint"}),
    "from noise": lambda: (held, inputs(), {"guide": "implicit"}),
    "several from noise": lambda: (Predictive(several, {"w": W}), inputs(), {"guide": "implicit"}),
}


@pytest.mark.parametrize("name", KINDS)
def test_any_student_is_gone_on_with(name: str, tmp_path: Path) -> None:
    source, x, options = KINDS[name]()
    same_run: dict[str, Any] = {"num_steps": 5, "seed": 0, "progress": False}
    first = distill_flat(source, x, **options, **same_run)
    path = tmp_path / "first.safetensors"
    first.save(path)
    found = [
        distill_flat(source, x, start=each, **same_run)
        for each in (first, OnePassPredictive.load(path))
    ]
    for each in found:
        assert type(each) is type(first) and type(each.guide) is type(first.guide)
        assert each.report["spent"]["steps"] == 5 and same(each, found[0])


REFUSED: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "guide": (lambda: {"guide": "mixture"}, "`start` brings its own guide; got `guide` too"),
    "inputs": (
        lambda: {"x": torch.randn(20, 3), "source": lambda x, n: teacher()(x, n)},
        r"the shape of an input differs: \(2,\) of it, \(3,\) here",
    ),
    "classes": (
        lambda: {"source": lambda x: torch.randn(9, len(x), 4).softmax(-1)},
        r"the outcome differs: .*3.* of it, .*4.* here",
    ),
    "outcome": (
        lambda: {"source": lambda x: (torch.randn(9, len(x)), torch.ones(9, 1))},
        "the outcome differs: .* of it, a real y here",
    ),
    "form": (lambda: {"x": (inputs(),)}, "the form of several inputs differs: one tensor of it"),
    "sites": (lambda: {"return_sites": ["obs", "probs"]}, "the sites that come back differs"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_differs_is_named(before: OnePassPredictive, name: str) -> None:
    options, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        quick(**{"start": before, **LONGER, **options()})


def test_what_is_no_student_is_refused(before: OnePassPredictive) -> None:
    with pytest.raises(TypeError, match="`start` must be a student that `distill` has made"):
        quick(start=before.guide)
    with pytest.raises(ValueError, match=r"`start` must be a student as it was before fuse\(\)"):
        quick(start=before.fuse())


def test_a_checkpoint_is_of_one_start(before: OnePassPredictive, tmp_path: Path) -> None:
    run = {"num_steps": 20, "evaluate_every": 2, **LONGER}
    unbroken = quick(moved, start=before, **run)
    path = tmp_path / "run.safetensors"
    with killed(12):
        quick(moved, start=before, checkpoint=path, **run)
    other = quick(num_steps=2, seed=1, **LONGER)
    with pytest.raises(ValueError, match=r"another run: \['start'\] differ"):
        quick(moved, start=other, checkpoint=path, **run)
    resumed = quick(moved, start=before, checkpoint=path, **run)
    assert same(resumed, unbroken) and resumed.report == unbroken.report
