"""One step of training: batches that add up, and a trunk in half precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from taught import Scripted, X, teacher
from torch import Tensor, nn

from pyro_opu import MomentMatching, OnePassPredictive, PredictiveGuide, WassersteinELBO, distill
from pyro_opu.objectives import Objective
from pyro_opu.objectives.likelihood import LikelihoodFirst
from pyro_opu.training.autocast import checked_precision, in_precision
from pyro_opu.training.settings import Batches, Settings
from pyro_opu.training.train import distillation_phase


def feed(*batches: Tensor, accumulate: int) -> Batches:
    """All of the teacher's 12 draws at given batches."""
    settings = Settings(10, 0, len(batches[0]), 12, 12, 1e-3, 5, accumulate=accumulate)
    return Batches(lambda x, n: teacher(x), Scripted(*batches), settings, torch.device("cpu"), 12)


def quick(**changes: Any) -> OnePassPredictive:
    settings = {"num_steps": 20, "batch_size": 16, "num_draws": 8, "evaluate_every": 5, "seed": 0}
    return distill(teacher, X, **{**settings, "progress": False, **changes})


# Accumulation --------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", [MomentMatching(), LikelihoodFirst()], ids=repr)
def test_batches_of_a_step_are_one_larger_batch(objective: Objective) -> None:
    def stepped(source: Batches) -> tuple[list[Tensor], dict[str, float]]:
        torch.manual_seed(0)
        guide = PredictiveGuide.for_inputs(X, 3, hidden=(6,))
        phase = distillation_phase(
            "warm start", objective, guide, source, steps=10, rate=1e-2, num_draws=12
        )
        parts = phase.step(0)
        assert not source.policy.batches  # all were used
        return [p.grad for p in guide.parameters()], parts

    several, parts = stepped(feed(X[:20], X[20:40], X[40:], accumulate=3))
    whole, expected = stepped(feed(X, accumulate=1))
    for mine, theirs in zip(several, whole, strict=True):
        # Rounding of float32 sums taken in another order.
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    assert parts == pytest.approx(expected, rel=1e-5)


def test_the_critic_accumulates_too() -> None:
    drawn = []

    def watched(x: Tensor) -> Tensor:
        drawn.append(len(x))
        return teacher(x)

    objective = WassersteinELBO(critic_warmup=2, critic_steps=1, num_samples=4)
    objective.prepare(X, 3)
    guide = PredictiveGuide.for_inputs(X, 3, hidden=(6,))
    settings = Settings(0, 10, 5, 12, 12, 1e-3, 5, accumulate=3)
    source = Batches(
        lambda x, n: watched(x), Scripted(*[X[:5]] * 6), settings, torch.device("cpu"), 12
    )
    phase = distillation_phase(
        "objective", objective, guide, source, steps=10, rate=1e-3, num_draws=12
    )
    phase.step(0)
    assert drawn == [5] * 6  # two rounds of the critic, three batches each; a step at the last


def test_accumulation_in_a_distillation() -> None:
    asked = []

    def watched(x: Tensor) -> Tensor:
        asked.append(len(x))
        return teacher(x)

    settings = {"num_steps": 6, "batch_size": 16, "num_draws": 8, "evaluate_every": 6, "seed": 0}
    distill(watched, X, accumulate=5, progress=False, **settings)
    assert asked.count(6 * 5 * 16) == 1  # labelled before the first step
    distill(watched, X, loss="energy", warm_start=False, accumulate=5, progress=False, **settings)
    assert asked.count(4) == 6 * 5 * 4  # a batch is asked about in quarters
    with pytest.raises(ValueError, match="`accumulate` must be a positive integer; got 0"):
        quick(accumulate=0)


# Precision -----------------------------------------------------------------------------------


