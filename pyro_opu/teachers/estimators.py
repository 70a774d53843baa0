"""Fitted scikit-learn ensembles as teachers, each member one draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_opu.checks import ArgumentError, ArgumentTypeError
from pyro_opu.inputs import Form
from pyro_opu.parts import Outcome
from pyro_opu.programs.cost import Cost
from pyro_opu.programs.plug_in import PlugIn
from pyro_opu.programs.samples import choose
from pyro_opu.teachers.arrays import as_arrays, as_tensors
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.teachers.ramps import ramp_network
from pyro_opu.utils.printing import name_of

__all__ = ["EstimatorsTeacher", "is_estimator"]

#: Ensembles whose members are draws.
ENSEMBLES = (
    "RandomForestClassifier, ExtraTreesClassifier, BaggingClassifier, VotingClassifier with "
    "voting='soft', their regressors, a Pipeline that ends in one, or a list of fitted classifiers"
)
#: Operations that take as long as one level of a tree, by which the draws of a label are chosen.
LEVEL = 2**11
#: Members that a weighted vote may become.
MOST_VOTES = 1000


@dataclass(frozen=True)
class Member:
    """A fitted estimator, the columns that it reads (``None``: all), the places of its classes."""

    estimator: Any
    columns: NDArray[np.int64] | None = None
    places: tuple[int, ...] = ()

    @property
    def is_tree(self) -> bool:
        """Whether it is a tree, which releases Python's lock and reads float32."""
        return "BaseDecisionTree" in _names(self.estimator)

    def asked(self, method: str, x: Any) -> NDArray[Any]:
        """What a method says of arrays ``(N, D)``."""
        if self.columns is not None:
            x = x[:, self.columns]
        options = {"check_input": False} if self.is_tree else {}
        return np.asarray(getattr(self.estimator, method)(x, **options))

    def probs(self, x: Any, classes: int) -> NDArray[Any]:
        """Class probabilities ``(N, C)``, of a member without any those of its vote."""
        found = np.zeros((len(x), classes))
        if hasattr(self.estimator, "predict_proba"):
            found[:, self.places] = self.asked("predict_proba", x)
        else:
            found[np.arange(len(x)), self.asked("predict", x).astype(np.int64)] = 1.0
        return found


@dataclass(frozen=True)
class Members:
    """The members of an ensemble; what turns x into what they read; number of classes, or None."""

    members: list[Member]
    transform: Callable[[Any], Any]
    num_classes: int | None

    @classmethod
    def of(cls, source: Any) -> Members:
        """The members of a fitted ensemble of :data:`ENSEMBLES`.

        Raises:
            TypeError: another estimator.
            ValueError: not fitted; several labels; votes that cannot be counted.
        """
        if isinstance(source, Sequence):
            return cls._of_list(source)
        names = _names(source)
        if "Pipeline" in names:
            last = cls.of(source[-1])
            before = source[:-1].transform if len(source) > 1 else _same
            return cls(last.members, _named(source, before), last.num_classes)
        if not names & {"ForestClassifier", "ForestRegressor", *_BAGGED, *_VOTED}:
            raise ArgumentTypeError(
                f"`source` must be an ensemble whose members are draws, {ENSEMBLES}; got "
                f"{name_of(source)}, one model. Fit several to resampled rows: "
                f"BaggingClassifier({type(source).__name__}(...), n_estimators=50).fit(x, y); of a "
                "search pass .best_estimator_."
            )
        if not hasattr(source, "estimators_"):
            raise ArgumentError(
                f"`source` must be fitted; this {name_of(source)} is not. Call .fit(x, y) first."
            )
        if getattr(source, "n_outputs_", 1) != 1:
            raise ArgumentError(
                f"`source` must have one outcome per row; this {name_of(source)} has "
                f"{source.n_outputs_}. Fit one for each."
            )
        classes = getattr(source, "classes_", None)
        count = None if classes is None else len(classes)
        columns: Sequence[Any] = [None] * len(source.estimators_)
        if names & _BAGGED:
            every = range(source.n_features_in_)
            columns = [
                None if list(each) == list(every) else each for each in source.estimators_features_
            ]
        # Inside, classes are their places in `classes_`.
        members = [
            Member(each, own, () if count is None else tuple(int(c) for c in _classes(each, count)))
            for each, own in zip(source.estimators_, columns, strict=True)
        ]
        if names & _VOTED:
            return cls(_voters(source, members), _named(source, _same), count)
        return cls(members, _same, count)

    @classmethod
    def _of_list(cls, source: Sequence[Any]) -> Members:
        """Fitted classifiers, of the same classes or some of them."""
        for index, each in enumerate(source):
            if not hasattr(each, "predict_proba") or not hasattr(each, "classes_"):
                raise ArgumentTypeError(
                    f"`source[{index}]` must be a fitted classifier with predict_proba, as others "
                    f"of the list are; got {name_of(each)}."
                )
        labels = sorted({label for each in source for label in np.asarray(each.classes_).tolist()})
        place = {label: index for index, label in enumerate(labels)}
        own = [tuple(place[c] for c in np.asarray(each.classes_).tolist()) for each in source]
        members = [Member(each, None, p) for each, p in zip(source, own, strict=True)]
        return cls(members, _named(source[0], _same), len(labels))


