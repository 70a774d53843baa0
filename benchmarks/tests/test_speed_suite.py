"""The benchmark suite: clocks, scaling, slopes, peaks, bars, and that peers answer the same."""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from pyro.infer import Predictive
from torch import Tensor

import pyro_opu
from benchmarks import (
    export_check,
    memory,
    speed,
    speed_bars,
    speed_cost,
    speed_cuda,
    speed_memory,
    speed_picture,
    speed_ways,
    timing,
)
from benchmarks.speed_models import ALIKE, SUBJECTS, Kit, lined_up, student_name
from benchmarks.speed_parallel import checks, logits
from benchmarks.speed_peers import JittedPredictive, absent, laplace_ways
from benchmarks.speed_sweeps import exponents, slope, upper_half

CPU = torch.device("cpu")
#: Two classes are another model for the regression alone.
NETWORKS = [("mlp", 3), ("convolution", 3), ("logistic", 2), ("logistic", 3)]


class Clock:
    """Time that passes only when a call says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def taking(self, *seconds: float):
        """A call that takes these seconds, one after another, and then the last again."""
        left = list(seconds)

        def call() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class TestClocks:
    def test_median_and_quartiles(self, clock: Clock) -> None:
        """The first call is not measured; of 1, 2, 3, 4, 9 the quartiles are 2 and 4."""
        found = timing.spans({"a": clock.taking(50.0, 1.0, 4.0, 9.0, 2.0, 3.0)}, 18.5)["a"]
        assert found == timing.Timing(median=3.0, iqr=2.0, runs=5)
        assert found.times(10) == timing.Timing(30.0, 20.0, 5)

    def test_in_turn_and_at_least_three_rounds(self, clock: Clock) -> None:
        order: list[str] = []
        ways = {name: (lambda name=name: order.append(name)) for name in "ab"}
        timing.spans(ways, 0.0, lambda: order.append("|"))
        assert "".join(order) == "ab|" + 3 * "a|b|"
        order.clear()
        timing.spans(ways, 0.0, warm=True)
        assert "".join(order) == 3 * "ab"

    def test_medians_alone(self, clock: Clock) -> None:
        assert timing.timed({"a": clock.taking(2.0), "b": clock.taking(5.0)}, 0.0) == {
            "a": 2.0,
            "b": 5.0,
        }


class TestScaling:
    """A way that takes a second for every run of a model, and two runs beside its draws."""

    def way(self, clock: Clock, most: int = 10**6) -> speed_ways.ByDraws:
        return speed_ways.ByDraws(lambda n: clock.taking(n + 2.0), 500, most, fixed=2)

    @pytest.mark.parametrize(("bound", "timed"), [(1e4, 500), (0.1, 2), (60.0, 30)])
    def test_time_is_that_of_all_draws(self, clock: Clock, bound: float, timed: int) -> None:
        ways = {"slow": self.way(clock)}
        found = speed_ways.clocked({}, ways, (0.0, 0.0), bound, CPU)["slow"]
        assert (found.draws, found.timed) == (500, timed)
        assert found.time.median == pytest.approx(502.0, rel=1e-12)  # rounding of a product

    def test_memory_bounds_the_draws(self, clock: Clock) -> None:
        found = speed_ways.clocked({}, {"slow": self.way(clock, 20)}, (0.0, 0.0), 1e4, CPU)["slow"]
        assert found.timed == 20 and found.time.median == pytest.approx(502.0, rel=1e-12)

    def test_rows(self) -> None:
        one = speed_ways.Found(timing.Timing(0.002, 0.001, 7))
        slow = speed_ways.Found(timing.Timing(0.5, 0.1, 3), draws=500, timed=50)
        found = {"one pass": one, "one pass, teacher's widths": one, "slow": slow}
        names = {"": "default (9)", ALIKE: "teacher's widths (4)"}
        rows = speed_ways.rows_of(found, {"N": 4}, names)
        assert next(iter(rows[0])) == "student"
        assert [row["student"] for row in rows] == [*names.values(), ""]
        assert [row["way"] for row in rows] == ["one pass", "one pass", "slow"]
        assert rows[0] == {
            "student": "default (9)", "N": 4, "way": "one pass", "ms": 2.0, "IQR, ms": 1.0,
            "runs": 7, "times one pass": 1.0,
        }  # fmt: skip
        assert rows[2]["times one pass"] == 250.0
        assert (rows[2]["draws"], rows[2]["draws timed"]) == (500, 50)


class TestSlopes:
    def test_power_law(self) -> None:
        points = [(n, 3.0 * n**1.5) for n in (1, 10, 100)]
        assert slope(points) == pytest.approx(1.5, rel=1e-12)  # rounding of least squares

    def test_upper_half(self) -> None:
        """Flat below 100 and linear from there on: the larger three of five."""
        points = [(n, max(n, 100)) for n in (10_000, 1, 100, 10, 1000)]
        assert upper_half(points) == [(100, 100), (1000, 1000), (10_000, 10_000)]
        assert upper_half(points[:2]) == []

    def test_scaled_points_do_not_count_along_draws(self) -> None:
        """Of what is scaled to S the slope in S is 1 whatever it is."""
        rows = [
            {"model": "m", "C": 3, "way": "w", "S": s, "N": s, "ms": ms, "draws": s}
            | {"draws timed": min(s, 40)}
            for s, ms in ((10, 1.0), (20, 1.0), (40, 1.0), (80, 8.0))
        ]
        assert [round(row["exponent"], 9) for row in exponents("S", rows)] == [0.0]
        (along_inputs,) = exponents("N", rows)
        assert along_inputs["exponent"] > 1.0 and along_inputs["to"] == 80
        assert exponents("S", rows[1:]) == []


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
    posterior = lambda x: torch.softmax(x[:, :3] * torch.ones(4, 1, 1), -1)  # noqa: E731
    made = pyro_opu.distill(
        posterior, kit.inputs(20), num_steps=1, recalibrate=False, progress=False
    )
    assert kit.fast.guide.config == made.guide.config
    assert kit.names == {
        "": student_name("", made.guide),
        ALIKE: "teacher's widths (400-400)",
    }
    assert kit.names[""].startswith("default (")


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


class TestMemory:
    @pytest.mark.skipif(not memory.STATUS.exists(), reason="reads Linux's /proc")
    def test_peak_of_a_call(self) -> None:
        """100 MB for a moment, then another 40; nothing of what was there before."""
        before = torch.ones(10_000_000)

        def call() -> None:
            torch.ones(25_000_000)
            torch.ones(10_000_000)

        # Pages of the allocator and of Python.
        assert memory.peak_of(call) == pytest.approx(100.0, abs=10.0)
        assert memory.peak_of(lambda: before.sum()) < 10.0

    @pytest.mark.parametrize("way", speed_memory.WAYS)
    def test_every_way_is_ready(self, way: str) -> None:
        """As it is measured: a call without gradients, for all draws."""
        for name, package in (("NumPyro", "numpyro"), ("laplace", "laplace")):
            if way.startswith(name):
                pytest.importorskip(package)
        # A regression has no widths that its student could have.
        kit = Kit(SUBJECTS["mlp" if way.endswith(ALIKE) else "logistic"], 3, 4, CPU)
        answer = speed_memory.answer(kit, way, kit.inputs(5), 4)()
        labels = answer["obs"] if isinstance(answer, dict) else answer
        assert 5 in labels.shape
        assert not getattr(labels, "requires_grad", False)

    def test_last_number_of_a_module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "says_so.py").write_text("import sys; print('peak'); print(sys.argv[1])")
        monkeypatch.chdir(tmp_path)
        assert memory.in_a_process("says_so", "12.5") == 12.5


class TestBars:
    def rows(self, tables: speed_bars.Tables, device: str = "cpu") -> dict[str, dict]:
        return {row["bar"]: row for row in speed_bars.bars(tables, device)}

    def test_what_no_part_has_measured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(speed_bars, "kept", lambda name: {})
        for device, count in (("cpu", 17), ("cuda", 2)):
            rows = self.rows({}, device)
            assert len(rows) == count
            assert {(row["measured"], row["met"]) for row in rows.values()} == {("not run", "")}

    def test_both_directions(self) -> None:
        time = {"model": "MLP 784-400-400-10", "N": 1000, "one pass / plug-in": 1.11}
        alike = {**time, "student": "teacher's widths (400-400)", "one pass / plug-in": 1.0}
        rows = self.rows({"Time": [{**time, "Predictive / one pass": 550.0}, alike]})
        assert rows["one pass / plug-in, N = 1000, teacher's widths"]["met"] == "yes"
        assert rows["one pass / plug-in, N = 1000"]["met"] == "no"
        assert rows["one pass / plug-in, N = 1000"]["demanded"] == "<= 1.1"
        assert rows["Predictive / one pass, N = 1000"]["met"] == "yes"

    def test_the_worst_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        name = "MLP 784-400-400-10"
        times = {"NumPyro": 300.0, "NumPyro, parallel": 200.0}
        ways = [{"model": name, "N": 1000, "S": 500, "way": w, "times one pass": t, "ms": t}
                for w, t in times.items()]  # fmt: skip
        for rows, slow, batched in ((1, 9.0, 3.0), (10, 9.0, 10.0)):
            point = {"model": name, "N": rows, "S": 500}
            ways += [{**point, "way": "Predictive", "ms": slow}]
            ways += [{**point, "way": "batched teacher", "ms": batched}]
        sweep = {f"Sweep over {axis}": [] for axis in "NSC"}
        written = {"ONNX Runtime": [{"mean, largest difference": v} for v in (1e-6, 2e-5)]}
        monkeypatch.setattr(speed_bars, "kept", lambda name: written)
        rows = self.rows({"All ways": ways, **sweep})
        assert rows["NumPyro jitted / one pass, N = 1000, the quicker order"]["measured"] == 200.0
        assert rows["Predictive / batched teacher, networks, the least"]["measured"] == 0.9
        assert rows["ONNX Runtime - eager, mean"]["met"] == "no"


class TestParts:
    def test_others_stay(self) -> None:
        """A part made anew takes the place of its own rows in every table."""
        old = {
            "Time": [{"part": "mlp", "ms": 1}, {"part": "logistic", "ms": 2}],
            "Exponents": [{"part": "mlp", "n": 3}],
        }
        found = speed.merged(old, "mlp", {"Time": [{"ms": 4}], "Left out": []})
        assert found == {"Time": [{"part": "logistic", "ms": 2}, {"part": "mlp", "ms": 4}]}

    def test_rows_of_no_part_go(self) -> None:
        """A results file from before there were parts."""
        assert speed.merged({"Time": [{"ms": 1}]}, "mlp", {"Parts": [{"seconds": 2}]}) == {
            "Parts": [{"part": "mlp", "seconds": 2}]
        }

    def test_written_after_every_part(self, monkeypatch: pytest.MonkeyPatch) -> None:
        written: list[dict] = []
        parts = {
            name: (lambda args, name=name: {"T": [{"of": name}]}) for name in ("mlp", "digits")
        }
        monkeypatch.setattr(speed, "PARTS", parts)
        monkeypatch.setattr(speed, "kept", lambda name: {"T": [{"part": "mlp", "of": "before"}]})
        monkeypatch.setattr(speed, "record", lambda name, args, tables: written.append(tables))
        threads = str(torch.get_num_threads())
        monkeypatch.setattr("sys.argv", ["speed", "--threads", threads])
        speed.main()
        assert [[row["of"] for row in tables["T"]] for tables in written] == [
            ["mlp"],
            ["mlp", "digits"],
        ]

    def test_break_even(self) -> None:
        """Ten seconds at a gain of a fifth of a second per call are fifty calls."""
        assert speed_cost.break_even(10.0, 0.25, 0.05) == pytest.approx(50.0, rel=1e-12)
        assert speed_cost.break_even(10.0, 0.05, 0.25) == math.inf

    def test_dropout_model_draws_masks(self) -> None:
        network = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(40, 2)).train()
        model = speed_cost.dropout_model(network)
        labels = Predictive(model, num_samples=50)(torch.full((1, 40), 100.0))["obs"]
        assert labels.shape == (50, 1)

    def test_picture(self, tmp_path: Path) -> None:
        rows = [
            {"model": f"m-{c}", "C": c, "N": n, "way": way, "ms": 1.0 * n}
            | {"draws": 5, "draws timed": 5 if n < 3 else 2}
            for n in (1, 2, 4) for c in (10,) for way in ("one pass", "plug-in", "Predictive")
        ]  # fmt: skip
        speed_picture.draw(tmp_path / "a.png", "N", rows)
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
        speed_picture.draw(tmp_path / "b.png", "N", [])
        assert not (tmp_path / "b.png").exists()


class TestExportCheck:
    def test_differences(self) -> None:
        eager = {"mean": [[0.5, 0.5]], "concentration": [200.0], "total": [0.1], "entropy": [-4.0]}
        found = {"mean": [[0.5, 0.25]], "concentration": [201.0], "total": [0.3], "entropy": [-5.0]}
        arrays = [{name: np.array(value) for name, value in d.items()} for d in (found, eager)]
        result = export_check.differences(*arrays)
        assert result == {
            "mean, largest difference": 0.25,
            "concentration, largest relative difference": pytest.approx(0.005),
            "other outputs": 2,
            "their largest difference, relative above 1": pytest.approx(0.25),
        }

    @pytest.mark.slow
    def test_a_student(self) -> None:
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
        x = torch.randn(40, 6)
        guide = pyro_opu.PredictiveGuide.for_inputs(x, 3, hidden=(8,)).requires_grad_(False)
        fast = pyro_opu.OnePassPredictive(guide.eval(), (6,), 3)
        found = export_check.checked(export_check.Student("noise", fast, x))
        assert list(found) == ["ONNX Runtime", "torch.export", "Time of all rows, one thread"]
        for runtime in ("ONNX Runtime", "torch.export"):
            assert found[runtime]["mean, largest difference"] < 1e-5
            assert found[runtime]["concentration, largest relative difference"] < 1e-4


class TestWork:
    def test_of_a_network(self) -> None:
        """784-400-400-10 at three rows: 477,600 products, and 1,594 numbers in or out of a row."""
        network = SUBJECTS["mlp"].plug_in(10)
        found = speed_cuda.work_of(network, 3)
        assert found.flops == 2 * 3 * (784 * 400 + 400 * 400 + 400 * 10)
        assert found.bytes == 4 * (784 * 400 + 400 * 400 + 400 * 10 + 3 * (784 + 400 + 400 + 10))

    def test_share_of_the_peak(self) -> None:
        work, peak = speed_cuda.Work(flops=6e12, bytes=1e12), speed_cuda.Peak(4e12, 60e12)
        row = speed_cuda.achieved(work, 0.5, peak)
        assert row["GB/s"] == 2000 and row["TFLOP/s"] == 12
        assert row["share of peak bandwidth"] == 0.5 and row["share of peak FLOP/s"] == 0.2
        assert speed_cuda.achieved(work, 0.5, None)["share of peak bandwidth"] == "unknown"

    def test_devices_by_name(self) -> None:
        assert speed_cuda.peak_of("NVIDIA H200") == speed_cuda.PEAKS["H200"]
        assert speed_cuda.peak_of("NVIDIA H100 PCIe") == speed_cuda.PEAKS["H100 PCIe"]
        assert speed_cuda.peak_of("NVIDIA H100 80GB HBM3") == speed_cuda.PEAKS["H100"]
        assert speed_cuda.peak_of("some other") is None


@pytest.mark.gpu
class TestOnTheGPU:
    def test_recorded_pass(self) -> None:
        kit = Kit(SUBJECTS["mlp"], 10, 2, torch.device("cuda"))
        x: Tensor = kit.inputs(4)
        run = speed_cuda.GraphPass(
            speed_cuda.tensor_pass(kit.fast.guide, kit.fast.distribution(x))[0], x[:1]
        )
        expected = kit.fast.dirichlet(x)
        pair = expected.log_mean, expected.log_concentration
        for found, value in zip(run(x), pair, strict=True):
            # Another number of rows may add up in another order.
            torch.testing.assert_close(found, value, rtol=0.0, atol=1e-5)

    def test_tables(self) -> None:
        args = argparse.Namespace(device="cuda", quick=True, budget=0.1)
        rows = speed_cuda.part(args)["CUDA"]
        assert {row["N"] for row in rows} == {1, 1000}
        assert all(row["us"] > 0 for row in rows)
        assert len(speed_bars.bars({"CUDA": rows}, "cuda")) == 2
