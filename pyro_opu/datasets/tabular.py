"""Data sets that are tables of numbers: Pima, Spambase and Boston Housing."""

from __future__ import annotations

from io import StringIO
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from pyro_opu.datasets.record import Dataset
from pyro_opu.datasets.sources import File, PathLike, content

__all__ = ["Missing", "boston_housing", "pima", "spambase"]

Missing = Literal["keep", "nan", "median", "drop"]

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
PIMA = File(
    "uci/pima-indians-diabetes.csv",
    "b43dd020fa775d93fced49f959c227ed",
    (  # UCI no longer gives it out
        "https://raw.githubusercontent.com/plotly/datasets/348b89b48db1668e73b413dc56baed489a3ee27c"
        "/diabetes.csv",
    ),
    any_line_end=True,
)
SPAMBASE = File(
    "uci/spambase.data",
    "2e66f086f61a3af28ddb96a82dcb0297",
    (f"{_UCI}/spambase/spambase.data",),
    any_line_end=True,
)
HOUSING = File(
    "uci/housing.data",
    "d4accdce7a25600298819f8e28e8d593",
    (f"{_UCI}/housing/housing.data",),
    any_line_end=True,
)

_PIMA_COLUMNS = (
    "Pregnancies Glucose BloodPressure SkinThickness Insulin BMI DiabetesPedigreeFunction Age"
).split()
_NEVER_ZERO = slice(1, 6)  # Glucose to BMI
_SPAM_WORDS = (
    "make address all 3d our over remove internet order mail receive will people report addresses "
    "free business email you credit your font 000 money hp hpl george 650 lab labs telnet 857 data "
    "415 85 technology 1999 parts pm direct cs meeting original project re edu table conference"
).split()
_SPAM_RUNS = [f"capital_run_length_{kind}" for kind in ("average", "longest", "total")]
_HOUSING_COLUMNS = "CRIM ZN INDUS CHAS NOX RM AGE DIS RAD TAX PTRATIO B LSTAT".split()


def pima(
    missing: Missing = "keep", *, root: PathLike | None = None, download: bool = True
) -> Dataset:
    """Pima Indians Diabetes: 768 women, 8 measurements, diabetes or not (500 to 268).

    A zero stands for a missing value in Glucose (5 rows), BloodPressure (35), SkinThickness (227),
    Insulin (374) and BMI (11); the papers take them as they are. (The 769 points of 9 dimensions in
    the OPU paper count the header line and the label.)

    Args:
        missing: What becomes of those zeros. ``"keep"``: they stay. ``"nan"``: they become NaN, to
            be imputed by statistics of the training rows alone. ``"median"``: the median of the
            column where it is known, over *all* rows, so that a little of the later test rows leaks
            into the training rows. ``"drop"``: the 392 complete rows only, 262 to 130; these are
            not a random sample of all.
        root: The folder of the data sets; see :mod:`pyro_opu.datasets`.
        download: Whether to download (24 kB) what the cache lacks, where no folder is given.

    Returns:
        ``x`` ``(768, 8)``, ``y`` ``(768,)``, 1 for diabetes.

    Raises:
        FileNotFoundError: the file is not there and was not downloaded.
        ValueError: an unknown ``missing``, or a damaged file.

    Example:
        >>> pima()
        Dataset('pima': 768 x 8, 2 classes)

    References:
        Smith et al.: Using the ADAP learning algorithm to forecast the onset of diabetes mellitus
        (1988). Section 4.2 of Cui et al. (2019).
    """
    if missing not in get_args(Missing):
        raise ValueError(
            f"`missing` must be one of {', '.join(map(repr, get_args(Missing)))}; got "
            f"{missing!r}. Write pima(missing='keep') for the data as published."
        )
    table = _table(content(PIMA, root, download), delimiter=",", skiprows=1)
    if missing != "keep":
        measured = table[:, _NEVER_ZERO]  # a view: what is set here is set in the table
        measured[measured == 0] = np.nan
    if missing == "median":
        measured[:] = np.where(np.isnan(measured), np.nanmedian(measured, 0), measured)
    if missing == "drop":
        table = table[~np.isnan(table).any(1)]
    return _labelled(table, "pima", _PIMA_COLUMNS, ("no diabetes", "diabetes"))


def spambase(*, root: PathLike | None = None, download: bool = True) -> Dataset:
    """Spambase: 4,601 e-mails, 57 frequencies, spam or not (1,813 to 2,788).

    48 word and 6 character frequencies in percent, and 3 lengths of runs of capitals on a far
    larger scale (up to 15,841). The rows are sorted by class, spam first: split them at random, as
    :func:`~pyro_opu.datasets.split` does.

    Args:
        root: The folder of the data sets; see :mod:`pyro_opu.datasets`.
        download: Whether to download (0.7 MB) what the cache lacks, where no folder is given.

    Returns:
        ``x`` ``(4601, 57)``, ``y`` ``(4601,)``, 1 for spam.

    Raises:
        FileNotFoundError: the file is not there and was not downloaded.
        ValueError: a damaged file.

    Example:
        >>> spambase()
        Dataset('spambase': 4601 x 57, 2 classes)

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
    ``split(boston_housing(), test=50, seed=seed)``.

    Args:
        root: The folder of the data sets; see :mod:`pyro_opu.datasets`.
        download: Whether to download (49 kB) what the cache lacks, where no folder is given.

    Returns:
        ``x`` ``(506, 13)``, ``y`` ``(506,)``, real.

    Raises:
        FileNotFoundError: the file is not there and was not downloaded.
        ValueError: a damaged file.

    Example:
        >>> boston_housing()
        Dataset('boston_housing': 506 x 13)

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