_BAGGED = {"BaggingClassifier", "BaggingRegressor"}
_VOTED = {"VotingClassifier", "VotingRegressor"}


class EstimatorsTeacher(BaseTeacher[Tensor]):
    r"""A fitted scikit-learn ensemble: draw s is its member s, in order.

    The mean of the draws is the ensemble's ``predict_proba``; classes are in the order of its
    ``classes_``. What the members disagree on is the epistemic part. Trees grown to pure leaves
    are always sure: all their uncertainty is epistemic, and ``min_samples_leaf`` above 1 tells
    noise from it. At rows that a member was fitted to it is surer than elsewhere
    (:func:`.out_of_bag`).

    The members of regressors give the mean of y. They say nothing of the aleatoric part: the noise
    must come from elsewhere. The root mean square error out of bag is too large for it, as it
    holds the error of the fit too; repeated measurements, or the residuals of a model that fits,
    are better.

    Args:
        source: A random forest, extra trees, ``BaggingClassifier``, soft ``VotingClassifier``
            (whole weights are so many draws of a member), a ``Pipeline`` that ends in one, a
            list of fitted classifiers; or such an ensemble of regressors.
        noise: With regressors the standard deviation of y given x, a number or a function of arrays
            or tensors ``(N, D)`` that returns ``(N,)``.

    Raises:
        TypeError: one model, such as boosting; regressors without noise, classifiers with it.
        ValueError: not fitted; several labels per row; hard votes.
    """

    in_steps = True
    reads_names = True

    def __init__(self, source: Any, noise: float | Callable[..., object] | None = None) -> None:
        self.source, self.noise = source, noise
        found = Members.of(source)
        self.estimators, self.transform = found.members, found.transform
        self.max_draws, self.classes = len(self.estimators), found.num_classes
        self._trees = all(member.is_tree for member in self.estimators)
        if self.classes is None and noise is None:
            raise ArgumentTypeError(
                f"`source` must be a classifier; {self._source_text()} gives the mean of y, and no "
                "noise. Pass pyro_opu.teachers.EstimatorsTeacher(source, noise)."
            )
        if self.classes is not None and noise is not None:
            raise ArgumentTypeError(
                f"`source` must be a regressor; {self._source_text()} is a classifier. Pass it to "
                "as_teacher or distill itself."
            )
        self._outcome = Outcome.of_teacher(self.classes) if self.classes else Outcome.of_real()

    def _source_text(self) -> str:
        return name_of(self.source[-1] if "Pipeline" in _names(self.source) else self.source)

    def _unpack_by(self, form: Form) -> None:
        """Nothing: several inputs are read as they are packed, as columns side by side."""

    def codes(self, x: Tensor) -> list[int]:
        """Columns that an encoder of a pipeline reads."""
        named = [column.name for part in self.form.parts for column in part.source]
        named = named or list(getattr(self.source, "feature_names_in_", []))
        found = _encoded(self.source, named or list(range(x.shape[-1])))
        return sorted(found) if x.ndim == 2 else []

    def plug_ins(self, x: Tensor) -> list[PlugIn]:
        """For trees, a network that bends where the columns of ``x`` have their values."""
        if x.ndim != 2 or self.classes is None or not self._trees:
            return []
        return [ramp_network(x, self.classes)]

    def operations(self, x: Tensor) -> int | None:
        """What trees cost, by their depth."""
        if not self._trees:
            return None
        depths = [member.estimator.get_depth() for member in self.estimators]
        return LEVEL * max(1, round(sum(depths) / len(depths)))

    def _pick(self, x: Tensor, num_draws: int) -> Tensor:
        return choose(len(self.estimators), num_draws)

    def _measured(self, draws: Tensor, x: Tensor) -> Cost:
        return Cost(x.shape[1:], max(self.classes or 2, math.prod(x.shape[1:])), None)

    def _evaluate(self, draws: Tensor, x: Tensor) -> Tensor:
        table = self.form.table(x)
        given = self.transform(as_arrays(x.flatten(1)) if table is None else table)
        if hasattr(given, "toarray"):  # what an encoder gives of many names
            given = given.toarray()
        if self._trees:
            given = np.ascontiguousarray(given, np.float32)
        chosen, threads = (
            [self.estimators[index] for index in draws.tolist()],
            torch.get_num_threads(),
        )
        each = partial(self._of_member, given=given)
        if threads == 1 or not self._trees:
            answers = list(map(each, chosen))
        else:
            with ThreadPoolExecutor(threads) as pool:
                answers = list(pool.map(each, chosen))
        return self._said(as_tensors(np.stack(answers), x), x)

    def _of_member(self, member: Member, given: object) -> NDArray[Any]:
        if self.classes is None:
            return member.asked("predict", given)
        return member.probs(given, self.classes)

    def _said(self, answers: Tensor, x: Tensor) -> Tensor:
        """Logarithms of probabilities, or means beside the logarithm of the noise's deviation."""
        if self.noise is None:
            return answers.clamp_min(torch.finfo(answers.dtype).tiny).log()
        scale = self.noise(as_arrays(x)) if callable(self.noise) else self.noise
        noise = torch.as_tensor(scale, dtype=answers.dtype, device=answers.device)
        return torch.stack([answers, noise.log().expand_as(answers)], -1)


