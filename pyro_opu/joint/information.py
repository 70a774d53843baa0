r"""Joint entropy and mutual information of the labels of a batch, and BatchBALD.

.. math:: I(y_1, \dots, y_k; \theta) = H(y_1, \dots, y_k) - \sum_i E_\theta H(y_i \mid \theta)

By the chain rule a row n adds :math:`E\,H(y_n \mid y_1, \dots, y_k) - E_\theta H(y_n \mid \theta)`.
Given labels of the rows before it, its label has the probabilities
:math:`\sum_s w_s \pi_s(x_n)`, where :math:`w_s` are the posterior weights of the draws given those
labels. The expectation is over all :math:`C^k` labellings while these are few, and then over
labellings drawn from the posterior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, check_tensor, positive_int
from pyro_opu.inputs import InputLike
from pyro_opu.joint.draws import draw_labels, joint_draws
from pyro_opu.rng import seeded
from pyro_opu.teachers import Source

__all__ = ["Batch", "JointInformation", "batch_bald", "joint_information"]

#: Numbers in the widest tensor: labellings times rows times classes.
WIDEST = 2**22
#: Rows whose information is looked at together; their bounds are mostly below those before them.
AT_ONCE = 8
LABELLINGS = 500
#: Draws whose entropies are added up together.
BLOCK = 16


@dataclass(frozen=True, eq=False)
class JointInformation:
    """Entropies of the labels of B batches, ``(B,)`` each, in nats.

    Attributes:
        total: Entropy of the labels of a batch.
        aleatoric: Expected entropy of them given the draw.
        epistemic: ``total - aleatoric``, their mutual information with the posterior.
    """

    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows in the order in which they were chosen.

    Attributes:
        indices: Rows of the pool, ``(size,)``.
        information: Joint mutual information with the posterior, in nats, of the first row, of the
            first two, and so on, ``(size,)``.
    """

    indices: Tensor
    information: Tensor


