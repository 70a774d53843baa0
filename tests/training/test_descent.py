"""Recorded steps without a GPU: stand-ins for the graph, which runs what was recorded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pyro_opu
from pyro_opu.guides import PredictiveGuide
from pyro_opu.objectives import MomentMatching
from pyro_opu.training import descent as module
from pyro_opu.training.batches import Pool
from pyro_opu.training.descent import Descent, RecordedDescent, cosine
from pyro_opu.training.tuned import EAGER

D, C, P, B, STEPS = 4, 3, 64, 8, 12


class Graph:
    """Runs the recorded steps; a real one keeps no tensor, but launches the same kernels."""

    def __init__(self, run: Callable[[], Any], into: dict[str, Tensor]) -> None:
        self.run, self.into, self.replays = run, into, 0

    def replay(self) -> None:
        self.replays += 1
        for name, value in self.run().items():
            self.into[name].copy_(value)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The graphs that are recorded, by stand-ins for ``torch.cuda``."""
    found: list[Graph] = []

    class Stream:
        def wait_stream(self, other: object) -> None: ...

    def record(
        run: Any, scratch: Tensor, *, warm: int, aside: object, mode: str
    ) -> tuple[Graph, Any]:
        assert not warm and isinstance(aside, Stream) and mode == "thread_local"
        stepped = [p for group in adam_of(run).param_groups for p in group["params"]]
        assert all(group["capturable"] for group in adam_of(run).param_groups)
        for group in adam_of(run).param_groups:
            group["capturable"] = False  # a processor has no such steps
        before = [p.detach().clone() for p in stepped], copy.deepcopy(adam_of(run).state_dict())
        into = run()  # on a GPU nothing is done while it is recorded
        for p, value in zip(stepped, before[0], strict=True):
            p.data.copy_(value)
        adam_of(run).load_state_dict(before[1])
        found.append(Graph(run, into))
        return found[-1], into

    monkeypatch.setattr(module, "record", record)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    return found


def adam_of(run: Any) -> torch.optim.Optimizer:
    return run.__self__.optimizer


def pool() -> Pool:
    torch.manual_seed(0)
    draws = torch.distributions.Dirichlet(torch.rand(P, C) + 0.5).sample((50,))
    return Pool(torch.randn(P, D), MomentMatching().statistics(draws))


def guide() -> PredictiveGuide:
    torch.manual_seed(1)
    return PredictiveGuide.for_inputs(torch.randn(P, D), C, hidden=(16,)).double()


def steps_of(student: nn.Module, *, recorded: bool) -> tuple[list[dict[str, float]], Any]:
    labels, objective = pool(), MomentMatching()
    labels.x = labels.x.double()
    # Not fused: that takes no learning rate in a tensor on a processor.
    adam = torch.optim.Adam(student.parameters(), lr=0.01, foreach=False)

    def losses(rows: Tensor) -> dict[str, Tensor]:
        x, statistics = labels.at(rows)
        return objective.parts_at(student(x), statistics, x)

    if recorded:
        steps: Any = RecordedDescent(losses, lambda: labels.rows(B), adam, cosine(0.01, STEPS))
    else:
        both = lambda: (losses(labels.rows(B)), None)  # noqa: E731
        steps = Descent(both, adam, cosine(0.01, STEPS))
    return [{k: float(v) for k, v in steps.step(n).items()} for n in range(STEPS)], steps


class TestRecordedDescent:
    def test_steps_are_those_of_a_descent(self, graphs: list[Graph]) -> None:
        one, two = guide(), guide()
        plain, _ = steps_of(one, recorded=False)
        found, steps = steps_of(two, recorded=True)
        assert graphs[0].replays == STEPS - EAGER
        assert found == [pytest.approx(each, rel=1e-6) for each in plain]  # the rate is float32
        for a, b in zip(one.parameters(), two.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
        assert not any(group["capturable"] for group in steps.optimizer.param_groups)

    def test_what_waits_for_the_host_is_stepped_as_before(
        self, graphs: list[Graph], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def record(*args: object, **options: object) -> None:
            tried.append(True)
            raise RuntimeError("operation not permitted when stream is capturing")

        tried: list[bool] = []
        monkeypatch.setattr(module, "record", record)
        one, two = guide(), guide()
        plain, _ = steps_of(one, recorded=False)
        found, _ = steps_of(two, recorded=True)
        assert tried == [True] and not graphs
        assert found == [pytest.approx(each, rel=1e-6) for each in plain]


@pytest.mark.parametrize("network", [False, True])
def test_a_default_step_waits_for_nothing(network: bool) -> None:
    """On the meta device no number can be asked for, as while a graph is recorded."""
    labels = pool()
    student = guide().float()
    if network:
        source = nn.Sequential(nn.Linear(D, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, C))
        options = {"num_steps": 1, "effort": "quick", "seed": 0, "progress": False}
        student = pyro_opu.distill(source, labels.x, **options).guide
        student.requires_grad_(True).train()
    student = copy.deepcopy(student).to("meta")
    labels.x, rows = labels.x.to("meta"), torch.arange(B, device="meta")
    labels.statistics = {name: value.to("meta") for name, value in labels.statistics.items()}
    x, statistics = labels.at(rows)
    parts = MomentMatching().parts_at(student(x), statistics, x)
    torch.stack(list(parts.values())).sum().backward()
    nn.utils.clip_grad_norm_(student.parameters(), 5.0)


@pytest.mark.gpu
def test_recorded_on_the_gpu() -> None:
    """Weights are those of steps taken one by one."""
    draws = pool()
    student, other = guide().float().cuda(), guide().float().cuda()

    def stepped(student: nn.Module, recorded: bool) -> list[float]:
        labels = Pool(draws.x.cuda(), {k: v.cuda() for k, v in draws.statistics.items()})
        adam = torch.optim.Adam(student.parameters(), lr=0.01, fused=True)

        def losses(rows: Tensor) -> dict[str, Tensor]:
            x, statistics = labels.at(rows)
            return MomentMatching().parts_at(student(x), statistics, x)

        steps = RecordedDescent(losses, lambda: labels.rows(B), adam, cosine(0.01, 200))
        steps._recordable = recorded
        found = [sum(map(float, steps.step(n).values())) for n in range(200)]
        assert (steps._graph is not None) == recorded
        return found

    assert stepped(student, True) == pytest.approx(stepped(other, False), rel=1e-4)
    for a, b in zip(student.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
