"""Bad calls of data sets."""

from functools import partial

import torch

from bad_calls.models import BROKEN, NAN, X, Y
from bad_calls.table import arguments, values
from pyro_opu import datasets

TOY = datasets.toy_classification()
values("datasets.split", partial(datasets.split, TOY), test=[0.0, 1.0, 20, NAN, "0.1", True, None])
values("datasets.split", partial(datasets.split, TOY), seed=[1.5, "0"])
values("datasets.split", datasets.split, dataset={"a tensor": X, "None": None})
values("datasets.two_moons", datasets.two_moons, n=[1, 2.5, "200"])
values("datasets.two_moons", datasets.two_moons, noise=[-0.1, NAN, "0.1"], seed=[1.5, "0", -1])
values("datasets.toy_regression", datasets.toy_regression, n=[0, 2.5, "20"], seed=[1.5, "0"])
values("datasets.toy_classification", datasets.toy_classification, seed=[1.5, "0"])
values("datasets.semeion", datasets.semeion, size=[0, 2.5, "16"], pad=[-1, 1.5])
values("datasets.pima", datasets.pima, root=[3])
values("datasets.mnist", partial(datasets.mnist, download=False), root=["nowhere", 3])
values("datasets.mnist", partial(datasets.mnist, root="nowhere"), train=["test"])
values("datasets.kmnist", partial(datasets.kmnist, download=False), root=["nowhere"])
arguments(
    "datasets.standardize",
    datasets.standardize,
    {
        "a list": (X.tolist(),),
        "no rows": (X[:0],),
        "labels": (Y,),
        "one row": (X[0],),
        "other columns": (X, X[:, :2]),
        "columns with NaN": (BROKEN,),
    },
)
arguments("datasets.l2_columns", datasets.l2_columns, {"a list": (X, X.tolist())})
arguments(
    "Dataset",
    datasets.Dataset,
    {
        "labels of another length": (X, Y[:7], "mine"),
        "a list": (X.tolist(), Y, "mine"),
        "names of other columns": (X, Y, "mine", ("a",)),
    },
)
arguments("Dataset.take", TOY.take, {"rows that are not there": (torch.tensor([99]),)})