class Watched(nn.Module):
    """A trunk that writes down in which precision its matrix product came out."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 6)
        self.seen: list[torch.dtype] = []

    def forward(self, x: Tensor) -> Tensor:
        product = self.layer(x)
        self.seen.append(product.dtype)
        return product.tanh()


def test_the_trunk_alone_is_in_half_precision_and_only_inside() -> None:
    guide = PredictiveGuide(Watched(), 6, 3)
    heads = []
    guide.mean_head.register_forward_hook(lambda module, args, out: heads.append(out.dtype))
    with in_precision(guide, "bfloat16"):
        answer = guide(X)
        answer.log_mean.sum().backward()
    exact = guide(X)
    assert guide.trunk.seen == [torch.bfloat16, torch.float32]
    assert heads == [torch.float32] * 2
    assert answer.log_mean.dtype == answer.log_concentration.dtype == torch.float32
    # bfloat16 has 8 bits: features of size 1 are off by 2^-9 at most before the heads.
    assert 0 < (answer.log_mean - exact.log_mean).abs().max() < 0.05
    assert guide.trunk.layer.weight.grad.dtype == torch.float32
    assert "forward" not in vars(guide.trunk)


def test_both_trunks_and_an_error_inside() -> None:
    guide = PredictiveGuide(Watched(), 6, 3, Watched(), 6)
    with pytest.raises(KeyError), in_precision(guide, "bfloat16"):
        guide(X)
        raise KeyError
    guide(X)
    for trunk in (guide.trunk, guide.concentration_trunk):
        assert trunk.seen == [torch.bfloat16, torch.float32]
    assert not torch.is_autocast_enabled("cpu")


def test_a_distillation_in_half_precision() -> None:
    trunk = Watched()
    seen = []

    class Seeing(MomentMatching):
        def parts_at(self, student: Any, statistics: Any, x: Tensor) -> dict[str, Tensor]:
            parts = super().parts_at(student, statistics, x)
            seen.extend([student.log_mean.dtype, *(value.dtype for value in parts.values())])
            return parts

    settings = {"loss": Seeing(), "num_steps": 60, "learning_rate": 0.02}
    fast = quick(guide=PredictiveGuide(trunk, 6, 3), precision=torch.bfloat16, **settings)
    assert trunk.seen.count(torch.bfloat16) == 60
    assert set(seen) == {torch.float32}
    assert fast.guide(X).log_mean.dtype == torch.float32
    assert trunk.seen[-1] == torch.float32  # what is judged and returned is in full precision
    scores = [record["energy_distance"] for record in fast.report["history"]]
    assert min(scores) < scores[0] / 2


@pytest.mark.parametrize("guide", ["mixture", "logistic_normal"])
def test_every_family_can_be_taught_in_half_precision(guide: str) -> None:
    fast, full = (quick(guide=guide, precision=p) for p in (torch.bfloat16, None))
    first, *_, last = (record["energy_distance"] for record in fast.report["history"])
    assert last < first - 0.005  # of 0.01 and 0.13 that are learnt in 20 steps
    # Three digits, over 20 steps: near the student of full precision, and not that one.
    found, expected = fast.distribution(X).mean, full.distribution(X).mean
    torch.testing.assert_close(found, expected, rtol=0, atol=0.05)
    assert not torch.equal(found, expected)


def test_a_regressor_in_half_precision() -> None:
    w = torch.randn(20, 1, generator=torch.Generator().manual_seed(0))
    settings = {"num_steps": 20, "batch_size": 16, "num_draws": 8, "evaluate_every": 5, "seed": 0}
    fast, full = (
        distill(
            lambda x: (w * x[:, 0], torch.ones(20, 1)),
            X,
            progress=False,
            precision=precision,
            **settings,
        )
        for precision in (torch.bfloat16, None)
    )
    pairs = zip(fast.guide.parameters(), full.guide.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)
    assert fast.report["kl"] < fast.report["history"][0]["kl"]


class Plain(nn.Module):
    """A guide of one's own, without a trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> torch.distributions.Dirichlet:
        return torch.distributions.Dirichlet(nn.functional.softplus(self.layer(x)) + 0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": torch.float16}, "`precision` must be torch.bfloat16 or None; got torch.flo"),
        ({"precision": "bfloat16"}, "`precision` must be torch.bfloat16 or None; got 'bfloat16'"),
        (
            {"precision": torch.bfloat16, "guide": Plain()},
            "`precision` needs a guide with a module `trunk` to run in it; Plain has none",
        ),
    ],
)
def test_other_precisions_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quick(**changes)


def test_a_guide_without_a_trunk_needs_no_precision() -> None:
    assert checked_precision(None, Plain()) is None
    with in_precision(Plain(), None):
        pass


@pytest.mark.gpu
def test_half_precision_on_the_gpu() -> None:
    trunk = Watched()
    guide = PredictiveGuide(trunk, 6, 3)
    fast = quick(guide=guide, device="cuda", precision=torch.bfloat16, loss="moments")
    assert torch.bfloat16 in trunk.seen
    assert fast.report["energy_distance"] < fast.report["history"][0]["energy_distance"]