class _Labellings:
    """Labels of the rows of a growing batch: how likely they are, and what they say of the draws.

    Attributes:
        share: Probability of each labelling, ``(M,)``.
        weights: Posterior weights of the draws given each labelling, ``(M, S)``. They are
            normalised after every row, so that no product of probabilities underflows.
    """

    def __init__(self, probs: Tensor, most: int) -> None:
        self.probs, self.most = probs, most
        self.rows: list[int] = []
        self.drawn_under: Tensor | None = None  # the draw of each labelling, once they are sampled
        self._begin(1)

    def _begin(self, count: int) -> None:
        """As many labellings of no row."""
        draws, device = len(self.probs), self.probs.device
        self.share = torch.full((count,), 1 / count, dtype=torch.float64, device=device)
        self.weights = self.probs.new_full((count, draws), 1 / draws)

    def entropy(self, rows: Tensor) -> Tensor:
        """Expected entropy of a row's label given those of the batch, of each of ``rows``."""
        classes = self.probs.shape[-1]
        block = max(1, WIDEST // (len(self.share) * classes))
        found = []
        for some in rows.split(block):
            at = self.probs[:, some].flatten(1)
            given = (self.weights @ at).unflatten(1, (len(some), classes))
            found.append(self.share @ torch.special.entr(given).sum(-1).double())
        return torch.cat(found)

    def add(self, row: int) -> None:
        """Put a row into the batch."""
        self.rows.append(row)
        classes = self.probs.shape[-1]
        if self.drawn_under is None and len(self.share) * classes <= self.most:
            self._enumerate(row)
        elif self.drawn_under is None:
            self._begin(self.most)
            draws, device = len(self.probs), self.probs.device
            turns = torch.arange(self.most, device=device) % draws
            self.drawn_under = torch.randperm(draws, device=device)[turns]
            for each in self.rows:
                self._sample(each)
        else:
            self._sample(row)

    def _enumerate(self, row: int) -> None:
        likely = (self.weights[:, None] * self.probs[:, row].mT).flatten(0, 1)
        mass = likely.sum(-1)
        share = self.share.repeat_interleave(self.probs.shape[-1]) * mass
        possible = share > 0
        self.share = share[possible]
        self.weights = likely[possible] / mass[possible, None]

    def _sample(self, row: int) -> None:
        probs = self.probs[:, row]
        self.weights *= probs.mT[draw_labels(probs[self.drawn_under])]
        self.weights /= self.weights.sum(-1, keepdim=True)


def batch_bald(
    source: Source,
    x: InputLike,
    size: int,
    *,
    num_draws: int | None = None,
    num_labellings: int = LABELLINGS,
    seed: int | None = None,
) -> Batch:
    r"""Choose rows whose labels together say most of the posterior, one after another.

    Each step takes the row that raises the joint mutual information most. Two rows that say the
    same raise it once, where the mutual information of each row alone (BALD) would take both.
    Information never exceeds :math:`\log S`: take many draws for large batches. A row of which an
    earlier step has shown that it adds less than another is not looked at again (what a row adds
    falls as the batch grows).

    Args:
        source: A posterior of class labels, as in :func:`~pyro_opu.joint.joint_draws`.
        x: The pool, ``(N, ...)``.
        size: Rows to choose, at most N.
        num_draws: S; by default all draws of the source.
        num_labellings: All labellings of the batch are counted while they are no more than these,
            then so many are drawn.
        seed: Makes the choice reproducible.

    Returns:
        The rows, and the information after each.

    Raises:
        TypeError: a marginal student; a posterior of a real y.
        ValueError: ``size`` larger than the pool; draws that are independent between rows.

    Example:
        >>> weights = torch.randn(200, 2, 3, generator=torch.Generator().manual_seed(0))
        >>> x = torch.tensor([[9.0, 0.0], [9.0, 0.0], [0.0, 5.0]])  # the first two are the same
        >>> batch_bald(lambda x: torch.softmax(x @ weights, -1), x, 2).indices
        tensor([0, 2])

    References:
        Kirsch, van Amersfoort, Gal (2019), BatchBALD: Efficient and diverse batch acquisition for
        deep Bayesian active learning.
    """
    num_labellings = positive_int("num_labellings", num_labellings)
    size = positive_int("size", size)
    probs = joint_draws(source, x, num_draws, seed).probs("batch_bald")
    if size > (rows := probs.shape[1]):
        raise ArgumentError(f"`size` must be at most {rows}, the rows of the pool; got {size}.")
    with torch.no_grad(), seeded(seed):
        return _greedy(probs, size, num_labellings)


def _greedy(probs: Tensor, size: int, most: int) -> Batch:
    labellings, aleatoric = _Labellings(probs, most), expected_entropy(probs)
    every = torch.arange(probs.shape[1], device=probs.device)
    bounds = labellings.entropy(every) - aleatoric
    chosen: list[int] = []
    information: list[float] = []
    for step in range(size):
        order = bounds.argsort(dim=0, descending=True, stable=True)[: len(bounds) - step]
        best = int(order[0])
        if step:
            gain = -math.inf
            for some in order.split(AT_ONCE):
                if gain >= float(bounds[some[0]]):
                    break
                bounds[some] = labellings.entropy(some) - aleatoric[some]
                highest = some[bounds[some].argmax()]
                if float(bounds[highest]) > gain:
                    best, gain = int(highest), float(bounds[highest])
        chosen.append(best)
        information.append((information[-1] if step else 0.0) + float(bounds[best]))
        bounds[best] = -math.inf
        if step + 1 < size:
            labellings.add(best)
    return Batch(torch.tensor(chosen), torch.tensor(information, dtype=torch.float64))


def joint_information(
    source: Source,
    x: InputLike,
    batches: Tensor,
    *,
    num_draws: int | None = None,
    num_labellings: int = LABELLINGS,
    seed: int | None = None,
) -> JointInformation:
    """Joint entropy of the labels of batches of rows, and their information on the posterior.

    Args:
        source, x, num_draws, num_labellings, seed: As in :func:`~pyro_opu.joint.batch_bald`.
        batches: Rows of the pool, whole numbers ``(B, k)``, or ``(k,)`` of one batch. A row that
            stands twice in a batch is labelled twice.

    Returns:
        Entropies ``(B,)`` in nats.

    Raises:
        TypeError, ValueError: ``batches`` are no rows of the pool; as in ``batch_bald``.

    Example:
        >>> weights = torch.randn(200, 2, 3)
        >>> posterior = lambda x: torch.softmax(x @ weights, -1)
        >>> found = joint_information(posterior, torch.randn(9, 2), torch.tensor([[0, 1], [2, 3]]))
        >>> found.total.shape
        torch.Size([2])
    """
    num_labellings = positive_int("num_labellings", num_labellings)
    probs = joint_draws(source, x, num_draws, seed).probs("joint_information")
    given = _check_batches(batches, probs.shape[1])
    with torch.no_grad(), seeded(seed):
        aleatoric = expected_entropy(probs)[given].sum(-1)
        total = torch.stack([_chain(probs, batch, num_labellings) for batch in given])
    return JointInformation(total, aleatoric, total - aleatoric)


def _chain(probs: Tensor, batch: Tensor, most: int) -> Tensor:
    """Joint entropy of the labels of one batch, row by row."""
    labellings, parts = _Labellings(probs, most), []
    for row in batch:
        parts.append(labellings.entropy(row[None]))
        labellings.add(int(row))
    return torch.cat(parts).sum()


def _check_batches(batches: object, rows: int) -> Tensor:
    given = check_tensor("batches", batches, "(B, k) or (k,)")
    whole = not given.is_floating_point() and not given.is_complex() and given.dtype != torch.bool
    if not whole or given.ndim not in (1, 2) or given.numel() == 0:
        raise ArgumentError(
            "`batches` must hold rows of the pool, whole numbers (B, k) or (k,); got "
            f"{given.dtype} of shape {tuple(given.shape)}."
        )
    low, high = int(given.min()), int(given.max())
    if low < 0 or high >= rows:
        raise ArgumentError(
            f"`batches` must hold rows from 0 to {rows - 1}; got rows from {low} to {high}."
        )
    return torch.atleast_2d(given)


def expected_entropy(probs: Tensor) -> Tensor:
    """Mean entropy of a row's label over draws ``(S, N, C)``, ``(N,)`` in float64, nats."""
    found = torch.zeros(probs.shape[1:], dtype=torch.float64, device=probs.device)
    for block in probs.split(BLOCK):  # twice as fast as torch.special.entr, summed over classes
        found -= (block * block.clamp_min(torch.finfo(block.dtype).tiny).log()).sum(0)
    return found.sum(-1) / len(probs)
