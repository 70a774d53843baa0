"""Bad calls of the data sets, for ``bad_input``."""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.bad_input import Cases
from benchmarks.bad_input_models import BROKEN, NAN, X, Y
from pyro_opu import datasets

CASES = Cases()
add, each = CASES.add, CASES.each

each("datasets.split", partial(datasets.split, datasets.toy_classification()), "test",
     0.0, 1.0, 20, NAN, "0.1", True, None)  # fmt: skip
each("datasets.split", partial(datasets.split, datasets.toy_classification()), "seed", 1.5, "0")
each("datasets.split", datasets.split, "dataset", X, None)
each("datasets.two_moons", datasets.two_moons, "n", 1, 2.5, "200")
each("datasets.two_moons", datasets.two_moons, "noise", -0.1, NAN, "0.1")
each("datasets.two_moons", datasets.two_moons, "seed", 1.5, "0", -1)
each("datasets.toy_regression", datasets.toy_regression, "n", 0, 2.5, "20")
each("datasets.toy_regression", datasets.toy_regression, "seed", 1.5, "0")
each("datasets.toy_classification", datasets.toy_classification, "seed", 1.5, "0")
each("datasets.semeion", datasets.semeion, "size", 0, 2.5, "16")
each("datasets.semeion", datasets.semeion, "pad", -1, 1.5)
each("datasets.pima", datasets.pima, "root", 3)
each("datasets.mnist", datasets.mnist, "root", "nowhere", 3, download=False)
each("datasets.mnist", datasets.mnist, "train", "test", root="nowhere")
each("datasets.standardize", datasets.standardize, "train", X.tolist(), X[:0], Y, X[0])
add("datasets.standardize", "other columns", datasets.standardize, X, X[:, :2])
add("datasets.l2_columns", "a list", datasets.l2_columns, X, X.tolist())
add("Dataset", "labels of another length", datasets.Dataset, X, Y[:7], "mine")
add("Dataset", "a list", datasets.Dataset, X.tolist(), Y, "mine")
add("Dataset", "names of other columns", datasets.Dataset, X, Y, "mine", ("a",))
add("Dataset.take", "rows that are not there", datasets.toy_classification().take,
    torch.tensor([99]))  # fmt: skip
add("datasets.standardize", "columns with NaN", datasets.standardize, BROKEN)
add("datasets.kmnist", "not there", datasets.kmnist, train=True, root="nowhere", download=False)
