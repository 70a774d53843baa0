"""Every way to an answer that is timed gives the same answer, and times are those of all draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import pyro_opu
from benchmarks import memory, speed
from benchmarks.speed import JittedPredictive, Kit, absent, laplace_ways, subject

#: Two classes are another model for the regression alone.
SUBJECTS = [("mlp", 10), ("convolution", 10), ("logistic", 2), ("logistic", 3)]


@pytest.fixture(scope="module", params=SUBJECTS, ids=lambda each: f"{each[0]} {each[1]}")
def kit(request: pytest.FixtureRequest) -> Kit:
    return Kit(subject(*request.param), 12)


@pytest.mark.slow
def test_all_ways_answer(kit: Kit) -> None:
    """What the name says, for all draws; in parallel with the logits of a loop."""
    x, classes = kit.inputs(4), kit.of.classes
    ways = speed.slow_ways(kit, x)
    assert ways["batched"](12)().shape == (12, 4, classes)
    assert ways["Predictive"](12)()["obs"].shape == (12, 4)
    assert ("Predictive, parallel" in ways) == kit.of.parallel
    if kit.of.parallel:
        assert ways["Predictive, parallel"](12)()["obs"].shape == (12, 4)
    passes, calls = speed.quick_ways(kit, x, speed.SHOWN)
    assert passes["plug-in"]().shape == passes["one pass"]().shape == (4, classes)
    assert calls["drop-in call"]()["obs"].shape == (12, 4)


@pytest.mark.slow
def test_numpyro_has_the_same_network(kit: Kit) -> None:
    jax = pytest.importorskip("jax")
    pytest.importorskip("numpyro")
    x, peer = kit.inputs(3), JittedPredictive(kit)
    theta = {site: value[1] for site, value in peer.samples.items()}
    found = np.array(peer.logits(theta, jax.numpy.asarray(x.numpy())))
    if found.shape[-1] == 1:
        found = np.concatenate([np.zeros_like(found), found], -1)
    expected = pyro_opu.as_teacher(kit.predictive(2)).probs(x)[1]
    # Float32 sums in another order.
    torch.testing.assert_close(torch.tensor(found).softmax(-1), expected, rtol=1e-4, atol=1e-5)
    labels = peer.call(x, 5, parallel=True)()
    assert labels.shape == (5, 3) and set(np.unique(labels)) <= set(range(kit.of.classes))


@pytest.mark.parametrize(("bound", "timed"), [(1e4, 500), (0.1, 2), (60.0, 60)])
def test_time_is_that_of_all_draws(
    bound: float, timed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call takes a second for every draw; the last of them is the one that is timed."""
    now, counts = [0.0], []
    monkeypatch.setattr(speed.time, "perf_counter", lambda: now[0])

    def make(count: int) -> speed.Call:
        counts.append(count)
        return lambda: now.__setitem__(0, now[0] + count)

    assert speed.scaled(make, 500, bound) == pytest.approx(500.0, rel=1e-12)
    assert counts[-1] == timed


def test_laplace() -> None:
    pytest.importorskip("laplace")
    x, y = torch.randn(30, 4), torch.arange(30) % 3
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    with torch.no_grad():  # as it is timed
        answers = {name: way() for name, way in laplace_ways(network, (x, y), x[:5], 20).items()}
    assert list(answers) == [f"laplace-torch, {link}" for link in ("probit", "bridge", "mc")]
    for probs in answers.values():
        # A sum of three float32 numbers.
        torch.testing.assert_close(probs.sum(-1), torch.ones(5), rtol=0.0, atol=1e-5)


def test_what_is_not_there() -> None:
    assert absent("no_such_package") and not absent("torch")


def test_picture(tmp_path: Path) -> None:
    curves = {"m": {n: dict.fromkeys(speed.SHOWN, 1e-3 * n) for n in (1, 10)}}
    speed.draw(tmp_path / "new" / "it.png", curves)
    assert (tmp_path / "new" / "it.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(not memory.STATUS.exists(), reason="reads Linux's /proc")
def test_peak_of_a_call() -> None:
    """100 MB for a moment, then another 40; nothing of what was there before."""
    before = torch.ones(10_000_000)

    def call() -> None:
        torch.ones(25_000_000)
        torch.ones(10_000_000)

    # Pages of the allocator and of Python.
    assert memory.peak_of(call) == pytest.approx(100.0, abs=10.0)
    assert memory.peak_of(lambda: before.sum()) < 10.0


def test_last_number_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "says_so.py").write_text("import sys; print('peak'); print(sys.argv[1])")
    monkeypatch.chdir(tmp_path)
    assert memory.in_a_process("says_so", "12.5") == 12.5
