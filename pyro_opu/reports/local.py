"""Where in input space a student's answers are not its teacher's: a two-sample test by region."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_opu.checks import ArgumentError, is_sequence
from pyro_opu.parts import by_part
from pyro_opu.reports.comparing import Comparison
from pyro_opu.reports.regions import Region

__all__ = ["regions"]

#: Draws of each side at an input, and permutations; draws that say what all inputs share.
DRAWS, PERMUTATIONS, SHARED = 64, 299, 128
#: Rows that are looked at, and the fewest of them; numbers in one draw at all.
ROWS, FEWEST, NUMBERS = 1024, 64, 2**14
#: Rows that the teacher is asked at together.
BLOCK = 64
#: Regions at most, and the fewest rows of one, as a share of those that the tree is fitted to.
MOST_REGIONS, LEAST_SHARE = 8, 1 / 16

Where = str | Sequence[str] | Tensor | Callable[[Tensor], Tensor]


def regions(one: Comparison, x: Tensor, where: Where) -> list[Region]:
    """The regions of one site, whose p-values are not corrected yet.

    Args:
        one: The site's comparison.
        x: Inputs ``(N, ...)``.
        where: See :func:`~pyro_opu.fidelity`.
    """
    features, names, labels = _described(x, where)
    few = max(FEWEST, min(ROWS, NUMBERS // (one.width * one.columns)))
    rows = torch.randperm(len(x))[:few]
    theirs, mine, shared = _samples(one, x[rows.to(x.device)])
    distances = _permuted(theirs, mine)
    # In units of what draws of one law have there, so that sure and unsure inputs count alike.
    usual = distances.mean(0)
    excess = torch.where(usual > 0, distances / usual, torch.ones_like(distances))
    if labels is not None:
        kinds = labels[rows]
        parts = [(f"label {k}", kinds == k) for k in kinds.unique().tolist()]
    else:
        parts = _by_tree(features[rows.to(x.device)], names, excess[0])
    found = []
    for name, inside in parts:
        told = excess[:, inside].mean(1)
        if shared is not None:
            told[1:] += _common(shared[:, inside], usual[inside], one.teacher.max_draws or 1)
        p_value = float((told >= told[0]).double().mean())
        apart, perfect = distances[0, inside].mean(), usual[inside].mean()
        count = int(inside.sum())
        found.append(Region(name + one.ending, count, float(apart), float(perfect), p_value, False))
    return found


def _described(x: Tensor, where: Where) -> tuple[Tensor, list[str], Tensor | None]:
    """Features ``(N, F)`` that describe regions, their names, and labels where these are given.

    Raises:
        TypeError, ValueError: ``where`` is none of what it may be, or does not fit ``x``.
    """
    plain = x.flatten(1)
    if isinstance(where, str) and where == "inputs":
        return plain, [f"x[{i}]" for i in range(plain.shape[1])], None
    if isinstance(where, (Tensor, np.ndarray)):
        labels = torch.as_tensor(where)
        if labels.shape == x.shape[:1] and not labels.is_floating_point():
            return plain, [], labels.cpu()
    elif callable(where):
        features = torch.as_tensor(where(x))
        features = features[:, None] if features.ndim == 1 else features
        if features.ndim == 2 and len(features) == len(x):
            return features, [f"feature {i}" for i in range(features.shape[1])], None
    elif is_sequence(where):
        if len(where) == plain.shape[1]:
            return plain, [str(name) for name in where], None
    raise ArgumentError(
        '`where` must be "inputs", names of the columns of `x`, whole numbers (N,) that label its '
        f"rows, or a function x -> features (N, F); got {where!r:.80} for x {tuple(x.shape)}. "
        'Begin with where="inputs".'
    )


def _samples(one: Comparison, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Draws ``(S, N, K)`` of the teacher and of the student, independent between inputs.

    No input is given one of M held draws twice: a student's are never twice the same, and it is to
    be as near as M draws, not to be these. Beside them stand :data:`SHARED` of the held ones.
    """
    held = one.teacher.max_draws
    count = min(DRAWS, held or DRAWS)
    parameters = one.ask(x).predict(count, True)[1]
    mine = parameters.unflatten(1, (len(x), one.columns)).flatten(2)
    theirs, shared = [], []
    for block in x.split(1 if held is None else BLOCK):  # draws of a call are joint
        if held is None:
            theirs.append(_read(one, block, count))
            continue
        draws = _read(one, block, held)
        order = torch.rand(draws.shape[:2], device=draws.device).argsort(0)[:count, :, None]
        theirs.append(draws.gather(0, order.expand(-1, -1, draws.shape[-1])))
        shared.append(draws[:: -(-held // SHARED)])
    said, beside = (
        torch.cat(each, 1).double().cpu() if each else None for each in (theirs, shared)
    )
    assert said is not None
    return said, mine.double().cpu(), beside


def _common(held: Tensor, usual: Tensor, size: int) -> Tensor:
    r"""Excesses ``(B,)`` by chance that all inputs of a region share, as they share draws.

    The mean distance of M draws from their distribution is a quadratic form in them,

    .. math:: \tfrac1{M^2} \sum_{st} w_s w_t\, k_{st}, \qquad
        k_{st} = -\,\mathbb{E}_x \| \pi_s(x) - \pi_t(x) \|_1

    with centred k; its distribution is that of normal w.

    Args:
        held: Draws ``(m, n, K)``, of M.
        usual: The unit of every input ``(n,)``.
        size: M.

    References:
        Chwialkowski, Sejdinovic and Gretton (2014), A wild bootstrap for degenerate kernel tests.
    """
    count, units = len(held), torch.where(usual > 0, 1 / usual, 0.0) / len(usual)
    apart = torch.stack([(draw - held).abs().sum(-1) @ units for draw in held])
    apart = apart - apart.mean(0) - apart.mean(1, keepdim=True) + apart.mean()
    w = torch.randn(PERMUTATIONS, count, dtype=apart.dtype)
    return (apart.trace() - (w @ apart * w).sum(-1)) / (count * size)


def _read(one: Comparison, x: Tensor, count: int) -> Tensor:
    """The teacher's draws of class probabilities or of the mean of y, ``(S, N, K)``, in order."""
    draws = by_part(one.teacher.draws(x, count), one.teacher.outcome.parts)[one.number]
    return one.part.means(draws.unflatten(1, (len(x), one.columns))).flatten(2)


def _permuted(theirs: Tensor, mine: Tensor) -> Tensor:
    r"""Energy distances ``(1 + B, N)``: as it is, and with draws shuffled between the two.

    .. math:: 2 \sum_k \int (F_k - G_k)^2

    with distribution functions F and G of coordinate k, from one sort of the draws together.
    """
    count, inputs = len(mine), mine.shape[1]
    values, order = torch.cat([theirs, mine]).permute(1, 2, 0).contiguous().sort(-1)
    gaps = values.diff(dim=-1).float()
    signs = torch.cat([torch.ones(count), -torch.ones(count)])
    found = []
    for turn in range(1 + PERMUTATIONS):
        shuffled = torch.rand(inputs, 2 * count).argsort(-1)
        side = signs[shuffled] if turn else signs.expand(inputs, -1)
        walk = side[:, None].expand_as(order).gather(-1, order).cumsum(-1)[..., :-1] / count
        found.append(2 * (gaps * walk.square()).sum((1, 2)))
    return torch.stack(found).double()


def _by_tree(features: Tensor, names: list[str], excess: Tensor) -> list[tuple[str, Tensor]]:
    """Leaves of a tree that is fitted to one half of the rows, and the other half's rows there."""
    from sklearn.tree import DecisionTreeRegressor

    half = len(features) // 2
    least = max(2, math.ceil(LEAST_SHARE * half))
    tree = DecisionTreeRegressor(
        max_leaf_nodes=MOST_REGIONS,
        min_samples_leaf=least,
        random_state=int(torch.randint(2**31, ())),
    )
    numbers = features.double().cpu().numpy()
    tree.fit(numbers[:half], excess[:half].numpy())
    leaves = torch.as_tensor(tree.apply(numbers))
    leaves[:half] = -1
    inside = {leaf: leaves == leaf for leaf in leaves[half:].unique().tolist()}
    return [(_words(tree.tree_, leaf, names), rows) for leaf, rows in inside.items()]


def _words(tree: Any, leaf: int, names: list[str]) -> str:
    """The conditions of a leaf: bounds of each feature on the way from the root."""
    low: dict[int, float] = {}
    high: dict[int, float] = {}
    node = leaf
    while node:
        parent = next(
            p for p in range(node) if node in (tree.children_left[p], tree.children_right[p])
        )
        feature, bound = int(tree.feature[parent]), float(tree.threshold[parent])
        side, best = (high, min) if node == tree.children_left[parent] else (low, max)
        side[feature] = best(bound, side.get(feature, bound))
        node = parent
    told = []
    for feature in sorted({*low, *high}):
        left = f"{low[feature]:.3g} < " if feature in low else ""
        right = f" <= {high[feature]:.3g}" if feature in high else ""
        told.append(f"{left}{names[feature]}{right}")
    return ", ".join(told) or "everywhere"
