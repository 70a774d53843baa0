"""Whether two commits make the same students, on this machine: equal bits, or how far apart.

    python -m benchmarks.same A [B]        # commits; "." (the default of B) is the working tree

A dozen students are taught briefly at both, by two seeds. A distance is the root mean square
difference of class probabilities (or means) and epistemic parts, each in units of its spread over
inputs. It is said in units of seed noise, the distance between the two seeds at A: far below 1 is
rounding, about 1 is another seed's luck, and more is another method. Nothing is stored.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

ROOT, SEEDS = Path(__file__).parent.parent, 2
#: Seed noise from which on two commits differ by more than luck, in any of a dozen students.
MUCH = 3.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commits", nargs="+", metavar="COMMIT")
    first, second = (*parser.parse_args().commits, ".")[:2]
    with tempfile.TemporaryDirectory() as folder:
        one, two = (
            answers_at(each, Path(folder, str(k))) for k, each in enumerate((first, second))
        )
    worst = 0.0
    for name in sorted({key.split("/")[0] for key in one}):
        here, there, other = one[f"{name}/0"], two[f"{name}/0"], one[f"{name}/1"]
        if torch.equal(here, there):
            print(f"{name:14} equal bits")
            continue
        gap = distance(here, there) / max(distance(here, other), 1e-12)
        worst = max(worst, gap)
        print(f"{name:14} {gap:.2g} of seed noise")
    print(f"farthest: {worst:.2g} of seed noise")
    return int(worst > MUCH)


def distance(one: Tensor, two: Tensor) -> float:
    """Root mean square over rows and columns, in units of each column's spread."""
    return float(((one - two) / one.std(0).clamp_min(1e-9)).square().mean().sqrt())


def answers_at(commit: str, folder: Path) -> dict[str, Tensor]:
    """What the students of a commit answer, made in a process of its own."""
    folder.mkdir()
    tree = ROOT
    if commit != ".":
        tree = folder / "tree"
        tree.mkdir()
        packed = subprocess.run(
            ["git", "-C", ROOT, "archive", commit], capture_output=True, check=True
        )
        subprocess.run(["tar", "-x", "-C", tree], input=packed.stdout, check=True)
    out, here = folder / "answers.safetensors", Path(__file__).resolve()
    code = f"import runpy; runpy.run_path({str(here)!r})['teach']({str(out)!r})"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(tree)}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tree, env=environment)
    return load_file(out)


# At one commit: only names that the contract keeps -----------------------------------------------


def teach(path: str) -> None:
    """Teach every student by every seed, and keep what they say at new inputs."""
    import warnings

    import pyro_opu

    warnings.simplefilter("ignore")
    found = {}
    for name, make in STUDENTS.items():
        for seed in range(SEEDS):
            source, x, new, options = make()
            if "warm_start" in options:
                options["training"] = pyro_opu.Training(warm_start=options.pop("warm_start"))
            fast = pyro_opu.distill(
                source, x, **{"num_steps": 60, "seed": seed, "progress": False, **options}
            )
            said = fast.uncertainty(new)
            mean = fast.distribution(new).mean if hasattr(said, "total") else said.mean
            columns = [mean.reshape(len(said.epistemic), -1), said.epistemic.reshape(len(mean), -1)]
            found[f"{name}/{seed}"] = torch.cat(columns, 1).double().contiguous()
    save_file(found, path)


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, NEW, WEIGHTS = numbers(200, 3, seed=1), numbers(50, 3, seed=2), numbers(300, 3, 3, seed=3)
Made = tuple[Any, Any, Any, dict[str, Any]]


def function(**options: Any) -> Made:
    return (lambda x: (x @ WEIGHTS).softmax(-1)), X, NEW, options


def model(law: Callable[..., Any]) -> Made:
    """A Pyro model of one law of a linear predictor, with draws."""
    import pyro
    import pyro.distributions as dist
    from pyro.infer import Predictive

    def program(x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            return pyro.sample("obs", law(dist, x @ w), obs=y)

    return Predictive(program, {"w": WEIGHTS[..., 0]}), X, NEW, {}


def network(*, members: int = 0) -> Made:
    torch.manual_seed(0)
    made = [nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3)).eval()
            for _ in range(members or 1)]  # fmt: skip
    return (made if members else made[0]), X, NEW, {}


STUDENTS: dict[str, Callable[[], Made]] = {
    "default": function,
    "mixture": lambda: function(guide="mixture"),
    "joint": lambda: function(guide="joint"),
    "energy": lambda: function(loss="energy"),
    "wasserstein": lambda: function(loss="wasserstein"),
    "cold start": lambda: function(loss="energy", warm_start=False),
    "two classes": lambda: model(lambda dist, z: dist.Bernoulli(logits=z)),
    "normal": lambda: model(lambda dist, z: dist.Normal(z, 0.5)),
    "counts": lambda: model(lambda dist, z: dist.Poisson((z / 4).exp())),
    "dropout": network,
    "ensemble": lambda: network(members=5),
    "images": lambda: (
        lambda x: (x.flatten(1) @ numbers(50, 64, 3, seed=4)).softmax(-1),
        numbers(80, 1, 8, 8, seed=5), numbers(20, 1, 8, 8, seed=6), {},
    ),
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
