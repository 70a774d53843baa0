"""Pima and Spambase in two protocols: scaling, and the inputs from outside.

Every seed is a split, with 10 % of the rows for testing. Scaling, training and the inputs that
teach a student come from the other rows. There are two protocols.

"paper": columns of Euclidean norm 1, outside inputs from N(0, 1) in each of the scaled columns. The
paper says "a zero-mean multivariate Gaussian", and neither its covariance nor whether the data were
scaled before. There are as many as test rows, as "the same number of data points" is understood
here: with ten times as many as test rows no AUPR would be near 50 %, and the paper has 53.5.

"strict": columns standardised. Outside inputs, as many as test rows, that are hard to tell by norm
or mean:

- "shuffled columns": the test rows with every column in a random order of its own;
- "matched Gaussian": the mean and covariance of the training rows;
- "swapped columns": the test rows, all with their columns in one other order. The rows' norms and
  means are the same numbers, so the trivial row has an AUROC of exactly 50 %.

A student is taught at training rows, without their labels, and at what `default_transfer` makes of
them, some by shuffling columns or from Gaussians of 2 and 4 deviations; a tenth of its inputs are
rows moved along the line through the mean, up to 128 times as far or as near. Without these, the
student of Pima in the paper's protocol had never seen an input a tenth as far as the unit Gaussian,
26 deviations away, and was surest there (AUROC 5 where its teacher's is 100). So this was chosen by
an outside set of these tables, as Spambase's number of steps was; and "shuffled columns" and
"matched Gaussian" are made as some transfer inputs are. No student is told what is outside; the
teacher labels all. Measures and times are those of ``papers.tables``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from papers import datasets
from papers.tables import Split
from pyro_opu.transfer import Mixture, Stretch, default_transfer

DATA, PROTOCOLS = ("pima", "spambase"), ("paper", "strict")
SCALINGS = dict(zip(PROTOCOLS, (datasets.l2_columns, datasets.standardize), strict=True))


def prepared(data: str, protocol: str, seed: int, quick: bool = False) -> Split:
    """The split of this seed, scaled as the protocol says."""
    whole = getattr(datasets, data)()
    train, test = SCALINGS[protocol](*datasets.split(whole, test=0.1, seed=seed))
    return Split(train, test, outside(protocol, train.x, test.x, seed))


def outside(protocol: str, train: Tensor, test: Tensor, seed: int) -> dict[str, Tensor]:
    """As many inputs from elsewhere as test rows, ``(M, D)`` each."""
    generator = torch.Generator().manual_seed(1000 + seed)
    rows, columns = test.shape
    if protocol == "paper":
        return {"unit Gaussian": torch.randn(rows, columns, generator=generator)}
    orders = torch.rand(rows, columns, generator=generator).argsort(0)
    center = train.mean(0)
    # Such sums of centred rows have the rows' covariance, also where that is singular.
    mixed = torch.randn(rows, len(train), generator=generator) @ (train - center)
    return {
        "shuffled columns": test.gather(0, orders),
        "matched Gaussian": center + mixed / len(train) ** 0.5,
        "swapped columns": test[:, derangement(columns, generator)],
    }


def transfer(x: Tensor) -> Mixture:
    """Inputs around the rows, and far out."""
    return Mixture([(0.9, default_transfer(x)), (0.1, Stretch(128.0))])


def derangement(columns: int, generator: torch.Generator) -> Tensor:
    """A random order that leaves no column where it was."""
    while True:
        order = torch.randperm(columns, generator=generator)
        if bool((order != torch.arange(columns)).all()):
            return order
