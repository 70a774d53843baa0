"""Ensembles that answer at their own training rows by members that have not seen them."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pyro_opu.checks import (
    ArgumentError,
    ArgumentTypeError,
    check_callable,
    check_seed,
    check_tensor,
    in_range,
    positive_int,
)
from pyro_opu.teachers.arrays import as_arrays
from pyro_opu.teachers.estimators import EstimatorsTeacher

__all__ = ["OutOfBagTeacher", "bagged_contexts", "out_of_bag"]


class OutOfBagTeacher(EstimatorsTeacher):
    r"""An ensemble of classifiers whose members are not asked at rows that they were fitted to.

    At a row of ``x``, draw s is the answer of member s; where the member has seen the row it is
    that of another one which has not, so that a student is taught there what it is taught at new
    rows. These take turns: of S draws each of the U members that have not seen the row gives
    S / U, to the next whole number above or below, as equal weights as S draws can have. Who gives
    one more is drawn for each row. A row that all members have seen is answered by all.

    Args:
        source: See :class:`.EstimatorsTeacher`.
        x: Training rows ``(N, D)`` of the members.
        seen: Which rows each member was fitted to, ``(S, N)``.
    """

    def __init__(self, source: object, x: ArrayLike | Tensor, seen: NDArray[np.bool_]) -> None:
        super().__init__(source)
        rows = _rows(x)
        if seen.shape != (len(self.estimators), len(rows)):
            raise ArgumentError(
                f"`seen` must have shape ({len(self.estimators)}, {len(rows)}), members and rows "
                f"of `x`; got {seen.shape}. Pass the rows that they were fitted to, in order."
            )
        # Equal rows are one: a member that has seen a copy has seen it.
        self.seen: dict[bytes, NDArray[np.bool_]] = {}
        for row, by in zip(rows, seen.T, strict=True):
            key = row.tobytes()
            self.seen[key] = by | self.seen[key] if key in self.seen else by

    def _evaluate(self, draws: Tensor, x: Tensor) -> Tensor:
        answers = super()._evaluate(draws, x)
        place = {int(member): s for s, member in enumerate(draws)}
        others: dict[int, list[tuple[int, int]]] = {}
        for n, row in enumerate(_rows(as_arrays(x))):
            seen = self.seen.get(key := row.tobytes())
            if seen is None or seen.all():
                continue
            unseen = np.random.default_rng(zlib.crc32(key)).permutation(np.flatnonzero(~seen))
            for turn, member in enumerate(np.flatnonzero(seen).tolist()):
                if member in place:
                    other = int(unseen[turn % len(unseen)])
                    others.setdefault(other, []).append((place[member], n))
        for other, places in others.items():
            s, n = torch.tensor(places).T
            rows, index = n.unique(return_inverse=True)
            answers[s, n] = super()._evaluate(torch.tensor([other]), x[rows])[0, index]
        return answers


def out_of_bag(ensemble: object, x: ArrayLike | Tensor) -> OutOfBagTeacher:
    """Make a teacher of a forest or bagging ensemble that is not asked at rows that it has seen.

    Args:
        ensemble: A fitted scikit-learn forest with ``bootstrap=True`` or ``BaggingClassifier``.
        x: The rows that it was fitted to, in order.

    Raises:
        TypeError: an ensemble that does not say which rows its members have seen.
        ValueError: members that have all seen all rows; another number of rows.

    Example:
        >>> from sklearn.ensemble import RandomForestClassifier
        >>> x = np.random.default_rng(0).normal(size=(60, 3))
        >>> forest = RandomForestClassifier(20).fit(x, x[:, 0] > 0)
        >>> out_of_bag(forest, x).probs(torch.as_tensor(x)).shape
        torch.Size([20, 60, 2])
    """
    last = ensemble.steps[-1][1] if hasattr(ensemble, "steps") else ensemble
    rows, samples = _rows(x), getattr(last, "estimators_samples_", None)
    if samples is None:
        raise ArgumentTypeError(
            "`ensemble` must be a fitted forest or BaggingClassifier, which knows the rows of its "
            f"members; got {type(ensemble).__name__}. For other classifiers make "
            "bagged_contexts(classifier, x, y)."
        )
    fitted = getattr(last, "_n_samples", 1 + max(int(each.max()) for each in samples))
    if fitted != len(rows):
        raise ArgumentError(
            f"`x` must be the {fitted} rows that the ensemble was fitted to, in order; got "
            f"{len(rows)}."
        )
    seen = np.zeros((len(samples), len(rows)), bool)
    for member, index in enumerate(samples):
        seen[member, index] = True
    if seen.all():
        raise ArgumentError(
            "`ensemble` must have members that have not seen all rows. Fit it with bootstrap=True, "
            "or to a share of the rows, max_samples=0.5."
        )
    return OutOfBagTeacher(ensemble, rows, seen)


def bagged_contexts(
    classifier: Any,
    x: ArrayLike | Tensor,
    y: ArrayLike | Tensor | Sequence[object],
    num_contexts: int = 32,
    *,
    share: float = 0.632,
    seed: int = 0,
) -> OutOfBagTeacher:
    """Make a posterior of a classifier that has none, by fitting it to parts of the rows.

    For what predicts from a context, as TabPFN and nearest neighbours do, and for any classifier
    that is cheap to fit. Each draw is a copy fitted to its own part of the rows; a row of ``x`` is
    answered by copies that have not seen it.

    Args:
        classifier: Unfitted or not: an object with ``fit(x, y)``, ``predict_proba(x)`` and, once
            fitted, ``classes_``, which is copied for each context.
        x: Training rows ``(N, D)``.
        y: Their labels ``(N,)``.
        num_contexts: Draws S.
        share: Rows in a context, drawn without replacement, as a share of all. Every row is left
            out of one context at least.
        seed: Seed of the contexts.

    Example:
        >>> from sklearn.neighbors import KNeighborsClassifier
        >>> x = np.random.default_rng(0).normal(size=(60, 3))
        >>> teacher = bagged_contexts(KNeighborsClassifier(1), x, x[:, 0] > 0, 8)
        >>> teacher.probs(torch.as_tensor(x)).shape
        torch.Size([8, 60, 2])
    """
    check_callable("classifier.fit", getattr(classifier, "fit", None), "fit(x, y)")
    num_contexts = positive_int("num_contexts", num_contexts, 2, "One has no spread.")
    rows, labels = _rows(x), _array("y", y)
    if labels.shape != (len(rows),):
        raise ArgumentError(
            f"`y` must have a label for each of the {len(rows)} rows of `x`, shape "
            f"({len(rows)},); got {labels.shape}."
        )
    if labels.dtype.kind == "c" or (labels.dtype.kind == "f" and (labels % 1 != 0).any()):
        raise ArgumentError("`y` must be labels; got numbers that are not whole. Name the classes.")
    size = round(in_range("share", share, 0, 1) * len(rows))
    if not 0 < size < len(rows):
        raise ArgumentError(
            f"`share` must leave rows in and out of a context of {len(rows)}; got {share}. Take a "
            "number between 0 and 1."
        )
    random = np.random.default_rng(int(check_seed(seed, "seed") or 0) % 2**64)
    seen = np.zeros((num_contexts, len(rows)), bool)
    for context in seen:
        context[random.permutation(len(rows))[:size]] = True
    everywhere = np.flatnonzero(seen.all(0))
    seen[random.integers(num_contexts, size=len(everywhere)), everywhere] = False
    fitted = []
    for context in seen:
        fitted.append(copy.deepcopy(classifier))
        fitted[-1].fit(rows[context], labels[context])
    return OutOfBagTeacher(fitted, rows, seen)


def _rows(x: object) -> NDArray[np.float32]:
    """Rows as they are compared."""
    given = _array("x", x)
    if given.dtype.kind not in "fiub" or not given.size or not given.ndim:
        raise ArgumentError(
            f"`x` must be rows (N, D) of real numbers; got shape {given.shape} of {given.dtype}."
        )
    found = given.astype(np.float32)
    if not np.isfinite(found).all():
        raise ArgumentError(
            "`x` must be finite in float32; got NaN or infinity. Impute or rescale."
        )
    return np.ascontiguousarray(found.reshape(len(found), -1)) + np.float32(0.0)  # no -0.0


def _array(name: str, values: object) -> NDArray[Any]:
    """An array of a tensor, an array or a list, of one number or name each."""
    if isinstance(values, Tensor):
        check_tensor(name, values)
    try:
        found = np.asarray(as_arrays(values))
    except ValueError as error:  # rows of different lengths
        raise ArgumentError(f"`{name}` must be one array; numpy says: {error}.") from error
    if found.ndim == 0 or found.dtype.kind == "O" and not isinstance(found.flat[0], str):
        kind = type(values).__name__
        raise ArgumentTypeError(
            f"`{name}` must be an array, a tensor or a list of rows; got {kind}."
        )
    return found
