"""The data sets of the papers: loaded as published, split and scaled by functions of their own.

Every loader returns a :class:`Dataset`: inputs ``x``, labels or targets ``y``, and their names.
Nothing is scaled on loading; :func:`split` first, then :func:`standardize` or :func:`l2_columns`,
which are fitted on the training part:

    >>> from pyro_opu import datasets
    >>> train, test = datasets.split(datasets.two_moons(200), test=0.1, seed=0)
    >>> train, test = datasets.standardize(train, test)
    >>> train
    Dataset('two_moons': 180 x 2, 2 classes)

Files are looked for in the folder ``root``, else in the folder that the environment variable
``PYRO_OPU_DATA`` names at the time of the call; nothing is ever written there. Where neither is
given, they are taken from a cache folder, ``$XDG_CACHE_HOME/pyro_opu`` or ``~/.cache/pyro_opu``,
and downloaded into it if need be. Every file, found or downloaded, is checked against its md5 sum.
"""

from __future__ import annotations

from pyro_opu.datasets.images import fashion_mnist, kmnist, mnist, semeion
from pyro_opu.datasets.record import Dataset, split
from pyro_opu.datasets.scaling import l2_columns, standardize
from pyro_opu.datasets.tabular import boston_housing, pima, spambase
from pyro_opu.datasets.toys import toy_classification, toy_regression, two_moons

__all__ = [
    "Dataset",
    "boston_housing",
    "fashion_mnist",
    "kmnist",
    "l2_columns",
    "mnist",
    "pima",
    "semeion",
    "spambase",
    "split",
    "standardize",
    "toy_classification",
    "toy_regression",
    "two_moons",
]
