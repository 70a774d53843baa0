"""Data sets of the papers, loaded as published, and functions that split and scale them.

Every loader returns a :class:`Dataset` with inputs ``x`` and labels or targets ``y``. Nothing is
scaled on loading; :func:`split` first, then :func:`standardize` or :func:`l2_columns`, which are
fitted on the training rows:

    >>> from papers import datasets
    >>> train, test = datasets.split(datasets.two_moons(200), test=0.1, seed=0)
    >>> train, test = datasets.standardize(train, test)
    >>> train
    Dataset('two_moons': 180 x 2, 2 classes)

Files are read from the folder ``root``, else from the folder that the environment variable
``PYRO_OPU_DATA`` names; neither is written to. Where neither is given, they are read from a cache
folder, ``$XDG_CACHE_HOME/pyro_opu`` or ``~/.cache/pyro_opu``, and downloaded into it if missing,
unless ``download=False``. A missing file raises ``FileNotFoundError``, one with another md5 sum
``ValueError``.
"""

from __future__ import annotations

from papers.datasets.images import fashion_mnist, kmnist, mnist, semeion
from papers.datasets.record import Dataset, l2_columns, split, standardize
from papers.datasets.tabular import boston_housing, pima, spambase
from papers.datasets.toys import toy_classification, toy_regression, two_moons

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
