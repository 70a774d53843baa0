"""The recipes of docs/how_to/track.md: trackers keep every evaluation of both phases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import pyro_opu

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "track.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
#: The student is refined, so that steps count from 0 twice.
SHORT = pyro_opu.Training(num_steps=20, evaluate_every=10)
REFINED = {"loss": "energy", "training": SHORT, "progress": False}
PHASES = ("start", "warm start", "objective")

pytestmark = pytest.mark.filterwarnings("ignore")  # few steps, and warnings of the trackers


@pytest.fixture
def tracked(monkeypatch, tmp_path):
    """Run the recipe that imports a package, in an empty folder; returns the names it leaves."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    distill = pyro_opu.distill

    def refined(*args, **options):
        options.pop("num_steps", None)
        return distill(*args, **options | REFINED)

    monkeypatch.setattr(pyro_opu, "distill", refined)

    def run(word):
        (code,) = [each for each in BLOCKS if re.search(rf"^(import|from).*\b{word}\b", each, re.M)]
        torch.manual_seed(0)
        names = {}
        exec(compile(code, str(PAGE), "exec"), names)
        return names

    return run


def series(student) -> dict[str, list[tuple[int, float]]]:
    """Steps and values of the KL's ratio, by phase, as the student's report has them."""
    found: dict[str, list[tuple[int, float]]] = {phase: [] for phase in PHASES}
    for record in student.report["history"]:
        found[record["phase"]].append((record["step"], pytest.approx(record["draws"], rel=1e-6)))
    assert found["warm start"][-1][0] > found["objective"][-1][0]  # the steps do go back
    return found


def test_tensorboard(tracked):
    pytest.importorskip("tensorboard")
    fast = tracked("tensorboard")["fast"]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    kept = EventAccumulator("runs/student").Reload()
    for phase, expected in series(fast).items():  # float32, hence the tolerance
        found = kept.Scalars(f"draws/{phase}")
        assert [(each.step, each.value) for each in found] == expected


def test_mlflow(tracked):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("alembic")  # mlflow-skinny has no store without it
    fast = tracked("mlflow")["fast"]
    client = mlflow.MlflowClient()
    run = mlflow.last_active_run().info.run_id
    for phase, expected in series(fast).items():
        found = client.get_metric_history(run, f"draws/{phase}")
        assert [(each.step, each.value) for each in found] == expected


def test_wandb(tracked):
    wandb = pytest.importorskip("wandb")
    fast = tracked("wandb")["fast"]
    series(fast)
    wandb.teardown()  # waits until the file is written
    (kept,) = Path("wandb").glob("offline-run-*/*.wandb")
    rows = kept.read_bytes()  # values in it are JSON, of 15 digits or more
    for record in fast.report["history"]:
        for value in (f'"{record["phase"]}"', repr(record["draws"])[:12]):
            assert value.encode() in rows
