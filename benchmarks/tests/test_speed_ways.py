"""Every way to an answer that is timed gives the same answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pyro_opu
from benchmarks import (
    speed,
    speed_ways,
)
from benchmarks.speed_models import ALIKE, SUBJECTS, Kit, lined_up, student_name
from benchmarks.speed_parallel import checks, logits
from benchmarks.speed_peers import JittedPredictive, absent, laplace_ways
from pyro_opu.models.neural_network import dropout_network

CPU = torch.device("cpu")
#: Two classes are another model for the regression alone.
NETWORKS = [("mlp", 3), ("convolution", 3), ("logistic", 2), ("logistic", 3)]


@pytest.mark.parametrize(("name", "classes"), NETWORKS)
def test_all_ways_answer(name: str, classes: int) -> None:
    """Every way gives what its name says, for all draws."""
    kit = Kit(SUBJECTS[name], classes, 60, CPU)
    x = kit.inputs(4)
    kit.answer_with(60)
    ways = speed_ways.slow_ways(kit, x, 60)
    probs = ways["batched teacher"].make(60)()
    assert probs.shape == (60, 4, classes)
    # Rounding: what fills no vector register at a tensor's end is computed in another way.
    subset = ways["compact subset of 50, batched"].make(50)()
    torch.testing.assert_close(subset, probs[:50], rtol=1e-6, atol=1e-7)
    assert ways["Predictive"].make(60)()["obs"].shape == (60, 4)
    assert speed_ways.quick_ways(kit, x, captured=False)["drop-in call"]()["obs"].shape == (60, 4)
    for end in kit.students:
        quick = speed_ways.quick_ways(kit, x, captured=False)
        assert quick[f"one pass{end}"]().shape == (4, classes)
        assert quick[f"drop-in call, probabilities{end}"]()["probs"].shape == (60, 4, classes)
    assert (ALIKE in kit.students) == (name != "logistic")
    assert ("Predictive, parallel" in ways) == (name != "convolution")
    if "Predictive, parallel" in ways and classes > 2:
        told = ways["Predictive, parallel, probabilities"].make(60)()["probs"]
        # Products of float32 numbers in another order.
        torch.testing.assert_close(told.reshape(probs.shape), probs, rtol=1e-4, atol=1e-5)
    assert kit.plug_in(x).shape == (4, classes)


def test_the_students_that_are_timed() -> None:
    """What ``distill`` makes by default, and what is as wide as the network of the posterior."""
    kit = Kit(SUBJECTS["mlp"], 3, 2, CPU)
    made = pyro_opu.distill(
        kit.predictive(2), kit.inputs(256), num_steps=1, recalibrate=False, progress=False
    )
    assert kit.fast.guide.config == {**made.guide.config, "law": "sticks"}
    assert kit.names == {
        "": "default (the posterior's network, 32-32 on it)",
        ALIKE: "teacher's widths (400-400)",
    }


def test_names_of_students_that_begin_at_a_posterior() -> None:
    kit = Kit(SUBJECTS["logistic"], 2, 4, CPU)
    for source, x, widths in (
        (dropout_network((3, 8, 2)), torch.randn(20, 3), "the posterior's network, 128-128 on it"),
        (kit.predictive(4), kit.inputs(20), "moments of logits, 128-128 on them"),
    ):
        made = pyro_opu.distill(source, x, num_steps=1, recalibrate=False, progress=False)
        assert student_name("", made.guide) == f"default ({widths})"


def test_fewer_draws_than_a_subset() -> None:
    kit = Kit(SUBJECTS["logistic"], 2, 10, CPU)
    assert not any("compact" in way for way in speed_ways.slow_ways(kit, kit.inputs(2), 10))


class TestParallel:
    @pytest.mark.parametrize("name", ["mlp", "logistic"])
    def test_lined_up_samples_are_right(self, name: str) -> None:
        """And those of ``MCMC`` are not: an error, or where S = N the wrong answer."""
        said = {(row["samples"], row["N"]): row["parallel=True"] for row in checks(SUBJECTS[name])}
        assert said["(S, 1, D)", 5] == said["(S, 1, D)", 6] == "right"
        assert said["(S, D)", 5] == "RuntimeError"
        assert said["(S, D)", 6] == "silently wrong"

    def test_against_a_loop(self) -> None:
        """The logits of the perceptron, draw by draw, by hand."""
        kit = Kit(SUBJECTS["mlp"], 3, 4, CPU)
        kit.samples = {name: torch.randn_like(value) for name, value in kit.samples.items()}
        x, expected = kit.inputs(5), []
        for s in range(4):
            hidden = x
            for layer in range(3):
                hidden = hidden @ kit.samples[f"w{layer}"][s] + kit.samples[f"b{layer}"][s]
                hidden = hidden.relu() if layer < 2 else hidden
            expected.append(hidden.log_softmax(-1))
        found = logits(kit, lined_up(kit.samples), x, parallel=True)
        # Products of hundreds of float32 numbers in another order, in logits of thousands.
        torch.testing.assert_close(found.squeeze(1), torch.stack(expected), rtol=1e-4, atol=1e-1)


class TestPeers:
    @pytest.mark.parametrize(("name", "classes"), NETWORKS)
    def test_numpyro_has_the_same_network(self, name: str, classes: int) -> None:
        jax = pytest.importorskip("jax")
        pytest.importorskip("numpyro")
        kit = Kit(SUBJECTS[name], classes, 2, CPU)
        x, peer = kit.inputs(3), JittedPredictive(kit)
        theta = {site: value[1] for site, value in peer.samples.items()}
        found = np.array(peer.logits(theta, jax.numpy.asarray(x.numpy())))
        if found.shape[-1] == 1:
            found = np.concatenate([np.zeros_like(found), found], -1)
        expected = pyro_opu.as_teacher(kit.predictive(2)).probs(x)[1]
        # Float32 sums in another order.
        torch.testing.assert_close(torch.tensor(found).softmax(-1), expected, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("parallel", [False, True])
    def test_numpyro_draws_labels(self, parallel: bool) -> None:
        pytest.importorskip("numpyro")
        kit = Kit(SUBJECTS["logistic"], 3, 7, CPU)
        labels = JittedPredictive(kit).call(kit.inputs(4), 5, parallel=parallel)()
        assert labels.shape == (5, 4) and set(np.unique(labels)) <= {0, 1, 2}

    def test_laplace(self) -> None:
        pytest.importorskip("laplace")
        x, y = torch.randn(30, 4), torch.arange(30) % 3
        network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        with torch.no_grad():  # as it is timed
            ways = laplace_ways(network, (x, y), x[:5], 20)
            answers = {name: way() for name, way in ways.items()}
        assert list(answers) == [f"laplace-torch, {link}" for link in ("probit", "bridge", "mc")]
        for probs in answers.values():
            # A sum of three float32 numbers.
            torch.testing.assert_close(probs.sum(-1), torch.ones(5), rtol=0.0, atol=1e-5)

    def test_what_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert absent("no_such_package") and not absent("torch")
        monkeypatch.setattr(speed, "absent", lambda package: package == "numpyro")
        assert speed.left_out("cpu") == [{"absent": "numpyro", "left out": "NumPyro's Predictive"}]
