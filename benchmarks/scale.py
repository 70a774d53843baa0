"""Two processes against one, with one core each, and one of them killed.

Digits with MC dropout (64-128-128-10, p = 0.5) and 600 transfer inputs; gloo on this machine. The
objective is the Wasserstein bound, whose steps ask the teacher and train a critic: those of the
default objective ask nothing, and are too cheap to gain by a second process at 256 inputs.

    python -m benchmarks.scale
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import pyro_opu
from benchmarks.posteriors import SIZES
from benchmarks.scale_worker import Job, network
from papers.digits import digits
from papers.results import finish, over_seeds, parser, say
from pyro_opu.models.neural_network import dropout_network, fit_network

#: Of one rank's time per step, what two ranks may take.
BAR = 0.7


def main() -> None:
    args = parser(__doc__, seeds=3).parse_args()
    torch.set_num_threads(1)
    quick = {"num_steps": 40, "evaluate_every": 10, "loss": "moments", "rows": 100}
    full = {"num_steps": 1000, "evaluate_every": 100, "loss": "wasserstein", "rows": 600}
    settings = quick if args.quick else full
    with tempfile.TemporaryDirectory() as name:
        place = Place(Path(name), settings, epochs=5 if args.quick else 200)
        fidelities = [
            fidelity(place, seed, ranks)
            for seed in range(1 if args.quick else args.seeds)
            for ranks in ((2,) if args.quick else (1, 2))
        ]
        tables = {"Fidelity": over_seeds(fidelities, ("ranks",))}
        say(tables)
        if not args.quick:
            tables["A killed rank"] = [killed(place)]
            tables["Time per step"] = [timed(place, size, 3) for size in (256, 1024)]
    finish(__file__, args, tables, **settings)


class Place:
    """Where teachers and students are kept while the benchmark runs.

    Args:
        folder: An empty one.
        settings: Steps, evaluations, loss and transfer inputs of every distillation.
        epochs: Of a teacher's training.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], epochs: int) -> None:
        self.folder, self.settings, self.epochs = folder, settings, epochs

    def teacher(self, seed: int) -> Path:
        """File of the teacher of this seed, trained when first asked for."""
        path = self.folder / f"teacher-{seed}.safetensors"
        if not path.exists():
            torch.manual_seed(seed)
            found = fit_network(dropout_network(SIZES), *digits(seed).train, epochs=self.epochs)
            save_file(found.state_dict(), path)
        return path

    def run(self, seed: int, ranks: int, **changes: Any) -> dict[str, Any]:
        """Distil with so many ranks, once for the same arguments; what rank 0 found."""
        named = [f"{key}-{value}" for key, value in changes.items()]
        folder = self.folder / "_".join([f"seed-{seed}", f"ranks-{ranks}", *named])
        if not folder.exists():
            folder.mkdir()
            settings = {"batch_size": 256, **self.settings, **changes}
            launch(Job(str(self.teacher(seed)), seed, folder=str(folder), **settings), ranks)
        return {"folder": folder, **json.loads((folder / "found.json").read_text())}


def launch(job: Job, ranks: int) -> None:
    """Run a job in a process alone, or in several under ``torchrun``, one thread each."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    launcher += ["--max-restarts", "1" if job.dies_at else "0", "-m"]
    command = [sys.executable, "-m", *(launcher if ranks > 1 else [])]
    command += ["benchmarks.scale_worker", json.dumps(asdict(job))]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def fidelity(place: Place, seed: int, ranks: int) -> dict[str, Any]:
    """How near the student of so many ranks is on test rows."""
    found = place.run(seed, ranks)
    fast = pyro_opu.OnePassPredictive.load(found["folder"] / "student.safetensors")
    teacher = network(str(place.teacher(seed)))
    x = digits(seed).test.x[: place.settings["rows"]]
    report = pyro_opu.fidelity(fast, teacher, x, seed=seed)
    return {
        "seed": seed,
        "ranks": ranks,
        "KL of the mean": report.kl,
        "its floor": report.kl_floor,
        "energy distance": report.energy_distance,
        "seconds": found["seconds"],
    }


def killed(place: Place) -> dict[str, Any]:
    """The run of seed 0 on two ranks, of which one is killed halfway, against the unbroken one."""
    at = place.settings["num_steps"] // place.settings["evaluate_every"] // 2 + 1
    unbroken, resumed = place.run(0, 2), place.run(0, 2, dies_at=at)
    weights = [
        load_file(found["folder"] / f"weights-{rank}.safetensors")
        for found in (unbroken, resumed)
        for rank in (0, 1)
    ]
    return {
        "killed at evaluation": at,
        "attempts": 1 + resumed["attempt"],
        "evaluations of the last attempt": resumed["evaluations"],
        "of": unbroken["evaluations"],
        "weights are those of the unbroken run": all(
            torch.equal(value, other[name])
            for other in weights
            for name, value in weights[0].items()
        ),
    }


def timed(place: Place, batch_size: int, rounds: int) -> dict[str, Any]:
    """Median time of a step that asks the teacher and trains a critic, ranks in turn.

    That of the rounds is the median again.
    """
    changes = {"num_steps": 200, "warm_start": False, "batch_size": batch_size}
    taken: dict[int, list[float]] = {1: [], 2: []}
    for seed in range(rounds):
        for ranks, values in taken.items():
            values.append(place.run(seed, ranks, **changes)["ms per step"])
    one, two = (statistics.median(values) for values in taken.values())
    return {
        "inputs per batch": batch_size,
        "one rank, ms": one,
        "two ranks, ms": two,
        "two / one": two / one,
        "bar": BAR,
    }


if __name__ == "__main__":
    main()
