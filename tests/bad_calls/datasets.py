"""Bad calls of data sets."""

from functools import partial

import torch

from bad_calls.models import BROKEN, NAN, X, Y
from bad_calls.table import arguments, values
from pyro_opu import datasets

TOY = datasets.toy_classification()
# fmt: off
values(datasets.split, TOY, test=[0.0, 1.0, 20, NAN, "0.1", True, None])
values(datasets.split, TOY, seed=[1.5, "0"])
values(datasets.split, dataset={"a tensor": X, "None": None})
values(datasets.two_moons, n=[1, 2.5, "200"])
values(datasets.two_moons, noise=[-0.1, NAN, "0.1"], seed=[1.5, "0", -1])
values(datasets.toy_regression, n=[0, 2.5, "20"], seed=[1.5, "0"])
values(datasets.toy_classification, seed=[1.5, "0"])
values(datasets.semeion, size=[0, 2.5, "16"], pad=[-1, 1.5])
values(datasets.pima, root=[3])
values(partial(datasets.mnist, download=False), root=["nowhere", 3])
values(partial(datasets.mnist, root="nowhere"), train=["test"])
values(partial(datasets.kmnist, download=False), root=["nowhere"])
arguments(datasets.standardize, {
    "a list": (X.tolist(),),
    "no rows": (X[:0],),
    "labels": (Y,),
    "one row": (X[0],),
    "other columns": (X, X[:, :2]),
    "columns with NaN": (BROKEN,)})
arguments(datasets.l2_columns, {"a list": (X, X.tolist())})
arguments(datasets.Dataset, {
    "labels of another length": (X, Y[:7], "mine"),
    "a list": (X.tolist(), Y, "mine"),
    "names of other columns": (X, Y, "mine", ("a",))})
arguments(TOY.take, {"rows that are not there": (torch.tensor([99]),)})
