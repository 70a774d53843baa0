"""Small synthetic data sets, each with its own seed."""

from __future__ import annotations

import torch

from papers.datasets.record import Dataset, generator
from pyro_opu.checks import in_range, positive_int


def two_moons(n: int = 200, noise: float = 0.1, seed: int = 0) -> Dataset:
    """``n`` points of two interleaved half circles, each a class: scikit-learn's ``make_moons``.

    ``noise`` is its standard deviation on both coordinates; ``seed`` sets it and the rows' order.

    Example:
        >>> two_moons(100, noise=0.2)
        Dataset('two_moons': 100 x 2, 2 classes)
    """
    n = positive_int("n", n, 2, "A point for each class.")
    in_range("noise", noise, 0)
    seed = positive_int("seed", seed, 0)
    from sklearn.datasets import make_moons

    x, y = make_moons(n, noise=noise, random_state=seed)
    inputs, labels = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.int64)
    return Dataset(inputs, labels, "two_moons", ("x1", "x2"), ("0", "1"))


def toy_classification(seed: int = 0) -> Dataset:
    r"""Twenty points of two classes in the plane, after Bayesian Dark Knowledge; one ``seed``.

    The paper's points are not published. These are ten draws each from
    :math:`N((-2, 2), 1.5^2 I)`, class 0, and :math:`N((2, -2), 1.5^2 I)`, class 1. The best
    boundary is the rising diagonal, with 3 % of the points expected beyond it. Most of the square
    :math:`[-10, 10]^2` on which the paper distils its students holds no data.

    References:
        Section 3.1 of Korattikara, Rathod, Murphy, Welling: Bayesian dark knowledge (2015).
    """
    noise = generator(seed)
    y = torch.arange(2).repeat_interleave(10)
    centre = torch.tensor([[-2.0, 2.0], [2.0, -2.0]])[y]
    x = centre + 1.5 * torch.randn(20, 2, generator=noise)
    return Dataset(x, y, "toy_classification", ("x1", "x2"), ("0", "1"))


def toy_regression(n: int = 20, seed: int = 0) -> Dataset:
    r"""``n`` points of a cubic with noise of standard deviation 3, drawn with this ``seed``.

    .. math:: y = x^3 + \epsilon, \qquad x \sim U(-4, 4), \quad \epsilon \sim N(0, 9)

    References:
        Section 3.3 of Korattikara, Rathod, Murphy, Welling: Bayesian dark knowledge (2015).
        Hernandez-Lobato, Adams: Probabilistic backpropagation for scalable learning of Bayesian
        neural networks (2015), whose data this follows.
    """
    n = positive_int("n", n)
    noise = generator(seed)
    x = 8.0 * torch.rand(n, 1, generator=noise) - 4.0
    y = x[:, 0] ** 3 + 3.0 * torch.randn(n, generator=noise)
    return Dataset(x, y, "toy_regression", ("x",))
