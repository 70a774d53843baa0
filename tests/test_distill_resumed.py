"""A killed distillation resumes from its checkpoint and ends as an unbroken one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from quick_distill import C, Killed, inputs, quick, quick_wasserstein, same, teacher

from pyro_opu import EnergyDistance, MomentMatching, Objective, OnePassPredictive, PredictiveGuide
from pyro_opu.training.fit import Phase

pytestmark = pytest.mark.usefixtures("brief")


# Often evaluated, with steps so large that the score goes up and down.
BROKEN: dict[str, Any] = {"num_steps": 20, "evaluate_every": 2, "learning_rate": 0.05}


class Mortal:
    """Counts the steps of a distillation, which dies before its ``k``-th."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.k: int | None = None
        self.steps = 0
        step = Phase.step

        def counted(phase: Phase, number: int) -> dict[str, float]:
            self.steps += 1
            if self.steps == self.k:
                raise Killed
            return step(phase, number)

        monkeypatch.setattr(Phase, "step", counted)

    def run(self, k: int | None = None, **settings: Any) -> OnePassPredictive:
        self.k, self.steps = k, 0
        return quick(**settings)


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> Mortal:
    return Mortal(monkeypatch)


LOSSES: dict[str, Callable[[], Objective]] = {
    "wasserstein": quick_wasserstein,
    "the paper's": lambda: quick_wasserstein(likelihood=0.0, residual=False),
    "energy": lambda: EnergyDistance(8),
    "moments": MomentMatching,
}


@cache
def unbroken(loss: str) -> tuple[OnePassPredictive, int]:
    """The student of a run that is not killed, and its steps."""
    with pytest.MonkeyPatch.context() as patch:
        mortal = Mortal(patch)
        return mortal.run(loss=LOSSES[loss](), **BROKEN), mortal.steps


#: Every loss, and every place of a death, at least twice; in processes: ``tests/reliability``.
QUICKLY = (("wasserstein", 0.3), ("wasserstein", 0.85), ("wasserstein", 1.0))
QUICKLY += (("the paper's", 0.6), ("energy", 0.02), ("moments", 0.85))
SLOWLY = (("wasserstein", 0.02), ("the paper's", 1.0), ("energy", 0.6), ("moments", 0.3))


# 18 steps of the warm start, then 2 of the objective.
@pytest.mark.parametrize(
    ("loss", "share"), [*QUICKLY, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOWLY)]
)
def test_a_killed_run_started_again_ends_as_an_unbroken_one(
    mortal: Mortal, tmp_path: Path, loss: str, share: float
) -> None:
    expected, steps = unbroken(loss)
    path = tmp_path / "run.safetensors"
    with pytest.raises(Killed):
        k = max(1, round(share * steps))
        mortal.run(k, loss=LOSSES[loss](), checkpoint=path, **BROKEN)
    torch.manual_seed(12345)  # another process
    resumed = mortal.run(loss=LOSSES[loss](), checkpoint=path, **BROKEN)
    assert same(resumed, expected)
    assert resumed.report == expected.report
    if share > 0.1:
        assert mortal.steps < steps  # it did not begin again


@pytest.mark.parametrize("settings", [{}, {"two_sided": True, "residual": False}])
def test_a_killed_run_from_a_cold_start_ends_as_an_unbroken_one(
    mortal: Mortal, tmp_path: Path, settings: dict[str, Any]
) -> None:
    def loss() -> Objective:
        return quick_wasserstein(critic_steps=2, **settings)

    cold = {**BROKEN, "warm_start": False}
    expected = mortal.run(loss=loss(), **cold)
    path = tmp_path / "run.safetensors"
    with pytest.raises(Killed):
        mortal.run(mortal.steps // 2, loss=loss(), checkpoint=path, **cold)
    resumed = mortal.run(loss=loss(), checkpoint=path, **cold)
    assert same(resumed, expected) and resumed.report == expected.report


def test_killed_again_and_again(mortal: Mortal, tmp_path: Path) -> None:
    expected, _ = unbroken("wasserstein")
    path, attempts = tmp_path / "run.safetensors", 0
    while True:
        attempts += 1
        try:
            fast = mortal.run(5, loss=quick_wasserstein(), checkpoint=path, **BROKEN)
            break
        except Killed:
            assert attempts < 50
    assert attempts > 3
    assert same(fast, expected) and fast.report == expected.report


def test_a_finished_run_started_again_changes_nothing(mortal: Mortal, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    first = mortal.run(checkpoint=path)
    assert same(mortal.run(checkpoint=path), first)
    assert mortal.steps == 0


def test_a_run_with_a_checkpoint_is_the_run_without(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    assert same(quick(loss=quick_wasserstein(), checkpoint=path), quick(loss=quick_wasserstein()))


def test_a_run_without_a_seed_goes_on_with_its_own(mortal: Mortal, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    torch.manual_seed(1)
    expected = mortal.run(seed=None)
    torch.manual_seed(1)
    with pytest.raises(Killed):
        mortal.run(10, seed=None, checkpoint=path)
    torch.manual_seed(2)
    assert same(mortal.run(seed=None, checkpoint=path), expected)


@pytest.fixture(scope="module")
def finished(brief: None, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The checkpoint of a run that has ended."""
    path = tmp_path_factory.mktemp("finished") / "run.safetensors"
    quick(loss=quick_wasserstein(), checkpoint=path)
    return path.read_bytes()


def small_guide() -> PredictiveGuide:
    return PredictiveGuide.for_inputs(inputs(), C, hidden=(4,))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 1}, "seed"),
        ({"batch_size": 8}, "batch_size"),
        ({"num_draws": 5}, "num_draws"),
        ({"learning_rate": 0.1}, "learning_rate"),
        ({"num_steps": 30}, "warm_steps"),
        ({"evaluate_every": 7}, "evaluate_every"),
        ({"loss": "energy"}, "objective"),
        ({"loss": quick_wasserstein(beta=2.0)}, "objective"),
        ({"guide": small_guide()}, "guide"),
        ({"x": inputs() + 1}, "x"),
        ({"source": teacher(3.0)}, "teacher"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_checkpoint_of_another_run_is_refused(
    finished: bytes, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    path = tmp_path / "run.safetensors"
    path.write_bytes(finished)
    with pytest.raises(ValueError, match=rf"belongs to another run: \[.*'{named}'.*\] differ"):
        quick(**{"loss": quick_wasserstein(), "checkpoint": path, **changes})
    assert path.read_bytes() == finished


def test_corrupt_checkpoints_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    quick(checkpoint=path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="corrupt or of another format"):
        quick(checkpoint=path)
    quick().save(path, overwrite=True)
    with pytest.raises(ValueError, match="must be a distillation checkpoint file"):
        quick(checkpoint=path)
    with pytest.raises(FileNotFoundError, match="`checkpoint` must lie in an existing folder"):
        quick(checkpoint=tmp_path / "nowhere" / "run.safetensors")
