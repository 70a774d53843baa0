"""A loaded data set, and how it is split."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_opu.checks import check_tensor, instance_of, positive_int

__all__ = ["Dataset", "split"]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Inputs, labels or targets, and their names.

    Attributes:
        x: Inputs ``(N, D)`` or ``(N, H, W)``, float32.
        y: Class labels ``(N,)``, int64 in ``[0, C)``; for regression targets ``(N,)``, float32.
        name: Name of the data set.
        feature_names: ``D`` names; none for images.
        class_names: ``C`` names; none for regression.

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


def generator(seed: int) -> torch.Generator:
    """A seeded generator on the CPU."""
    return torch.Generator().manual_seed(positive_int("seed", seed, -(2**63)))


def split(dataset: Dataset, test: float | int = 0.1, seed: int = 0) -> tuple[Dataset, Dataset]:
    """Split the rows at random into ``(train, test)``.

    The first rows in the order ``torch.randperm(N, generator=g)``, g a new CPU generator with this
    seed, are the test rows. Torch's global generators are not used. With one seed, a smaller test
    set is part of a larger one.

    Args:
        dataset: The data set to split.
        test: The fraction of the rows to test on, a float in (0, 1), or their number, an integer.
        seed: Seed of the order.

    Example:
        >>> split(Dataset(torch.zeros(768, 8), torch.zeros(768), "mine"), test=0.1)
        (Dataset('mine': 691 x 8), Dataset('mine': 77 x 8))
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
