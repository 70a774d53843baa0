"""One look at a model: how often it is run, and what is known afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

from pyro_opu import as_teacher, distill, distillation
from pyro_opu.parts import Outcome
from pyro_opu.programs import written
from pyro_opu.programs.samples import Latents
from pyro_opu.teachers import finished, networks
from pyro_opu.teachers.finished import finished_teacher

D, C, S = 3, 2, 20
X = torch.randn(60, D, generator=torch.Generator().manual_seed(0))
#: Rows of every run of a model, in order.
RUNS: list[int] = []


def labels(x: Tensor, y: Tensor | None = None) -> None:
    RUNS.append(len(x))
    w = pyro.sample("w", dist.Normal(torch.zeros(D, C), 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Categorical(logits=x @ w), obs=y)


def values(x: Tensor, y: Tensor | None = None) -> None:
    RUNS.append(len(x))
    w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(x @ w, 1.0), obs=y)


def guided() -> Predictive:
    guide = AutoNormal(poutine.block(labels, hide=["obs"]))
    guide(X)
    return Predictive(labels, guide=guide, num_samples=S, return_sites=["obs"])


def fixed(x: Tensor) -> Tensor:
    RUNS.append(len(x))
    return (x @ torch.ones(D, C) * torch.arange(S)[:, None, None]).softmax(-1)


def fresh(x: Tensor, num_draws: int) -> Tensor:
    RUNS.append(len(x))
    return torch.randn(num_draws, len(x), C).softmax(-1)


def pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    RUNS.append(len(x))
    return x[:, 0] * torch.arange(S)[:, None], torch.ones(S, 1)


class Network(nn.Module):
    """One of an ensemble; the first tells of its runs, alone and together with the others."""

    def __init__(self, first: bool = True, hidden: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(D, hidden), nn.Dropout(), nn.Linear(hidden, C))
        self.first = first

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            RUNS.append(len(x))
        return self.layers(x).log_softmax(-1)  # known for two classes


SOURCES: dict[str, Any] = {
    "samples": lambda: Predictive(labels, {"w": torch.randn(S, D, C)}),
    "samples of a regression": lambda: Predictive(values, {"w": torch.randn(S, D)}),
    "guide": guided,
    "function": lambda: fixed,
    "function with fresh draws": lambda: fresh,
    "regression function": lambda: pairs,
    "dropout network": Network,
    "ensemble": lambda: [Network(k == 0) for k in range(S)],
    "ensemble of several architectures": lambda: [Network(k == 0, 8 + k % 2) for k in range(S)],
    "posteriors": lambda: [SOURCES["samples"](), Network(first=False)],
}


class ReachedError(Exception):
    """The first training step."""


@pytest.mark.parametrize("name", SOURCES)
def test_a_model_is_looked_at_in_few_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All other runs before the first step label the held-out inputs, each of them once.

    Beside those that look whether the teacher knows the rows, and says the same of each alone, and
    those by which a Pyro model is compared with itself as it is written, under two draws; of a
    member of a mixture twice, at two rows and at more; and those two that tell what many draws cost
    together.
    """

    def reached(*_: Any, **__: Any) -> None:
        raise ReachedError

    monkeypatch.setattr(distillation, "train", reached)
    monkeypatch.setattr(networks, "COMPARED", math.inf)
    monkeypatch.setattr(distillation, "check_own_rows", lambda *_: None)
    monkeypatch.setattr(finished, "check_alone", lambda *_: None)
    source = SOURCES[name]()
    RUNS.clear()
    with pytest.raises(ReachedError):
        distill(source, X, guide="network", seed=0, progress=False)
    held_out = round(0.15 * len(X))
    looks = RUNS[: len(RUNS) - _labelling(RUNS, held_out)]
    more, rows = 0, 3
    if name == "dropout network":  # also in training mode, and twice for two draws together
        more = 6
    elif name.startswith(("samples", "guide", "posteriors")):
        more, rows = 10 if name == "posteriors" else 6, written.ROWS
    assert len(looks) <= 5 + more
    assert max(looks) <= rows


def _labelling(runs: list[int], held_out: int) -> int:
    """How many of the last runs it took to label so many inputs."""
    count = rows = 0
    while rows < held_out:
        count += 1
        rows += runs[-count]
    assert rows == held_out
    return count


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_known_afterwards(name: str) -> None:
    teacher = finished_teacher(SOURCES[name](), X)
    RUNS.clear()
    real = "regression" in name
    assert teacher.outcome == (Outcome.of_real() if real else Outcome.of_classes(C))
    assert teacher.num_outputs == 2
    held = "samples" in name or "ensemble" in name or name.endswith("function")
    assert teacher.max_draws == (2 * S if name == "posteriors" else S if held else None)
    assert "unknown" not in repr(teacher) and "not counted" not in repr(teacher)
    if "network" in name or "ensemble" in name:  # dropout stands before the head
        assert teacher.operations(X) == 2 * 8 * ((D if "ensemble" in name else 0) + C)
    if name.startswith(("samples", "guide")):
        assert teacher.observed == ("obs",)
        assert teacher.operations(X) == 2 * D * (1 if real else C)
        assert [site.name for site in teacher.layouts(X)] == ["obs"]
    assert not RUNS


