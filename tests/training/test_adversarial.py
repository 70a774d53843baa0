"""Adversarial losses from a cold start: shared batches, rates, pools, and what the report says."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from flat import distill_flat
from quick_distill import C, inputs, quick, quick_wasserstein, teacher, truth
from torch import Tensor

from pyro_opu import MomentMatching, WassersteinELBO
from pyro_opu.distributions import NormalSticks
from pyro_opu.guides import PredictiveGuide
from pyro_opu.judging import ClassJudge
from pyro_opu.judging.laws import law_of_draws
from pyro_opu.objectives.base import Meeting
from pyro_opu.predictive.distillation_report import DistillationReport, FidelityWarning, collapsed
from pyro_opu.training import descent, phases
from pyro_opu.training.batches import Batches, Pool, labelled
from pyro_opu.training.phases import Game
from pyro_opu.training.plan import Plan
from pyro_opu.transfer import HeldOut

pytestmark = pytest.mark.usefixtures("coarse")

PAPER = {"likelihood": 0.0, "residual": False, "two_sided": True}


class Numbered:
    """An adversarial loss that notes the batches of its two sides."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.seen: list[tuple[str, int]] = []

    def meet(self, rows: Tensor | None = None) -> Meeting:
        self.made.append(len(self.made))
        x = torch.tensor([self.made[-1]])
        return Meeting(x, x, None, x)

    def critic_loss(self, meeting: Meeting) -> dict[str, Tensor]:
        self.seen.append(("critic", int(meeting.x)))
        return {}

    def parts_of(self, meeting: Meeting) -> dict[str, Tensor]:
        self.seen.append(("student", int(meeting.x)))
        return {}


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_the_student_is_stepped_at_the_batch_of_the_critics_last_round(rounds: int) -> None:
    objective: Any = Numbered()
    game = Game(objective, objective.meet)
    for _ in range(2):
        for _ in range(rounds):
            game.critic_losses()
        game.student_losses()
    each = max(1, rounds)
    assert len(objective.made) == 2 * each
    mine = [number for side, number in objective.seen if side == "student"]
    assert mine == [each - 1, 2 * each - 1]


def test_batches_of_so_many_steps() -> None:
    objective = WassersteinELBO(critic_warmup=7, critic_steps=2)
    assert [objective.batches(steps) for steps in (0, 1, 2, 5)] == [0, 7, 9, 15]
    assert MomentMatching().batches(5) == 5


def test_a_pool_of_draws_goes_on_where_the_critic_was() -> None:
    from test_batches import batches

    draws = truth(inputs(1)).sample((5,))
    objective = WassersteinELBO(critic_warmup=4, critic_steps=2)
    fed = batches(draws, 64, 5, 64)
    pool, resumed = labelled(fed, objective), labelled(fed, objective, steps=2)
    for each in (pool, resumed):
        each.x = torch.arange(64.0)[:, None]
    for _ in range(6):
        pool.batch(8)
    assert torch.equal(pool.batch(8)[0], resumed.batch(8)[0])
    assert pool.statistics["draws"].shape == (64, 5, C)


class Graph:
    """A stand-in that runs what was recorded, on a machine without a GPU."""

    def __init__(self, run: Any, into: dict[str, Tensor]) -> None:
        self.run, self.into = run, into

    def replay(self) -> None:
        for name, value in self.run().items():
            self.into[name].copy_(value)


