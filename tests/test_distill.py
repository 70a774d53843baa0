"""Distillation recovers known teachers; seeds, progress and reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from flat import distill_flat
from quick_distill import (
    NAMES,
    WEIGHTS,
    C,
    NotFiniteAt,
    inputs,
    quick,
    quick_wasserstein,
    same,
    teacher,
    truth,
    weights,
)
from torch import Tensor, nn

from pyro_opu import (
    DistillationError,
    EnergyDistance,
    MomentMatching,
    PredictiveDirichlet,
    PredictiveGuide,
    distill,
)
from pyro_opu.metrics.distances import energy_distance

pytestmark = pytest.mark.usefixtures("brief")


@pytest.mark.parametrize(
    "concentration",
    [
        pytest.param(0.5, marks=pytest.mark.slow),
        20.0,
        pytest.param(500.0, marks=pytest.mark.slow),
        None,
    ],
)
def test_a_dirichlet_teacher_is_recovered(concentration: float | None) -> None:
    x = torch.randn(1000, 2)
    fast = quick(
        teacher(concentration),
        x,
        loss="moments",
        num_steps=400,
        batch_size=128,
        num_draws=16,
        learning_rate=5e-3,
        evaluate_every=50,
    )
    new = torch.randn(300, 2)
    found, expected = fast.dirichlet(new), truth(new, concentration)
    ratio = found.log_concentration - expected.log_concentration
    # Optimisation, 400 steps: 15 % of alpha_0 in the typical case.
    assert ratio.abs().median() < 0.15
    # Means, too, to 0.02 on average.
    assert (found.mean - expected.mean).abs().mean() < 0.02
    assert energy_distance(expected.sample((200,)), found.sample((200,))).mean() < 0.01


@pytest.mark.parametrize("loss", NAMES)
def test_every_loss_by_name(loss: str) -> None:
    fast = quick(loss=loss, num_steps=60, batch_size=64, evaluate_every=10)
    first, *_ = fast.report["history"]
    assert fast.report["energy_distance"] < 0.5 * first["energy_distance"]
    phases = {record["phase"] for record in fast.report["history"]}
    assert "warm start" in phases and ("objective" in phases) == (loss != "moments")
    assert fast.report["loss"] == NAMES[loss].__name__
    *_, before, last = fast.report["history"]
    if loss != "moments":  # what was refined is another student, kept or not, and no worse one
        assert before["phase"] == "warm start" and last["phase"] == "objective"
        assert last["energy_distance"] != before["energy_distance"]
        assert last["energy_distance"] < before["energy_distance"] + 0.005  # of 0.44 at the start
    assert fast(inputs(7))["obs"].shape == (500, 7)
    assert fast.dirichlet(inputs(7)).batch_shape == (7,)


def test_refinement_by_the_objective_given() -> None:
    calls = []

    class Counting(EnergyDistance):
        def parts(self, *args: Any) -> dict[str, Tensor]:
            calls.append(1)
            return super().parts(*args)

    fast = quick(loss=Counting(8), num_steps=20, warm_start=False)
    assert len(calls) == fast.report["history"][-1]["step"] > 0
    assert fast.report["loss"] == "Counting"


def test_images() -> None:
    x = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(5))
    fast = quick(x=x, num_steps=4)
    assert fast.dirichlet(x[:5]).batch_shape == (5,)
    assert "Conv2d" in repr(fast.guide)


@pytest.mark.parametrize("num_classes", [2, 7])
def test_numbers_of_classes(num_classes: int) -> None:
    def probs(x: Tensor, num_draws: int) -> Tensor:
        alpha = torch.ones(len(x), num_classes)
        return PredictiveDirichlet.from_alpha(alpha).sample((num_draws,))

    assert quick(probs).dirichlet(inputs(5)).event_shape == (num_classes,)


@pytest.mark.parametrize("own", [False, True], ids=["default guide", "own guide"])
def test_float64_inputs(own: bool) -> None:
    guide = PredictiveGuide(nn.Linear(2, 4), 4, C) if own else None
    fast = quick(x=inputs().double(), guide=guide)
    assert fast.dirichlet(inputs(5).double()).mean.dtype == torch.float32


@pytest.mark.parametrize("loss", NAMES)
def test_a_float64_guide(loss: str) -> None:
    guide = PredictiveGuide.for_inputs(inputs(), C).double()
    fast = quick(guide=guide, loss=quick_wasserstein() if loss == "wasserstein" else loss)
    assert fast.dirichlet(inputs(5)).mean.dtype == torch.float64


def test_a_posterior_with_few_draws() -> None:
    fixed = torch.randn(3, 2, C)
    fast = quick(lambda x: (x @ fixed).softmax(-1), num_draws=32)
    assert fast.num_samples == 3 and fast.report["history"]


@pytest.mark.parametrize("loss", ["wasserstein", "energy"])
def test_same_seed_same_weights(loss: str) -> None:
    losses = [quick_wasserstein() if loss == "wasserstein" else loss for _ in range(3)]
    one = quick(loss=losses[0])
    torch.manual_seed(99)
    other = quick(loss=losses[1])
    assert same(one, other) and one.report == other.report
    assert not same(one, quick(loss=losses[2], seed=1))


def test_the_callers_random_state_is_untouched() -> None:
    before = torch.get_rng_state()
    quick(loss=quick_wasserstein())
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(DistillationError):
        quick(loss=NotFiniteAt(3), warm_start=False)
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_seed_torchs_generator_decides() -> None:
    torch.manual_seed(7)
    one = quick(seed=None)
    two = quick(seed=None)
    torch.manual_seed(7)
    assert same(one, quick(seed=None)) and same(two, quick(seed=None))
    assert one.report["seed"] != two.report["seed"]
    assert same(one, quick(seed=one.report["seed"]))


def test_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    quick(progress=False)
    assert capsys.readouterr() == ("", "")
    quick(progress=True)
    shown = capsys.readouterr().err
    for text in ("1/2 warm start", "2/2 objective", "mean as of ", " draws", "18/18"):
        assert text in shown


def test_a_callback_is_given_every_record_and_changes_nothing() -> None:
    records: list[dict[str, Any]] = []

    def callback(record: dict[str, Any]) -> None:
        records.append(record)
        torch.rand(7)  # of a logger that draws

    options: dict[str, Any] = {"num_steps": 20, "evaluate_every": 5, "seed": 0, "progress": False}
    x, draws = torch.randn(60, 2), torch.randn(12, 2, 3)

    def source(x: Tensor) -> Tensor:
        return (x @ draws).softmax(-1)

    watched, plain = (distill_flat(source, x, callback=c, **options) for c in (callback, None))
    assert records == watched.report["history"]
    assert [record["step"] for record in records] == [0, 5, 10, 15, 20]
    assert torch.equal(watched.dirichlet(x).mean, plain.dirichlet(x).mean)
    with pytest.raises(TypeError, match="`callback` must be a callable"):
        distill(source, x, callback=3)  # type: ignore[arg-type]


def test_report() -> None:
    report = quick().report
    assert report["seed"] == 0 and report["loss"] == "EnergyDistance"
    assert json.loads(json.dumps(report)) == report  # it is saved as text
    steps = [r["step"] for r in report["history"] if r["phase"] == "warm start"]
    assert steps == [*range(5, steps[-1], 5), steps[-1]]
    assert report["history"][0]["phase"] == "start"
    assert {"cross_entropy", "moments", "energy_distance", "kl"} <= report["history"][1].keys()


def test_moments_are_matched_as_the_objective_says() -> None:
    share, again, variance = (
        quick(loss=MomentMatching(weights)) for weights in ("share", "share", "variance")
    )
    assert same(share, again) and not same(share, variance)


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_distilling_on_the_gpu(tmp_path: Path, where: str) -> None:
    weight = WEIGHTS.clone()

    def probs(x: Tensor, num_draws: int) -> Tensor:
        d = PredictiveDirichlet((x @ weight.to(x.device)).log_softmax(-1), 2 + x[:, 0])
        return d.sample((num_draws,))

    x = inputs().to(where)
    before = torch.cuda.get_rng_state()
    settings: dict[str, Any] = {"device": "cuda", "num_steps": 40, "batch_size": 64}
    fast = quick(probs, x, loss=quick_wasserstein(), **settings)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert all(value.is_cuda for value in weights(fast).values())
    assert fast(x.cuda())["obs"].is_cuda
    assert fast.report["energy_distance"] < fast.report["history"][0]["energy_distance"]
    path = tmp_path / "run.safetensors"
    quick(probs, x, loss=quick_wasserstein(), checkpoint=path, **settings)
    resumed = quick(probs, x, loss=quick_wasserstein(), checkpoint=path, **settings)
    # Sums on the GPU may be taken in any order.
    for name, value in weights(resumed).items():
        torch.testing.assert_close(value, weights(fast)[name], rtol=1e-2, atol=1e-2)
