"""Tabular data sets: Pima, Spambase and Boston Housing."""

from __future__ import annotations

from io import StringIO

import numpy as np
import torch
from numpy.typing import NDArray

from papers.datasets.record import Dataset
from papers.datasets.sources import File, PathLike, content

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
_PLOTLY = "https://raw.githubusercontent.com/plotly/datasets/"  # Pima is no longer at UCI


def _file(name: str, md5: str, url: str) -> File:
    return File(f"uci/{name}", md5, (url,), any_line_end=True)


PIMA = _file(
    "pima-indians-diabetes.csv",
    "b43dd020fa775d93fced49f959c227ed",
    f"{_PLOTLY}348b89b48db1668e73b413dc56baed489a3ee27c/diabetes.csv",
)
SPAMBASE = _file(
    "spambase.data", "2e66f086f61a3af28ddb96a82dcb0297", f"{_UCI}spambase/spambase.data"
)
HOUSING = _file("housing.data", "d4accdce7a25600298819f8e28e8d593", f"{_UCI}housing/housing.data")

_PIMA_COLUMNS = (
    "Pregnancies Glucose BloodPressure SkinThickness Insulin BMI DiabetesPedigreeFunction Age"
).split()
_SPAM_WORDS = (
    "make address all 3d our over remove internet order mail receive will people report addresses "
    "free business email you credit your font 000 money hp hpl george 650 lab labs telnet 857 data "
    "415 85 technology 1999 parts pm direct cs meeting original project re edu table conference"
).split()
_SPAM_RUNS = [f"capital_run_length_{kind}" for kind in ("average", "longest", "total")]
_HOUSING_COLUMNS = "CRIM ZN INDUS CHAS NOX RM AGE DIS RAD TAX PTRATIO B LSTAT".split()


def pima(*, root: PathLike | None = None, download: bool = True) -> Dataset:
    """Pima Indians Diabetes: 768 women, 8 measurements, diabetes (1) or not (500 to 268).

    A zero stands for a missing value in Glucose (5 rows), BloodPressure (35), SkinThickness (227),
    Insulin (374) and BMI (11); the papers take them as they are. The OPU paper's 769 x 9 count the
    header line and the label. ``root`` and ``download`` (24 kB) are as of :func:`mnist`.

    Example:
        >>> pima()
        Dataset('pima': 768 x 8, 2 classes)

    References:
        Smith et al.: Using the ADAP learning algorithm to forecast the onset of diabetes mellitus
        (1988). Section 4.2 of Cui et al. (2019).
    """
    table = _table(content(PIMA, root, download), delimiter=",", skiprows=1)
    return _labelled(table, "pima", _PIMA_COLUMNS, ("no diabetes", "diabetes"))


def spambase(*, root: PathLike | None = None, download: bool = True) -> Dataset:
    """Spambase: 4,601 e-mails, 57 features, spam (1) or not (1,813 to 2,788).

    48 word and 6 character frequencies in percent, and 3 lengths of runs of capitals on a far
    larger scale (up to 15,841). The rows are sorted by class, spam first. ``root`` and ``download``
    (0.7 MB) are as of :func:`mnist`.

    References:
        Hopkins, Reeber, Forman, Suermondt: Spambase (1999), doi:10.24432/C53G6X. Section 4.2 of
        Cui et al. (2019).
    """
    table = _table(content(SPAMBASE, root, download), delimiter=",")
    words = [f"word_freq_{word}" for word in _SPAM_WORDS]
    signs = [f"char_freq_{sign}" for sign in ";([!$#"]
    return _labelled(table, "spambase", [*words, *signs, *_SPAM_RUNS], ("not spam", "spam"))


def boston_housing(*, root: PathLike | None = None, download: bool = True) -> Dataset:
    """Boston Housing: 506 tracts, 13 features, the median value of homes in $1000. Regression.

    For comparison with published tables only. Column B encodes the proportion of Black residents,
    on the assumption that segregation raises prices, and several libraries have withdrawn the data
    set on ethical grounds. Conclude nothing about houses or people from it.

    Bayesian Dark Knowledge trains on 456 rows and tests on 50, 20 times with different rows:
    ``split(boston_housing(), test=50, seed=seed)``. ``root`` and ``download`` (49 kB) are as of
    :func:`mnist`.

    References:
        Harrison, Rubinfeld: Hedonic prices and the demand for clean air (1978). Section 3.4 of
        Korattikara et al.: Bayesian dark knowledge (2015).
    """
    table = torch.from_numpy(_table(content(HOUSING, root, download)))
    x, y = table[:, :-1].float(), table[:, -1].float()
    return Dataset(x, y, "boston_housing", tuple(_HOUSING_COLUMNS))


def _table(data: bytes, delimiter: str | None = None, skiprows: int = 0) -> NDArray[np.float64]:
    text = StringIO(data.decode("ascii"))
    table: NDArray[np.float64] = np.loadtxt(text, delimiter=delimiter, skiprows=skiprows)
    return table


def _labelled(
    table: NDArray[np.float64], name: str, features: list[str], classes: tuple[str, ...]
) -> Dataset:
    """A table whose last column is the class."""
    x, y = torch.from_numpy(table[:, :-1]).float(), torch.from_numpy(table[:, -1]).long()
    return Dataset(x, y, name, tuple(features), classes)