@pytest.mark.parametrize("settings", [PAPER, {}], ids=["the paper's own", "bound"])
def test_recorded_steps_are_those_of_two_descents(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for the CUDA graph, which holds a whole step of critic and student."""
    graphs = []

    def record(run: Any, *_: object, **__: object) -> tuple[Graph, Any]:
        optimizers = run.__self__._stepped
        params = [p for each in optimizers for g in each.param_groups for p in g["params"]]
        assert all(group["capturable"] for each in optimizers for group in each.param_groups)
        for group in (group for each in optimizers for group in each.param_groups):
            group["capturable"] = False  # a processor has no such steps
        before = [p.detach().clone() for p in params]
        states = [copy.deepcopy(each.state_dict()) for each in optimizers]
        random = torch.get_rng_state()
        into = run()  # on a GPU nothing is done while it is recorded
        torch.set_rng_state(random)
        for p, value in zip(params, before, strict=True):
            p.data.copy_(value)
        for each, state in zip(optimizers, states, strict=True):
            each.load_state_dict(state)
        graphs.append(Graph(run, into))
        return graphs[-1], into

    class Stream:
        def wait_stream(self, other: object) -> None: ...

    monkeypatch.setattr(descent, "record", record)
    for name, stand_in in (("Stream", Stream), ("current_stream", Stream)):
        monkeypatch.setattr(torch.cuda, name, stand_in)
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    # Not fused: that takes no learning rate in a tensor on a processor.
    plain = torch.optim.Adam
    monkeypatch.setattr(
        torch.optim, "Adam", lambda *given, fused, **more: plain(*given, foreach=False, **more)
    )

    def weights(recorded: bool) -> list[Tensor]:
        monkeypatch.setattr(phases, "_recordable", lambda *_: recorded)
        torch.manual_seed(0)
        x = inputs(64)
        objective = WassersteinELBO(**settings, critic_warmup=4, critic_steps=2, num_samples=8)
        objective.prepare(x, C)
        guide = PredictiveGuide.for_inputs(x, C, hidden=(6,))
        pool = Pool(x, {"draws": truth(x).sample((8,)).movedim(0, 1)})
        feed = Batches(teacher(), HeldOut().fit(x), Plan(0, 9, 16, 8, 8, 1e-3, 5), x.device)
        phase = phases.distillation_phase(
            "objective", objective, guide, feed, steps=9, rate=1e-2, num_draws=8, pool=pool
        )
        torch.manual_seed(1)
        for number in range(9):
            parts = phase.step(number)
        assert "critic gain" in parts and "wasserstein" in parts
        return [p.detach().clone() for p in (*guide.parameters(), *objective.parameters())]

    for one, two in zip(weights(True), weights(False), strict=True):
        # Adam makes a whole step of a gradient that is rounding: few of the weights differ at all,
        # where one step more would be 4e-3.
        assert (one - two).abs().mean() < 1e-5
    assert len(graphs) == 1


# From a cold start ---------------------------------------------------------------------------


def two_classes(x: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(3, generator=generator) + 0.5 * torch.randn(60, 3, generator=generator)
    second = torch.sigmoid(x @ weights.T).T
    return torch.stack([1 - second, second], -1)


@pytest.mark.parametrize("settings", [PAPER, {}], ids=["the paper's own", "bound"])
def test_from_a_cold_start_a_student_learns(settings: dict[str, Any]) -> None:
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(1))
    loss = WassersteinELBO(**settings, critic_warmup=30)
    fast = distill_flat(
        two_classes, x, loss=loss, warm_start=False, num_steps=60, seed=0, progress=False
    )
    report = fast.report
    share = report["mutual_information"] / report["mutual_information_teacher"]
    assert 0.65 < share < 1.5 and not collapsed(report)  # after so few steps
    # A fifth of the KL of one answer for all inputs; it begins at that.
    assert report["kl"] < report["kl_trivial"] / 5
    critic = report["critic"]
    assert critic.keys() == {"negative_gain", "slope", "steep", "value", "exact"}
    assert 0 <= critic["value"] <= critic["exact"] + 1e-6
    assert 0 <= critic["negative_gain"] <= 1 and 0.05 < critic["slope"] < 2
    assert "critic    proves W1" in str(report) and "of exactly" in str(report)


def test_other_losses_have_no_critic() -> None:
    assert "critic" not in quick(loss="energy").report
    assert "exact" not in quick(loss=quick_wasserstein()).report["critic"]  # of three classes


@pytest.mark.parametrize(
    ("mine", "says"), [(0.04, True), (0.06, False), (0.19, False), (0.21, True)]
)
def test_a_collapsed_run_says_so(mine: float, says: bool) -> None:
    from pyro_opu.predictive.distillation_report import warn_of_worthless

    numbers = dict.fromkeys(("kl_attainable", "kl_trivial", "kl_ratio", "draws"), 1.0)
    critic = {"negative_gain": 0.25, "slope": 0.9, "steep": 0.1, "value": 0.02}
    report = DistillationReport(
        **numbers, critic=critic, mutual_information=mine, mutual_information_teacher=0.1
    )
    assert collapsed(report) == ("collapsed run" in str(report)) == says
    assert "on the wrong side at 25 % of inputs" in str(report)
    if says:
        with pytest.warns(FidelityWarning, match="has collapsed: the student's mutual information"):
            warn_of_worthless(report)
    else:
        warn_of_worthless(report)
    del report["critic"]
    assert not collapsed(report)


@pytest.mark.parametrize(("law", "expected"), [("sticks", "sticks"), ("dirichlet", "dirichlet")])
def test_a_critic_teaches_the_law_of_the_draws(law: str, expected: str) -> None:
    dirichlet = truth(inputs(100), 8.0)
    answer: Any = dirichlet
    if law == "sticks":
        answer = NormalSticks(dirichlet.log_mean, torch.full((100,), math.log(3.0)))
    torch.manual_seed(0)
    assert law_of_draws(ClassJudge(inputs(100), answer.sample((1000,)), None)) == expected