def test_a_teacher_is_looked_at_once() -> None:
    source = SOURCES["samples"]()
    teacher = finished_teacher(source, X)
    with torch.no_grad():
        expected = (X @ source.posterior_samples["w"]).softmax(-1)
    RUNS.clear()
    torch.testing.assert_close(teacher.draws(X), expected)
    assert RUNS == [len(X)]


@pytest.mark.parametrize("latent", [False, True])
def test_what_all_draws_share_is_computed_once_and_counts_once(latent: bool) -> None:
    """Features before a random head: fixed ones, or latents that are the same in every draw."""
    torch.manual_seed(0)
    trunk, head = torch.randn(D, 40), torch.randn(S, 40, C)
    prior = dist.Normal(torch.zeros(D, 40), 1.0).to_event(2)

    def model(x: Tensor, y: Tensor | None = None) -> None:
        features = (x @ (pyro.sample("v", prior) if latent else trunk)).tanh()
        w = pyro.sample("w", dist.Normal(torch.zeros(40, C), 1.0).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Categorical(logits=features @ w), obs=y)

    samples = {"w": head} | ({"v": trunk.expand(S, -1, -1)} if latent else {})
    teacher = finished_teacher(Predictive(model, samples), X)
    assert teacher.operations(X) == 2 * 40 * C  # for one draw more the head alone
    expected = ((X @ trunk).tanh() @ head).softmax(-1)
    torch.testing.assert_close(teacher.draws(X), expected)


def test_what_many_draws_share_is_seen_after_a_look_at_one_draw() -> None:
    """The features of wide rows are not computed anew for every draw."""
    wide, passes = nn.Linear(D, 2**15), []
    wide.register_forward_hook(lambda _, given, out: passes.append(len(given[0])))

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(8, C), 1.0).to_event(2))
        with pyro.plate("data", len(x)):
            features = wide(x).detach().unflatten(-1, (8, -1)).mean(-1)
            pyro.sample("obs", dist.Categorical(logits=features @ w), obs=y)

    teacher = as_teacher(Predictive(model, {"w": torch.randn(60, 8, C)}))
    x = torch.randn(80, D)
    for count in (1, 60):
        teacher.draws(x, count)
    passes.clear()
    teacher.draws(x, 60)
    assert len(passes) <= 6  # of two blocks of rows


@pytest.mark.parametrize("make", [as_teacher, lambda source: finished_teacher(source, X)])
@pytest.mark.parametrize("scale", [False, True])
def test_a_trunk_runs_once_for_many_draws(make: Callable[[Predictive], Any], scale: bool) -> None:
    """Also beside products that grow with the draws, as those of a kernel with a scale."""
    trunk = nn.Sequential(nn.Linear(D, 300), nn.ReLU(), nn.Linear(300, 20))
    runs: list[int] = []

    def model(x: Tensor, y: Tensor | None = None) -> None:
        runs.append(len(x))
        w = pyro.sample("w", dist.Normal(torch.zeros(20), 1.0).to_event(1))
        s = pyro.sample("s", dist.LogNormal(0.0, 1.0))
        features = trunk(x) * s if scale else trunk(x)
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Bernoulli(logits=features @ w), obs=y)

    samples = {"w": torch.randn(500, 20), "s": torch.ones(500).index_fill(0, torch.tensor(3), 2.0)}
    x = torch.randn(1000, D)
    teacher = make(Predictive(model, samples))
    found = teacher.probs(x)[..., 1]
    with torch.no_grad():
        by_hand = torch.sigmoid(trunk(x) @ (samples["w"] * samples["s"][:, None] ** scale).T).T
    torch.testing.assert_close(found, by_hand, rtol=1e-4, atol=1e-5)  # rounding of the products
    runs.clear()
    teacher.probs(x)
    assert sum(runs) <= (20 if scale else 1) * len(x)  # 2 ** 21 numbers a block, 20 for a draw


def test_draws_are_shared_where_all_are_alike() -> None:
    same, last = torch.ones(4, 2), torch.ones(4, 2)
    last[3, 1] = 2.0
    latents = Latents({"same": same, "last": last, "other": torch.arange(4.0)}, 4)
    varying, shared = latents.divided()
    assert sorted(varying) == ["", "last", "other"] and sorted(shared) == ["same"]
    assert torch.equal(shared["same"], torch.ones(2))
    assert sorted(latents[:1].divided()[0]) == ["", "last", "other", "same"]
