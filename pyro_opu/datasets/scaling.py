"""Scaling by column, fitted on the training rows and applied to all."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from pyro_opu.checks import check_inputs, check_row_shape
from pyro_opu.datasets.record import Dataset

__all__ = ["l2_columns", "standardize"]

#: Data sets, or tensors of inputs alone.
Rows = TypeVar("Rows", Tensor, Dataset)


def standardize(train: Rows, *others: Rows) -> tuple[Rows, ...]:
    r"""Shift and scale columns to mean 0 and standard deviation 1.

    .. math:: x_{nd} \mapsto (x_{nd} - m_d) / s_d, \qquad
              m_d = \frac1N \sum_n x_{nd}, \quad s_d^2 = \frac1N \sum_n (x_{nd} - m_d)^2

    with sums over the training rows only. A column that is constant in the training rows is
    shifted to 0 and not scaled. Targets are not scaled.

    Args:
        train: Training rows, a ``Dataset`` or a tensor ``(N, D)`` or ``(N, *input_shape)``.
        *others: More rows with the same columns. All come back in the same order, type and dtype.

    Example:
        >>> train, test = standardize(torch.tensor([[0.0], [2.0]]), torch.tensor([[5.0]]))
        >>> train.T, test
        (tensor([[-1.,  1.]]), tensor([[4.]]))
    """
    x = _checked(train, *others)
    constant = (x == x[0]).all(0)
    mean = torch.where(constant, x[0], x.mean(0))  # exact, where rounding would leave a rest
    scale = torch.where(constant, 1.0, x.std(0, correction=0))
    return tuple(_scaled(rows, mean, scale) for rows in (train,) + others)


def l2_columns(train: Rows, *others: Rows) -> tuple[Rows, ...]:
    r"""Scale columns to norm 1, the "normalize by features with L2 norm" of the OPU paper.

    .. math:: x_{nd} \mapsto x_{nd} / v_d, \qquad v_d^2 = \sum_n x_{nd}^2

    with the sum over the training rows only; columns of zeros stay. Arguments and results are as
    of :func:`standardize`.

    Entries are of size :math:`1/\sqrt N`, N the number of *training* rows, so that the meaning of
    a prior on weights depends on N. Under unit normal weights a logistic regression has logits near
    0 and hardly learns: the posterior mode on Pima is right for 66 % of the test rows (the larger
    class: 65 %), under weights of scale :math:`\sqrt N`, or with :func:`standardize`, for 77 %
    (means of 3 splits). Unit normal out-of-distribution inputs differ from such data by their norm
    alone.

    Example:
        >>> train, test = l2_columns(torch.tensor([[3.0], [4.0]]), torch.tensor([[1.0]]))
        >>> train.T, test
        (tensor([[0.6000, 0.8000]]), tensor([[0.2000]]))

    References:
        Section 4.2 of Cui, Yao, Li, Chan, Xue: Accelerating Monte Carlo Bayesian inference via
        approximating predictive uncertainty over simplex (2019). It does not say whether the norm
        is that of the training rows; here it is.
    """
    x = _checked(train, *others)
    norm = torch.linalg.vector_norm(x, dim=0)
    scale = torch.where(norm > 0, norm, 1.0)
    return tuple(_scaled(rows, torch.zeros_like(scale), scale) for rows in (train,) + others)


def _inputs(rows: Tensor | Dataset) -> Tensor:
    return rows.x if isinstance(rows, Dataset) else rows


def _scaled(rows: Rows, shift: Tensor, scale: Tensor) -> Rows:
    x = _inputs(rows)
    scaled = ((x.double() - shift) / scale).to(x.dtype)
    return replace(rows, x=scaled) if isinstance(rows, Dataset) else scaled


def _checked(*parts: Tensor | Dataset) -> Tensor:
    """Check all parts; the training inputs, which come first, in float64."""
    for index, rows in enumerate(parts):
        name = f"others[{index - 1}]" if index else "train"
        _check_no_missing(name, rows)
        x = check_inputs(_inputs(rows), name)
        shape = _inputs(parts[0]).shape[1:]
        check_row_shape(name, x, shape, "Pass the columns of `train`: parts of one data set.")
    return _inputs(parts[0]).double()


def _check_no_missing(name: str, rows: Tensor | Dataset) -> None:
    x = _inputs(rows)
    if not isinstance(x, Tensor) or not x.isnan().any():
        return
    columns = x.isnan().any(0).nonzero()
    where = f"{len(columns)} columns"
    if isinstance(rows, Dataset) and rows.feature_names:
        where = ", ".join(rows.feature_names[int(column)] for column in columns)
    raise ValueError(
        f"`{name}` must not hold missing values; got NaN in {where}. Impute them first, or load "
        "the data with another choice of `missing=`, such as 'median' or 'drop'."
    )
