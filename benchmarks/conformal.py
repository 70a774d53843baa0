"""Conformal sets on top of students: coverage and size beside the teacher's and the plug-in's.

A network with dropout of one half is fitted to half of the rows; its default student is taught at
the same rows, without labels. The other rows are split 20 times into halves: on one MAPIE's
``SplitConformalClassifier`` sets the threshold for sets of 90 % coverage, on the other the sets are
judged. Scores are "lac", one less the probability of the class, whose sets are the smallest and can
be empty, and of more than two classes "aps", the summed probability of classes
at least as probable.

Coverage is right whatever the model is, as far as calibration rows and judged rows are alike; what
a better model has is smaller sets.

    python -m benchmarks.conformal
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from mapie.classification import SplitConformalClassifier
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor

import pyro_opu
from benchmarks.novelty import digits, table
from papers.results import parser, record_seeds
from pyro_opu.models.neural_network import dropout_network, fit_network

SETS = ("digits", "Spambase", "Pima")
LEVEL, DRAWS = 0.9, 500


def main() -> None:
    options = parser(__doc__, seeds=3)
    options.add_argument("--splits", type=int, default=20)
    args = options.parse_args()
    if args.quick:
        args.seeds, args.splits = 1, 2
    record_seeds(__file__, args, of_seed, {"Sets": ("data", "model", "score")})


class Known(ClassifierMixin, BaseEstimator):
    """A classifier that is fitted already: probabilities ``(N, C)`` by a function of rows."""

    def __init__(self, probs: Callable[[Tensor], Tensor], classes: int) -> None:
        self.probs, self.classes = probs, classes
        self.classes_ = np.arange(classes)

    def fit(self, x: Any, y: Any) -> Known:
        return self

    def predict_proba(self, x: Any) -> np.ndarray:
        with torch.no_grad():
            found = self.probs(torch.as_tensor(x, dtype=torch.float32)).double()
        return (found / found.sum(-1, keepdim=True)).numpy()

    def predict(self, x: Any) -> np.ndarray:
        return self.predict_proba(x).argmax(1)

    def __sklearn_is_fitted__(self) -> bool:
        return True


def of_seed(seed: int, args) -> dict[str, list[dict]]:
    """Fit, distill, and judge on all splits."""
    rows = []
    for name in SETS[2:] if args.quick else SETS:
        x, y, _ = digits() if name == "digits" else table(name)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        train, other = order.tensor_split(2)
        x = (x - x[train].mean(0)) / x[train].std(0).clamp_min(1e-6)
        torch.manual_seed(seed)
        classes = int(y.max()) + 1
        network = dropout_network((x.shape[1], 128, 128, classes), 0.5)
        fit_network(network, x[train], y[train], epochs=3 if args.quick else 100)
        steps = {"num_steps": 5} if args.quick else {}
        source = pyro_opu.as_teacher(network, output="classes")
        fast = pyro_opu.distill(source, x[train], seed=seed, progress=False, **steps)
        ways = {
            "student": lambda rows, fast=fast: fast.distribution(rows).mean,
            "teacher": lambda rows, source=source: source.probs(rows, DRAWS).mean(0),
            "plug-in": lambda rows, network=network: network.eval()(rows).softmax(-1),
        }
        for way, probs in ways.items():
            with torch.no_grad():
                torch.manual_seed(seed)
                found = probs(x[other])
            for score in ("lac", "aps")[: min(2, classes - 1)]:  # MAPIE has one for two classes
                judged = over_splits(found, y[other], score, seed, args.splits)
                rows.append({"data": name, "model": way, "score": score, **judged})
    return {"Sets": rows}


def over_splits(probs: Tensor, y: Tensor, score: str, seed: int, splits: int) -> dict[str, float]:
    """Coverage and size of sets, averaged over splits of the rows, whose answers are known."""
    coverage, size, empty = [], [], []
    known = Known(lambda index: probs[index[:, 0].long()], probs.shape[1])
    for split in range(splits):
        g = torch.Generator().manual_seed(1000 * seed + split)
        calibrate, judge = torch.randperm(len(y), generator=g)[:, None].tensor_split(2)
        conformal = SplitConformalClassifier(
            known, confidence_level=LEVEL, conformity_score=score, prefit=True, random_state=split
        )
        conformal.conformalize(calibrate.numpy(), y[calibrate[:, 0]].numpy())
        sets = conformal.predict_set(judge.numpy())[1][..., 0]
        coverage.append(100 * sets[np.arange(len(judge)), y[judge[:, 0]].numpy()].mean())
        size.append(sets.sum(1).mean())
        empty.append(100 * (sets.sum(1) == 0).mean())
    names = "coverage, %", "size", "empty, %"
    means = map(statistics.mean, (coverage, size, empty))
    found = dict(zip(names, map(float, means), strict=True))
    return found | {"deviation over splits": float(statistics.stdev(coverage))}


if __name__ == "__main__":
    main()
