"""A loaded data set, and how it is split and scaled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from pyro_opu.checks import check_inputs, check_row_shape, check_tensor, instance_of, positive_int


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Inputs, labels or targets, and their names.

    Attributes:
        x: Inputs ``(N, D)`` or ``(N, H, W)``, float32.
        y: Class labels ``(N,)``, int64 in ``[0, C)``; for regression targets ``(N,)``, float32.
        name: Name of the data set.
        feature_names: D names; empty for images.
        class_names: C names; empty for regression.

    Example:
        >>> data = Dataset(torch.zeros(5, 2), torch.tensor([0, 1, 1, 0, 1]), "mine", ("a", "b"))
        >>> len(data), data.take(slice(3))
        (5, Dataset('mine': 3 x 2))
    """

    x: Tensor
    y: Tensor
    name: str
    feature_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_tensor("x", self.x, "(N, D)")
        if self.x.shape[:1] != check_tensor("y", self.y, "(N,)").shape:
            raise ValueError(
                "`y` must have shape (N,) with one entry for each of the N rows of `x`; got y "
                f"{tuple(self.y.shape)} and x {tuple(self.x.shape)}. Pass matching rows."
            )
        if self.feature_names and len(self.feature_names) != self.x[0:1].numel():
            raise ValueError(
                f"`feature_names` must name the {self.x[0:1].numel()} columns of `x`; got "
                f"{len(self.feature_names)} names. Leave them out for images."
            )

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        sizes = " x ".join(map(str, self.x.shape))
        if self.class_names:
            return f"Dataset({self.name!r}: {sizes}, {len(self.class_names)} classes)"
        return f"Dataset({self.name!r}: {sizes})"

    def take(self, rows: Tensor | slice) -> Dataset:
        """The data set of these rows, indices ``(M,)`` or a slice."""
        try:
            return replace(self, x=self.x[rows], y=self.y[rows])
        except IndexError as error:
            raise ValueError(
                f"`rows` must be indices of the {len(self)} rows, or a slice; got {rows!r}. {error}"
            ) from error


#: Data sets, or tensors of inputs alone.
Rows = TypeVar("Rows", Tensor, Dataset)


def generator(seed: int) -> torch.Generator:
    """A seeded generator on the CPU."""
    return torch.Generator().manual_seed(positive_int("seed", seed, -(2**63)))


def split(dataset: Dataset, test: float | int = 0.1, seed: int = 0) -> tuple[Dataset, Dataset]:
    """Split the rows at random into ``(train, test)``.

    ``test`` is the fraction of the rows of ``dataset`` to test on, a float in (0, 1), or their
    number. They are the first in the order ``torch.randperm(N, generator=g)``, g a new CPU
    generator with this ``seed``: with one seed, a smaller test set is part of a larger one.
    """
    advice = 'Make one of tensors: Dataset(x, y, "mine").'
    instance_of("dataset", dataset, Dataset, "a Dataset", advice)
    whole = isinstance(test, int) and not isinstance(test, bool)
    if not whole and not (isinstance(test, float) and 0 < test < 1):
        raise ValueError(
            f"`test` must be a fraction of the rows, in (0, 1), or their number; got {test!r}. "
            "Write 0.1 for a tenth, 50 for fifty rows."
        )
    rows = round(test * len(dataset)) if isinstance(test, float) else test
    if not 0 < rows < len(dataset):
        raise ValueError(
            "`test` must leave at least one row on either side; got "
            f"{test!r} of {len(dataset)} rows, which is {rows}. Choose another part."
        )
    order = torch.randperm(len(dataset), generator=generator(seed)).to(dataset.x.device)
    return dataset.take(order[rows:]), dataset.take(order[:rows])


def standardize(train: Rows, *others: Rows) -> tuple[Rows, ...]:
    r"""Shift and scale columns to mean 0 and standard deviation 1.

    .. math:: x_{nd} \mapsto (x_{nd} - m_d) / s_d, \qquad
              m_d = \frac1N \sum_n x_{nd}, \quad s_d^2 = \frac1N \sum_n (x_{nd} - m_d)^2

    with sums over the training rows only. A column that is constant in the training rows is
    shifted to 0 and not scaled. Targets are not scaled. ``train`` and ``others`` are data sets or
    tensors ``(N, D)`` or ``(N, *input_shape)``, and come back in order, type and dtype.

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

    with the sum over the training rows only; columns of zeros stay. ``train`` and ``others`` are as
    of :func:`standardize`.

    Entries are of size :math:`1/\sqrt N`, so what a prior on weights means depends on N: on Pima
    the posterior mode of a logistic regression is right for 66 % of the test rows under unit normal
    weights (the larger class: 65 %), for 77 % under weights of scale :math:`\sqrt N`, or with
    :func:`standardize` (means of 3 splits).

    References:
        Section 4.2 of Cui et al. (2019), which does not say whether the norm is that of the
        training rows; here it is.
    """
    x = _checked(train, *others)
    norm = torch.linalg.vector_norm(x, dim=0)
    scale = torch.where(norm > 0, norm, 1.0)
    return tuple(_scaled(rows, torch.zeros_like(scale), scale) for rows in (train,) + others)


def _scaled(rows: Rows, shift: Tensor, scale: Tensor) -> Rows:
    if isinstance(rows, Dataset):
        return replace(rows, x=_scaled(rows.x, shift, scale))
    return ((rows.double() - shift) / scale).to(rows.dtype)


def _checked(*parts: Tensor | Dataset) -> Tensor:
    """Check all parts; the training inputs, which come first, in float64."""
    inputs = [rows.x if isinstance(rows, Dataset) else rows for rows in parts]
    for index, (rows, x) in enumerate(zip(parts, inputs, strict=True)):
        name = f"others[{index - 1}]" if index else "train"
        if isinstance(x, Tensor) and x.isnan().any():
            columns = x.isnan().any(0).nonzero()
            where = f"{len(columns)} columns"
            if isinstance(rows, Dataset) and rows.feature_names:
                where = ", ".join(rows.feature_names[int(column)] for column in columns)
            raise ValueError(
                f"`{name}` must not hold missing values; got NaN in {where}. Impute them first, or "
                "drop those rows or columns."
            )
        advice = "Pass the columns of `train`: parts of one data set."
        check_row_shape(name, check_inputs(x, name), inputs[0].shape[1:], advice)
    return inputs[0].double()
