"""The speed benchmark: slopes, bars, parts and pictures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pyro.infer import Predictive

from benchmarks import (
    speed,
    speed_bars,
    speed_cost,
    speed_picture,
)
from benchmarks.speed_sweeps import exponents, slope, upper_half


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


class TestBars:
    def rows(self, tables: speed_bars.Tables, device: str = "cpu") -> dict[str, dict]:
        return {row["bar"]: row for row in speed_bars.bars(tables, device)}

    def test_what_no_part_has_measured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(speed_bars, "kept", lambda name: {})
        for device, count in (("cpu", 13), ("cuda", 5)):
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
