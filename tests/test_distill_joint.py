"""Students whose draws are joint over inputs: each draw is the teacher's, one function of x."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from flat import distill_flat
from input_forms import GROUP, NUMBERS, TwoInputs
from pyro.infer import Predictive
from quick_distill import quick_wasserstein
from torch import Tensor, nn

from pyro_opu import (
    OnePassPredictive,
    Teacher,
    as_teacher,
    distill,
)
from pyro_opu.guides import PredictiveGuide
from pyro_opu.guides.joint import DrawHeads, JointGuide, inputs_of_heads
from pyro_opu.objectives.joint import JointWitness
from pyro_opu.predictive.distillation_report import DistillationReport
from pyro_opu.teachers.held import hold
from pyro_opu.training import joint as taught
from pyro_opu.training import tuned

pytestmark = pytest.mark.usefixtures("brief")

S, N = 60, 120
STEPS = 200  # of a network
QUICK: dict[str, Any] = {"guide": "joint", "num_steps": 200, "batch_size": 128, "seed": 0}
QUICK["progress"] = False
torch.manual_seed(0)
X, NEW = torch.randn(N, 4), torch.randn(30, 4)
W, B = torch.randn(S, 3, 4), torch.randn(S, 3)


def logistic(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3, 4), 1.0).to_event(2))
    b = pyro.sample("b", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    probs = pyro.deterministic("probs", (x @ w.mT + b).softmax(-1))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Categorical(probs), obs=y)


SOURCE = Predictive(logistic, {"w": W, "b": B}, return_sites=("obs", "probs"))
EXACT = (torch.einsum("nd,scd->snc", NEW, W) + B[:, None]).softmax(-1)


@pytest.fixture(scope="module")
def fast() -> OnePassPredictive:
    return distill_flat(SOURCE, X, **QUICK)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    """A network with dropout whose draws are linear in nothing."""
    torch.manual_seed(1)
    hidden = nn.Linear(4, 20), nn.ReLU(), nn.Dropout()
    net = nn.Sequential(nn.Dropout(0.1), *hidden, nn.Linear(20, 3))
    with torch.no_grad():
        net[1].weight.mul_(2)
        net[4].weight.mul_(4)
    return net


@pytest.fixture(scope="module")
def bent(network: nn.Module) -> OnePassPredictive:
    return distill_flat(network, X, **{**QUICK, "num_steps": STEPS}, num_samples=100)


def test_draws_of_a_linear_posterior_are_the_teachers(fast: OnePassPredictive) -> None:
    assert fast.joint
    assert fast.report["joint"]["linear"]
    # Least squares in float64, weights and products in float32.
    torch.testing.assert_close(fast.probs(NEW), EXACT, rtol=0, atol=1e-5)


def test_a_student_is_a_teacher(fast: OnePassPredictive) -> None:
    assert isinstance(fast, Teacher)
    torch.testing.assert_close(fast.log_probs(NEW).exp(), fast.probs(NEW))
    assert torch.equal(fast.draws(NEW), fast.probs(NEW))
    again = distill(fast, X, num_steps=20, seed=0, progress=False)
    assert (fast.max_draws, again.max_draws) == (S, None)
    assert again.num_samples == S
    assert not again.joint


def test_a_draw_is_the_same_function_in_every_call(fast: OnePassPredictive) -> None:
    whole = fast.probs(NEW, 7, seed=3)
    parts = torch.cat([fast.probs(part, 7, seed=3) for part in NEW.split(11)], 1)
    torch.testing.assert_close(parts, whole)
    # Seven of the draws held, each once.
    distances = (whole[:, None] - EXACT).abs().amax((-1, -2))
    found = [int(each) for each in (distances < 1e-4).nonzero()[:, 1]]
    assert len(set(found)) == 7
    assert not torch.equal(fast.probs(NEW, 7, seed=4), whole)


def test_the_marginal_answer_is_that_of_the_default(fast: OnePassPredictive) -> None:
    default = distill_flat(SOURCE, X, **{**QUICK, "guide": None})
    assert isinstance(fast.guide, JointGuide)
    mine, theirs = fast.guide.marginal.state_dict(), default.guide.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert torch.equal(fast.dirichlet(NEW).mean, default.dirichlet(NEW).mean)


def test_a_witness_of_groups_is_learned_beside_that_of_the_marginal(
    network: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, method = [], JointWitness.loss

    def counted(*args: Any) -> Tensor:
        rounds.append(len(args))
        return method(*args)

    monkeypatch.setattr(JointWitness, "loss", counted)
    monkeypatch.setattr(tuned, "WITNESS_WARM", 3)
    monkeypatch.setattr(taught, "_apart", lambda *args: 1.0)  # so that waves are always tried
    options: dict[str, Any] = {"num_steps": 12, "seed": 0, "progress": False}
    fast = distill_flat(
        network, X, guide="joint", num_samples=20, loss=quick_wasserstein(), **options
    )
    assert len(rounds) == 3 + 2 + 2  # before each of a quarter of the steps
    assert fast.joint and fast.report["loss"] == "WassersteinELBO"
    assert fast.report["joint"]["spread"] > 0
    draws = fast.probs(NEW, 20, seed=1)
    torch.testing.assert_close(draws.sum(-1), torch.ones(20, len(NEW)))
    both = torch.cat([fast.probs(part, 20, seed=1) for part in NEW.split(11)], 1)
    torch.testing.assert_close(both, draws)  # a draw is one function of x
    plain = distill_flat(network, X, loss=quick_wasserstein(), **options)
    assert len(rounds) == 7
    assert torch.equal(fast.dirichlet(NEW).mean, plain.dirichlet(NEW).mean)


def test_a_call_draws_labels_jointly(fast: OnePassPredictive) -> None:
    row = NEW[:1].repeat(2, 1)
    fast.num_samples = 200 * S  # functions in turn, labels anew
    torch.manual_seed(0)
    drawn = fast(row)
    labels = drawn["obs"]
    fast.num_samples = S
    exact = EXACT[:, 0]
    expected = float(exact.square().sum(-1).mean())  # of one function, averaged over functions
    apart = float(exact.mean(0).square().sum())  # what independent rows would give
    alike = float((labels[:, 0] == labels[:, 1]).float().mean())
    assert expected - apart > 0.1
    assert alike == pytest.approx(expected, abs=4 * (0.25 / len(labels)) ** 0.5)
    torch.testing.assert_close(drawn["probs"][:S].reshape(S, 2, 3)[:, 0], exact, rtol=0, atol=1e-5)


def test_draws_of_a_network_are_near_its_own(bent: OnePassPredictive, network: nn.Module) -> None:
    found = bent.report["joint"]
    assert not found["linear"]
    assert found["kl"] < 0.1 * found["kl_between"]
    assert found["spread"] == pytest.approx(1, abs=0.1)  # 0.94 to 0.98 in other seeds
    assert "100 draws" in str(bent.report)
    # Another 2,000 draws of the same posterior: a variance of 100 draws is off by 14 per cent (one
    # deviation), that of independent rows by a factor of 4 and more.
    totals = [
        each.sum(1)[:, 0].var() for each in (bent.probs(NEW), as_teacher(network).probs(NEW, 2000))
    ]
    independent = bent.dirichlet(NEW).variance[:, 0].sum()
    assert totals[0] == pytest.approx(float(totals[1]), rel=0.5)
    assert independent < 0.3 * totals[1]


def test_dropout_before_the_head_is_linear_in_its_features(network: nn.Module) -> None:
    net = network[1:]
    found = distill_flat(net, X, **QUICK, num_samples=100)
    assert found.report["joint"]["linear"]
    phi = torch.relu(net[0](NEW)).detach()
    logits = found.probs(NEW).log()
    logits = logits - logits.mean(-1, keepdim=True)
    added = logits - logits.mean(0)  # by masks of features: exactly of their span
    span = torch.linalg.lstsq(phi, added.movedim(0, 1).flatten(1)).solution
    torch.testing.assert_close(phi @ span, added.movedim(0, 1).flatten(1), rtol=0, atol=1e-2)


def test_a_real_y_whose_mean_is_linear() -> None:
    weights = torch.randn(S, 4)
    scale = torch.full((S, 1), 0.3)
    fast = distill_flat(lambda x: (weights @ x.mT, scale), X, **QUICK)
    assert fast.outcome.kind == "real"
    draws = fast.draws(NEW)
    torch.testing.assert_close(draws[..., 0], weights @ NEW.mT, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(draws[..., 1].exp(), scale.expand(S, len(NEW)))
    fast.num_samples = 200 * S
    total = fast(NEW)["obs"].sum(1)
    exact = float((weights @ NEW.mT).sum(1).var(correction=0)) + len(NEW) * 0.09
    # Of 12,000 draws; the noise's part alone is what independent draws share of it.
    assert float(total.var()) == pytest.approx(exact, rel=0.1)
    with pytest.raises(TypeError, match="student of class labels"):
        fast.probs(NEW)


@pytest.mark.slow
def test_a_real_y_of_a_network() -> None:
    first, last = torch.randn(S, 4, 6), torch.randn(S, 6)

    def teacher(x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(torch.einsum("nd,sdk->snk", x, first))
        return torch.einsum("snk,sk->sn", hidden, last), torch.full((S, len(x)), 0.2)

    fast = distill_flat(teacher, X, **{**QUICK, "num_steps": 3 * STEPS})
    found = fast.report["joint"]
    assert not found["linear"]
    assert found["kl"] < 0.1 * found["kl_between"]
    error = (fast.draws(NEW)[..., 0] - teacher(NEW)[0]).square().mean()
    assert error < 0.1 * teacher(NEW)[0].var(0).mean()


def test_files_and_fused_students(
    fast: OnePassPredictive,
    bent: OnePassPredictive,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waved = copy.deepcopy(bent)
    waved.guide.heads = bent.guide.heads.with_waves()  # type: ignore[union-attr, operator]
    for student in (fast, bent, waved):
        student.save(tmp_path / "student.safetensors")
        loaded = OnePassPredictive.load(tmp_path / "student.safetensors")
        assert loaded.joint
        assert torch.equal(loaded.probs(NEW), student.probs(NEW))
        merged = student.fuse()
        assert merged.joint
        torch.testing.assert_close(merged.probs(NEW), student.probs(NEW), rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(torch, "compile", lambda run, **options: run)
    captured = bent.capture(NEW)
    torch.testing.assert_close(captured(NEW).mean, bent.dirichlet(NEW).mean)


@pytest.mark.slow
def test_an_exported_student_has_the_marginal_answer(
    fast: OnePassPredictive, tmp_path: Path
) -> None:
    fast.export(tmp_path / "student.pt2", outputs=["mean"])
    program = torch.export.load(tmp_path / "student.pt2").module()
    torch.testing.assert_close(program(NEW)["mean"], fast.dirichlet(NEW).mean)


def test_several_inputs_and_indices() -> None:
    fast = distill_flat(
        TwoInputs(), {"x": NUMBERS, "group": GROUP}, **{**QUICK, "num_steps": 20}, num_samples=40
    )
    rows = {"x": NUMBERS[:7], "group": GROUP[:7]}
    draws = fast.probs(rows)
    assert draws.shape == (40, 7, 2)
    assert fast(**rows)["obs"].shape == (40, 7)


@pytest.mark.slow
def test_a_run_that_is_done_gives_the_same_student(tmp_path: Path, network: nn.Module) -> None:
    path = tmp_path / "run"
    options = {**QUICK, "num_steps": 20, "num_samples": 20, "checkpoint": path}
    first, again = (distill_flat(network, X, **options).probs(NEW) for _ in range(2))
    assert torch.equal(first, again)


def test_the_report_without_joint_draws_has_no_line() -> None:
    plain = DistillationReport(draws=310.0, kl_ratio=3.2, kl_attainable=0.001)
    assert "joint" not in str(plain)


def test_the_report_says_whose_functions_the_draws_are() -> None:
    found = {"num_draws": 60, "kl": 0.012, "kl_between": 0.3, "spread": 0.98}
    plain = DistillationReport(draws=310.0, kl_ratio=3.2, kl_attainable=0.001)
    own = str(DistillationReport(**plain, joint={**found, "waves": False}))
    assert "60 draws, 0.012 from the teacher's, which are 0.3 apart; 0.98 x their spread" in own
    law = str(DistillationReport(**plain, joint={**found, "waves": True}))
    assert "60 draws, functions of the teacher's joint distribution" in law
    assert "0.98 x their spread" in law


def test_held_draws_of_a_real_y_are_the_same_twice() -> None:
    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(4), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 0.5))

    weights = torch.randn(S, 4)
    held = hold(as_teacher(Predictive(model, {"w": weights})), X, 5)
    found = held.draws(NEW)
    assert torch.equal(found, held.draws(NEW))
    assert found.shape == (5, len(NEW), 2)
    distances = ((weights @ NEW.mT) - found[:, None, :, 0]).abs().amax(-1)
    assert int((distances < 1e-4).sum()) == 5


@pytest.mark.parametrize(("columns", "plain"), [(20, True), (100, True), (784, False)])
def test_heads_read_short_inputs_beside_the_features(columns: int, plain: bool) -> None:
    x = torch.randn(5, columns)
    guide = PredictiveGuide.for_inputs(x, 3, hidden=(8,))
    assert inputs_of_heads(guide, x, linear=False).shape == (5, 8 + columns * plain)


def test_layers_below_the_heads_stay_small_where_they_read_many_features() -> None:
    few, many, most = (DrawHeads(size, 2, 3) for size in (60, 250, 600))
    sizes = [sum(p.numel() for p in each.layers.parameters()) for each in (few, many, most)]
    assert sizes[0] > 60 * 100 and sizes[2] < 1.2 * sizes[1]
    assert all(32 <= each.weight.shape[-1] <= 128 for each in (few, many, most))