def is_estimator(source: object) -> TypeGuard[Any]:
    """Whether it is of scikit-learn and no function, or a list of classifiers that are."""
    if isinstance(source, (list, tuple)):
        return any(map(is_estimator, source))
    return bool(_names(source)) and not callable(source)


def _names(source: object) -> set[str]:
    """Names of the classes of scikit-learn that it is one of, which need not be imported."""
    kinds = type(source).__mro__
    return {kind.__name__ for kind in kinds if kind.__module__.partition(".")[0] == "sklearn"}


def _encoded(source: Any, names: Sequence[object]) -> set[int]:
    """Places of the columns that encoders of a fitted pipeline read."""
    kinds = _names(source)
    if "Pipeline" in kinds:
        return _encoded(source[0], names)
    if "ColumnTransformer" not in kinds:
        encodes = any(kind.endswith("Encoder") for kind in kinds)
        return set(range(len(names))) if encodes else set()
    found: set[int] = set()
    for _, inner, columns in source.transformers_:
        places = _places(columns, names)
        found |= {places[each] for each in _encoded(inner, [names[p] for p in places])}
    return found


def _places(columns: object, names: Sequence[object]) -> list[int]:
    """The places of columns that are said by name, place, slice or mask."""
    given: Any = [columns] if isinstance(columns, (str, int)) else columns
    if isinstance(given, slice) or not any(isinstance(each, str) for each in given):
        places: list[int] = np.arange(len(names))[given].tolist()
        return places
    return [names.index(each) for each in given]


def _classes(estimator: object, count: int) -> Any:
    return getattr(estimator, "classes_", range(count))


def _voters(source: Any, members: list[Member]) -> list[Member]:
    """The members of a soft vote, each as often as its weight says."""
    if getattr(source, "voting", "soft") != "soft":
        raise ArgumentError(
            "`source` must vote with probabilities; this VotingClassifier counts hard votes. Fit "
            "it with voting='soft'."
        )
    weights = source._weights_not_none
    if weights is None:
        return members
    whole = [int(weight) for weight in weights]
    if whole != list(weights) or min(whole) < 0 or not 0 < sum(whole) <= MOST_VOTES:
        raise ArgumentError(
            "`source` must have whole weights, as a weight is so many draws of a member; got "
            f"{list(weights)}. Round them to whole numbers, such as [2, 1, 1]."
        )
    return [member for member, times in zip(members, whole, strict=True) for _ in range(times)]


def _same(x: object) -> Any:
    return x


def _named(source: object, transform: Callable[..., object]) -> Callable[[Any], Any]:
    """The transform of arrays for an estimator that was fitted to a table with named columns."""
    names = getattr(source, "feature_names_in_", None)
    if names is None:
        return transform

    def of_table(x: Any) -> Any:
        if hasattr(x, "columns"):
            return transform(x[list(names)])
        from pandas import DataFrame  # which it was fitted to

        return transform(DataFrame(x, columns=names))

    return of_table
