"""scikit-learn forests and bagged trees, distilled with default settings.

Half of the rows fit the ensemble, a quarter, without labels, is what ``distill`` is given, and a
quarter judges. Of 500 trees each is a draw. With five rows in a leaf its trees are unsure where
labels are noise; grown to pure leaves, the default of scikit-learn, every tree is sure, and all of
the forest's uncertainty is epistemic (once). "Another forest" is the rank correlation of the mutual
information with that of the same ensemble fitted with another seed: what the luck of its trees
leaves of it.

Times are of one row on one thread. The forest's are its ``predict_proba``, and that of its trees,
of which the mutual information is made; the student's are ``fast.dirichlet``, its mean and
concentration; ``fast.uncertainty``; and a file for ONNX Runtime, which gives both. Each is the
median of many calls, of the students of the first seed.

    python -m benchmarks.forests
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import sklearn.datasets
import torch
from sklearn.ensemble import BaggingClassifier, RandomForestClassifier
from sklearn.metrics import roc_auc_score
from sklearn.tree import DecisionTreeClassifier
from torch import Tensor

import pyro_opu
from papers import datasets
from papers.results import parser, record_seeds
from papers.timing import timed
from pyro_opu.metrics.ranks import spearman

SETS = ("pima", "spambase", "breast_cancer")
KEYS = ("data", "ensemble")
ENSEMBLES = ("random forest", "bagged trees", "random forest, pure leaves")


def main() -> None:
    options = parser(__doc__, seeds=3)
    options.add_argument("--trees", type=int, default=500)
    args = options.parse_args()
    torch.set_num_threads(1)
    if args.quick:
        args.seeds, args.trees = 1, 20
    record_seeds(__file__, args, of_seed, dict.fromkeys(("Nearness", "One row"), KEYS))


def ensemble(kind: str, trees: int, seed: int) -> Any:
    """An unfitted one."""
    leaf = 1 if "pure" in kind else 5
    if "forest" in kind:
        return RandomForestClassifier(trees, min_samples_leaf=leaf, random_state=seed)
    tree = DecisionTreeClassifier(min_samples_leaf=leaf)
    return BaggingClassifier(tree, n_estimators=trees, max_features=0.5, random_state=seed)


def rows_of(name: str) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a data set."""
    if name == "breast_cancer":
        x, y = sklearn.datasets.load_breast_cancer(return_X_y=True)
        return torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)
    found = getattr(datasets, name)()
    return found.x, found.y


def of_seed(seed: int, args) -> dict[str, list[dict]]:
    """Fit, distill and judge; of the first seed, time the same students."""
    near, times = [], []
    for name in SETS[:1] if args.quick else SETS:
        for kind in ENSEMBLES[:1] if args.quick else ENSEMBLES:
            (train, y), (transfer, _), (test, labels) = parts_of(name, seed)
            own, other = (
                ensemble(kind, args.trees, number).fit(train.numpy(), y.numpy())
                for number in (seed, seed + 1000)
            )
            start = time.perf_counter()
            steps = {"num_steps": 5} if args.quick else {}
            fast = pyro_opu.distill(own, transfer, seed=seed, progress=False, **steps)
            spent = {"distill, s": time.perf_counter() - start}
            same = {"data": name, "ensemble": kind}
            near.append(same | judged(fast, own, other, test, labels) | spent)
            if seed == 0:
                of_row = priced(fast, own, test[:1], 0.0 if args.quick else 4.0)
                times.append(same | of_row)
    return {"Nearness": near} | ({"One row": times} if times else {})


def parts_of(name: str, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Rows to fit the ensemble, to distill and to judge."""
    x, y = rows_of(name)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    sizes = [len(x) // 2, len(x) // 4, len(x) - len(x) // 2 - len(x) // 4]
    return [(x[index], y[index]) for index in order.split(sizes)]


def judged(fast, own, other, x: Tensor, y: Tensor) -> dict[str, float]:
    """The student beside its ensemble on test rows."""
    draws, again = (pyro_opu.as_teacher(each).probs(x) for each in (own, other))
    mine, theirs = fast.uncertainty(x).epistemic, pyro_opu.uncertainty(draws).epistemic
    probs = fast.dirichlet(x).mean
    area, reached = (roc_auc_score(y, each[:, 1]) for each in (draws.mean(0), probs))
    kl = torch.special.xlogy(draws.mean(0), draws.mean(0) / probs).sum(-1).mean()
    return {
        "AUC": area,
        "student's": reached,
        "share of AUC": reached / area,
        "rank correlation": spearman(mine, theirs),
        "another forest": spearman(pyro_opu.uncertainty(again).epistemic, theirs),
        "KL": float(kl),
        "mutual information": float(mine.mean()),
        "teacher's": float(theirs.mean()),
    }


def priced(fast, own, row: Tensor, budget: float) -> dict[str, float]:
    """Milliseconds of one row."""
    teacher, array = pyro_opu.as_teacher(own), np.asarray(row)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "student.onnx"
        fast.export(path, row)
        session = onnxruntime.InferenceSession(path, options)
    ensembles = {
        "predict_proba, ms": lambda: own.predict_proba(array),
        "all trees, ms": lambda: teacher.probs(row),
    }
    students = {
        "dirichlet, ms": lambda: fast.dirichlet(row),
        "uncertainty, ms": lambda: fast.uncertainty(row),
        "ONNX, ms": lambda: session.run(None, {"x": array}),
    }
    found = {}
    for ways in (ensembles, students):  # not in turn: 500 trees empty the caches
        for name, way in ways.items():
            found[name] = 1e3 * timed({"": way}, budget / len(ways))[""]
    return found | {
        "predict_proba / dirichlet": found["predict_proba, ms"] / found["dirichlet, ms"]
    }


if __name__ == "__main__":
    main()
