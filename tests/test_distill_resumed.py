"""A killed distillation resumes from its checkpoint and ends as an unbroken one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from quick_distill import QUICK, C, inputs, quick, quick_wasserstein, same, teacher, truth
from torch import Tensor

from pyro_opu import EnergyDistance, MomentMatching, Objective, PredictiveGuide
from pyro_opu.training.settings import DRAW_BLOCKS


class Killed(Exception):
    """Stands for a power cut."""


# Often evaluated, with steps so large that the score goes up and down.
BROKEN: dict[str, Any] = {"num_steps": 50, "evaluate_every": 2, "learning_rate": 0.05}


class Mortal:
    """A teacher that dies at its ``k``-th batch, and counts them."""

    num_classes = C

    def __init__(self, k: int | None = None) -> None:
        self.k, self.calls = k, 0

    @property
    def batches(self) -> int:
        return -(-self.calls // DRAW_BLOCKS)

    def probs(self, x: Tensor, num_draws: int | None = None) -> Tensor:
        if num_draws == QUICK["num_draws"]:
            self.calls += 1
            if self.batches == self.k:
                raise Killed
        return truth(x).sample((num_draws or 500,))

    def log_probs(self, x: Tensor, num_draws: int | None = None) -> Tensor:
        return self.probs(x, num_draws).log()


LOSSES: dict[str, Callable[[], Objective]] = {
    "wasserstein": quick_wasserstein,
    "the paper's": lambda: quick_wasserstein(likelihood=0.0, residual=False),
    "energy": lambda: EnergyDistance(8),
    "moments": MomentMatching,
}


# Batches of a run of 50 steps: 45 of the warm start, then those of the objective.
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.85, 1.0])
def test_a_killed_run_started_again_ends_as_an_unbroken_one(
    tmp_path: Path, loss: str, share: float
) -> None:
    unbroken = Mortal()
    expected = quick(unbroken, loss=LOSSES[loss](), **BROKEN)
    path = tmp_path / "run.safetensors"
    with pytest.raises(Killed):
        mortal = Mortal(max(1, round(share * unbroken.batches)))
        quick(mortal, loss=LOSSES[loss](), checkpoint=path, **BROKEN)
    torch.manual_seed(12345)  # another process
    rest = Mortal()
    resumed = quick(rest, loss=LOSSES[loss](), checkpoint=path, **BROKEN)
    assert same(resumed, expected)
    assert resumed.report == expected.report
    if share > 0.1:
        assert rest.batches < unbroken.batches  # it did not begin again


def test_killed_again_and_again(tmp_path: Path) -> None:
    expected = quick(Mortal(), loss=quick_wasserstein(), **BROKEN)
    path, attempts = tmp_path / "run.safetensors", 0
    while True:
        attempts += 1
        try:
            # Long enough to get past the critic's warm-up to the next evaluation.
            fast = quick(Mortal(12), loss=quick_wasserstein(), checkpoint=path, **BROKEN)
            break
        except Killed:
            assert attempts < 50
    assert attempts > 3
    assert same(fast, expected) and fast.report == expected.report


def test_a_finished_run_started_again_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    first = quick(Mortal(), checkpoint=path)
    again = Mortal()
    assert same(quick(again, checkpoint=path), first)
    assert again.batches == 0


def test_a_run_with_a_checkpoint_is_the_run_without(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    assert same(quick(loss=quick_wasserstein(), checkpoint=path), quick(loss=quick_wasserstein()))


def test_a_run_without_a_seed_goes_on_with_its_own(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    torch.manual_seed(1)
    expected = quick(Mortal(), seed=None)
    torch.manual_seed(1)
    with pytest.raises(Killed):
        quick(Mortal(10), seed=None, checkpoint=path)
    torch.manual_seed(2)
    assert same(quick(Mortal(), seed=None, checkpoint=path), expected)


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
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    path = tmp_path / "run.safetensors"
    settings = {"loss": quick_wasserstein(), "checkpoint": path}
    quick(**settings)
    content = path.read_bytes()
    with pytest.raises(ValueError, match=rf"belongs to another run: \[.*'{named}'.*\] differ"):
        quick(**{**settings, "loss": quick_wasserstein(), **changes})
    assert path.read_bytes() == content


def test_corrupt_checkpoints_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    quick(checkpoint=path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="corrupt or of another format"):
        quick(checkpoint=path)
    quick().save(path)
    with pytest.raises(ValueError, match="must be a distillation checkpoint file"):
        quick(checkpoint=path)
    with pytest.raises(FileNotFoundError, match="`checkpoint` must lie in an existing folder"):
        quick(checkpoint=tmp_path / "nowhere" / "run.safetensors")
