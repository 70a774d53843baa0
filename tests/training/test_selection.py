"""The iterate that a distillation keeps, and refinements that it leaves out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from quick_distill import NAMES, C, inputs, quick, teacher
from torch import Tensor, nn

from pyro_opu import EnergyDistance, Objective
from pyro_opu.objectives.cross_entropy import cross_entropy
from pyro_opu.training.fit import KeepBest, kept_record
from pyro_opu.training.held_out import keep_apart
from pyro_opu.training.train import _kept
from pyro_opu.transfer import TransferPolicy

pytestmark = pytest.mark.usefixtures("coarse")


@pytest.mark.parametrize("loss", NAMES)
def test_the_best_iterate_is_kept(loss: str) -> None:
    fast = quick(loss=loss, learning_rate=0.03)
    scores = [record["energy_distance"] for record in fast.report["history"]]
    assert fast.report["energy_distance"] == min(scores)


def test_of_weights_that_are_level_while_the_rate_falls_the_last_are_kept() -> None:
    guide = nn.Linear(1, 1, bias=False)
    found: dict[str, float] = {}
    selection = KeepBest(guide, lambda _: found, averaging=0.0, chance=0.1)

    def kept_after(distance: float, draws: float) -> float:
        """The number of the evaluation whose weights are kept."""
        number = float(len(selection.history))
        nn.init.constant_(guide.weight, number)
        selection.update(int(number) + 1, {})
        found.update(energy_distance=distance, draws=draws)
        selection.evaluate("warm start", int(number), {})
        assert selection.best is not None
        return float(selection.best["weight"])

    assert [kept_after(d, 1e4) for d in (0.5, 0.51, 0.4, 0.45)] == [0, 0, 2, 2]
    selection.settling = (4, 9)
    # Level; too far; not near; level with the best, which was 0.4.
    settled = [(0.45, 3e3), (0.51, 3e3), (0.45, 1e3), (0.49, 1e4)]
    assert [kept_after(*each) for each in settled] == [4, 4, 4, 7]
    assert selection.score == 0.4
    assert [i for i, record in enumerate(selection.history) if record["kept"]] == [0, 2, 4, 7]
    assert kept_record(selection.history) == selection.history[7]
    assert selection.shown == "mean as of over 10,000 draws"
    selection.restore()
    assert float(guide.weight) == 7 and selection.settling is None


def evaluation(phase: str, energy_distance: float, kept: bool) -> dict[str, Any]:
    return {"phase": phase, "step": 1, "energy_distance": energy_distance, "kept": kept}


def test_the_report_says_which_weights_were_kept_though_earlier_ones_were_level() -> None:
    start = evaluation("start", 0.1, True)
    history = [start, evaluation("warm start", 0.3, False), evaluation("warm start", 0.11, True)]
    said = "warm start kept: held-out energy distance 0.10000 -> 0.11000"
    assert _kept(history, 1, 0.0) == said
    history += [evaluation("objective", 0.12, False), evaluation("objective", 0.2, False)]
    said = "refinement not kept, no better than what it started from: held-out energy distance "
    assert _kept(history, 2, 0.0) == said + "0.11000 -> 0.12000"
    said = "refinement left out, as the warm start is nearer to the posterior than its draws are: "
    assert _kept(history[:3], 2, 0.2) == said + "held-out energy distance 0.11000, theirs 0.20000"
    alone = [start, evaluation("objective", 0.2, False)]
    assert _kept(alone, 1, 0.0).startswith("objective not kept")


class Boastful(Objective):
    """Names its parts as the record of an evaluation names its numbers."""

    def parts(self, student: Any, draws: Tensor, x: Tensor) -> dict[str, Tensor]:
        loss = cross_entropy(student, draws)
        return {"energy_distance": loss - 1000, "kl": loss - 1000, "step": loss - 1000}


def test_names_of_parts_do_not_replace_what_is_measured() -> None:
    fast = quick(loss=Boastful())
    for record in fast.report["history"]:
        assert record["energy_distance"] > -1 and record["kl"] > -1 and record["step"] >= 0
    assert fast.report["energy_distance"] == min(
        record["energy_distance"] for record in fast.report["history"]
    )


class Harmful(EnergyDistance):
    """Steps so large that it only destroys."""

    learning_rate = 10.0


def test_a_refinement_that_harms_is_dropped() -> None:
    fast = quick(loss=Harmful(8), num_steps=60, evaluate_every=2)
    history = fast.report["history"]
    warm = [r["energy_distance"] for r in history if r["phase"] == "warm start"]
    refined = [r["energy_distance"] for r in history if r["phase"] == "objective"]
    assert min(refined) > min(warm) == fast.report["energy_distance"]
    assert "not kept" in fast.report["kept"]


def test_a_warm_start_nearer_than_the_draws_is_not_refined(monkeypatch) -> None:
    monkeypatch.setattr("pyro_opu.training.tuned.LABEL_DRAWS", 50)
    # Easy to learn to within what 50 draws leave: one Dirichlet, the same for all inputs.
    posterior = torch.distributions.Dirichlet(torch.ones(C))
    changes: dict[str, Any] = {"num_draws": 50, "num_steps": 300, "batch_size": 64}
    changes |= {"loss": "energy", "evaluate_every": 50}

    def constant(x: Tensor, num_draws: int) -> Tensor:
        return posterior.sample((num_draws, 1)).expand(-1, len(x), -1)

    report = quick(constant, **changes).report
    assert {record["phase"] for record in report["history"]} == {"start", "warm start"}
    assert report["kept"].startswith("refinement left out")
    leave = float(report["kept"].split("theirs ")[1])
    # E||pi - pi'||_1 of a uniform simplex is 3 E|a - b|, a and b being Beta(1, 2): 0.8. Monte Carlo
    # of the spread of a few times 50 draws.
    assert report["energy_distance"] <= leave == pytest.approx(0.8 / 50, rel=0.2)
    # Far from it there is something to refine, and without a warm start all is to be done.
    few = {**changes, "num_steps": 4}
    assert "left out" not in quick(constant, **few).report["kept"]
    assert "left out" not in quick(constant, **few, warm_start=False).report["kept"]


def test_a_student_of_all_held_draws_is_refined() -> None:
    """It has learnt the draws that judge it, and it can always be nearer to them."""
    held = torch.distributions.Dirichlet(torch.ones(C)).sample((50,))
    changes: dict[str, Any] = {"num_draws": 50, "num_steps": 150, "evaluate_every": 50}
    fast = quick(lambda x: held[:, None].expand(-1, len(x), -1), loss="energy", **changes)
    assert "left out" not in fast.report["kept"]


def test_the_student_never_sees_what_it_is_judged_by() -> None:
    seen = []

    class Recording(TransferPolicy):
        def fit(self, x: Tensor) -> Recording:
            seen.append(x)
            return super().fit(x)

        def _draw(self, n: int) -> Tensor:
            return self._rows(n)

    x, judged = inputs(), []

    def watching(points: Tensor, num_draws: int) -> Tensor:
        if not seen:  # before the policy is fitted to the inputs that teach
            judged.append(points)
        return teacher()(points, num_draws)

    quick(watching, x, transfer=Recording())
    taught = {tuple(row) for row in seen[0].tolist()}
    # Of 200 rows 20 are kept for the bound. 15 % of the others are held out, and asked about in 14
    # blocks of two.
    held_out = {tuple(row) for points in judged[-14:] for row in points.tolist()}
    assert len(held_out) == 27
    assert not taught & held_out
    others = {tuple(row) for row in keep_apart(x)[1].tolist()}
    assert taught | held_out == others and len(others) == 180


@pytest.mark.parametrize(
    ("guide", "loss"), [("dirichlet", "MomentMatching"), ("mixture", "LikelihoodFirst")]
)
def test_the_default_is_the_closed_form_of_the_guide_for_all_steps(guide: str, loss: str) -> None:
    report = quick(loss=None, guide=guide, num_steps=10).report
    assert report["loss"] == loss
    assert [record["phase"] for record in report["history"]] == ["start"] + 2 * ["warm start"]
    assert [record["step"] for record in report["history"]] == [0, 5, 10]
