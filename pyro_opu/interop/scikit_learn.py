"""Scikit-learn estimators: a Bayesian teacher, ready or the user's, and its one-pass student."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from pyro_opu.checks import ArgumentError, ArgumentTypeError, one_of
from pyro_opu.choosing import GuideName, LossName
from pyro_opu.distillation import distill
from pyro_opu.distributions import PredictiveNormal, SimplexDistribution
from pyro_opu.interop.ready_teachers import (
    CLASSIFIERS,
    REGRESSORS,
    ClassTeacher,
    Inputs,
    RealTeacher,
    TeacherFunction,
    dropout_teacher,
    linear_teacher,
    logistic_teacher,
)
from pyro_opu.metrics.uncertainty import uncertainty
from pyro_opu.rng import seeded
from pyro_opu.teachers import Estimator

__all__ = [
    "OnePassClassifier",
    "OnePassRegressor",
    "TeacherFunction",
    "dropout_teacher",
    "linear_teacher",
    "logistic_teacher",
]

#: Fewer rows cannot be split into inputs to teach by and inputs to judge by.
LEAST_ROWS = 4


class OnePassEstimator(BaseEstimator):
    """What the classifier and the regressor share; they say what y is."""

    teachers: ClassVar[Mapping[Any, Callable[..., Any]]]

    def __init__(
        self,
        teacher: ClassTeacher | RealTeacher | Callable[..., object] | Estimator = "dropout",
        *,
        guide: GuideName | None = None,
        loss: LossName | None = None,
        num_steps: int = 1000,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.teacher = teacher
        self.guide = guide
        self.loss = loss
        self.num_steps = num_steps
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: object = None) -> Any:
        """Teach by ``X`` ``(N, D)``, finite with at least 4 rows, and ``y`` ``(N,)``.

        A row with a weight counts so many times to a teacher that takes ``sample_weight``; one of
        weight 0 is left out.
        """
        make = self._maker()
        X = self._coded(X, reset=True)
        kinds = {"dtype": np.float64, "y_numeric": isinstance(self, RegressorMixin)}
        X, y = validate_data(self, X, y, **kinds, ensure_min_samples=LEAST_ROWS)
        options: dict[str, Any] = {}
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
            X, y, weights = (each[weights > 0] for each in (X, y, weights))
            if len(X) < LEAST_ROWS:
                raise ArgumentError(
                    f"`sample_weight` must be above 0 for at least {LEAST_ROWS} rows; got {len(X)}."
                )
            if "sample_weight" not in inspect.signature(make).parameters:
                raise ArgumentTypeError(
                    "`teacher` must take sample_weight=..., as it is given; got "
                    f"{self.teacher!r:.80}. Leave the weights out, or use them in the teacher."
                )
            options["sample_weight"] = torch.tensor(weights, dtype=torch.float32)
        target = self._target(y, options.get("sample_weight"))
        numbers = X[:, self._numbers(X)]
        self.scaler_ = StandardScaler()
        if numbers.shape[1]:
            self.scaler_.fit(numbers, sample_weight=weights if options else None)
        x = self._inputs(X, torch.float32)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with seeded(seed):
            source = make(x, target, **options)
        settings: dict[str, Any] = {k: getattr(self, k) for k in ("guide", "loss", "num_steps")}
        student = distill(source, x, **settings, seed=seed, progress=False)
        self._check(student)
        self.student_ = student.double()
        return self

    def predict_uncertainty(self, X: object) -> dict[str, np.ndarray]:
        """Every measure of :func:`pyro_opu.uncertainty` by name, ``(N,)``."""
        measures = uncertainty(self._answer(X)).to_dict()
        return {name: value.numpy() for name, value in measures.items()}

    @abstractmethod
    def _target(self, y: np.ndarray, weights: Tensor | None) -> Tensor:
        """What the teacher is given for ``y``."""

    @abstractmethod
    def _check(self, student: object) -> None:
        """Refuse a student that does not answer ``y``."""

    def _maker(self) -> Callable[..., Any]:
        """``(x, y) -> source``."""
        if callable(self.teacher) and not hasattr(self.teacher, "fit"):
            return self.teacher
        if hasattr(self.teacher, "fit"):
            return fitting(self.teacher)
        advice = "Or pass a function (x, y) -> teacher, or an estimator."
        return self.teachers[one_of("teacher", self.teacher, self.teachers, advice)]

    def _coded(self, X: Any, reset: bool) -> Any:
        """A data frame with the codes of categorical columns in their place."""
        frame = hasattr(X, "select_dtypes") and hasattr(X, "assign")
        if reset:
            names = list(X.select_dtypes("category")) if frame else []
            self.categories_ = {
                name: X[name].cat.remove_unused_categories().cat.categories for name in names
            }
        if not self.categories_:
            return X
        if not frame or not set(self.categories_) <= set(X.columns):
            raise ArgumentError(
                f"`X` must be a data frame with the columns {list(self.categories_)}, which were "
                "categorical in fit. Pass one with the same columns in the same order."
            )
        codes = {name: known.get_indexer(X[name]) for name, known in self.categories_.items()}
        for name, found in codes.items():
            if (found < 0).any():
                new = X[name][found < 0].unique().tolist()
                raise ArgumentError(
                    f"`X`'s column {name!r} must hold categories that fit has seen, and none "
                    f"missing; got {new[:5]}. Fit with rows of them, or name them otherwise."
                )
        return X.assign(**codes)

    def _numbers(self, X: np.ndarray) -> np.ndarray:
        """Which columns hold numbers, ``(D,)``."""
        names = getattr(self, "feature_names_in_", range(X.shape[1]))
        return np.array([name not in self.categories_ for name in names])

    def _inputs(self, X: np.ndarray, dtype: torch.dtype) -> Inputs:
        """Standardised numbers; or these, if any, and the codes of each category."""
        where = self._numbers(X)
        codes = torch.tensor(X[:, ~where]).long().unbind(1)
        if not where.any():
            return codes
        numbers = torch.tensor(self.scaler_.transform(X[:, where]), dtype=dtype)
        return (numbers, *codes) if codes else numbers

    @torch.no_grad()
    def _answer(self, X: Any) -> Any:
        check_is_fitted(self)
        X = validate_data(self, self._coded(X, reset=False), dtype=np.float64, reset=False)
        student: Any = self.student_
        return student.distribution(self._inputs(X, torch.float64))


def fitting(estimator: Any) -> Callable[..., Any]:
    """``(x, y) ->`` a fitted copy of an estimator."""

    @wraps(estimator.fit)
    def fitted(x: Inputs, y: Tensor, **options: Any) -> Any:
        if not isinstance(x, Tensor):
            raise ArgumentError(
                "`X` must hold numbers alone for a `teacher` that is an estimator; got categorical "
                "columns. Encode them before, or pass a function (x, y) -> teacher."
            )
        arrays = {name: value.numpy() for name, value in options.items()}
        return clone(estimator).fit(x.numpy(), y.numpy(), **arrays)

    return fitted


class OnePassClassifier(ClassifierMixin, OnePassEstimator):
    r"""A scikit-learn classifier that says how sure it is, without any Pyro model.

    ``fit`` standardises the inputs, makes a Bayesian teacher and distills it into one network
    :math:`x \mapsto \mathrm{Dir}(\alpha(x))` (:func:`pyro_opu.distill`); predictions are one
    forward pass of that student in float64. It works in a ``Pipeline``, ``cross_val_score`` and
    ``GridSearchCV``, and can be pickled. The uncertainty is the teacher's, right or wrong:
    "logistic" knows only what a linear model can be unsure of, "dropout" is a rough posterior whose
    spread follows its rate.

    Categorical columns of a pandas data frame are indices to teacher and student: a function is
    given ``x = (numbers, code, ...)``, an int64 code ``(N,)`` for each of them in order, and asked
    ``teacher(numbers, code, ...)``; without numbers they are left out.

    Args:
        teacher: "dropout" (:func:`~.ready_teachers.dropout_teacher`), "logistic"
            (:func:`~.ready_teachers.logistic_teacher`, which needs the package polyagamma), or
            a function ``(x, y) -> teacher`` of standardised
            float32 inputs ``(N, D)`` and int64 classes ``(N,)`` that returns anything
            :func:`pyro_opu.as_teacher` takes, such as ``partial(dropout_teacher, p=0.5)``. Its
            parameters can be searched as ``teacher__p`` in ``TeacherFunction(dropout_teacher)``.
            Or an estimator, whose copy is fitted, if :func:`pyro_opu.as_teacher` takes it.
        guide, loss, num_steps: As for :func:`pyro_opu.distill`.
        random_state: Seed of ``fit``: an integer, a ``RandomState``, or None for NumPy's own.

    Attributes:
        classes_: The class labels, sorted, ``(C,)``.
        scaler_: The ``StandardScaler`` of the numbers.
        categories_: Categories by column, in the order of their codes.
        student_: The :class:`~pyro_opu.OnePassPredictive`, of standardised inputs.

    Example:
        >>> from functools import partial
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> quick = partial(dropout_teacher, hidden=(16,), epochs=20)
        >>> classifier = OnePassClassifier(quick, loss="moments", num_steps=40, random_state=0)
        >>> classifier.fit(X, y).predict_proba(X).shape
        (150, 3)
        >>> sorted(classifier.predict_uncertainty(X))[:4]
        ['aleatoric', 'concentration', 'differential_entropy', 'epistemic']
    """

    teachers = CLASSIFIERS

    def predict(self, X: object) -> np.ndarray:
        """Predict the most probable class of every row, ``(N,)``, as in ``classes_``."""
        probs = self.predict_proba(X)  # which says where it has not been fitted
        return self.classes_[probs.argmax(1)]

    def predict_proba(self, X: object) -> np.ndarray:
        """Mean of the posterior predictive, ``(N, C)`` in the order of ``classes_``."""
        answer: SimplexDistribution = self._answer(X)
        return answer.log_mean.softmax(-1).numpy()

    def _target(self, y: np.ndarray, weights: Tensor | None) -> Tensor:
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ArgumentError(
                f"`y` must hold at least two classes; got one class, {self.classes_[0]}. Add rows "
                "of another one."
            )
        return torch.tensor(codes)

    def _check(self, student: Any) -> None:
        if student.num_classes != len(self.classes_):
            raise ArgumentError(
                f"`teacher` must give probabilities of the {len(self.classes_)} classes of y; got "
                f"{student.num_classes} classes. Size it by y.max() + 1."
            )


class OnePassRegressor(RegressorMixin, OnePassEstimator):
    r"""A scikit-learn regressor that says how sure it is.

    As :class:`OnePassClassifier`, for a real y, which the teacher is given standardised; the
    student answers with :math:`N(\mu(x), a(x) + e(x))`.

    Args:
        teacher: "dropout" (:func:`~.ready_teachers.dropout_teacher`), "linear"
            (:func:`~.ready_teachers.linear_teacher`), a function ``(x, y) -> teacher`` of
            standardised float32 inputs ``(N, D)`` and y ``(N,)`` that returns what
            :func:`pyro_opu.as_teacher` takes, or an estimator.
        guide, loss, num_steps, random_state: See :class:`OnePassClassifier`.

    Attributes:
        mean_: The mean of y.
        scale_: Its deviation.
        scaler_: See :class:`OnePassClassifier`.
        categories_: See :class:`OnePassClassifier`.
        student_: See :class:`OnePassClassifier`.

    Example:
        >>> from sklearn.datasets import make_regression
        >>> X, y = make_regression(100, 3, noise=5.0, random_state=0)
        >>> regressor = OnePassRegressor("linear", num_steps=40, random_state=0).fit(X, y)
        >>> mean, deviation = regressor.predict(X, return_std=True)
        >>> sorted(regressor.predict_uncertainty(X))[:2]
        ['aleatoric', 'epistemic']
    """

    teachers = REGRESSORS

    def predict(self, X: object, return_std: bool = False) -> Any:
        """The mean of y ``(N,)``; with ``return_std`` its standard deviation, too."""
        answer = self._answer(X)
        mean: np.ndarray = answer.mean.numpy()
        return (mean, answer.stddev.numpy()) if return_std else mean

    def _target(self, y: np.ndarray, weights: Tensor | None) -> Tensor:
        counts = None if weights is None else weights.numpy()
        y = np.asarray(y, dtype=np.float64)
        self.mean_ = np.average(y, weights=counts)
        self.scale_ = np.sqrt(np.average((y - self.mean_) ** 2, weights=counts)) or 1.0
        return torch.tensor((y - self.mean_) / self.scale_, dtype=torch.float32)

    def _check(self, student: Any) -> None:
        if student.num_classes is not None:
            raise ArgumentError(
                "`teacher` must answer with a real y, as a function x -> (loc, scale) does; got "
                f"{student.num_classes} classes. Use OnePassClassifier for them."
            )

    def _answer(self, X: object) -> PredictiveNormal:
        answer, shift = super()._answer(X).normal(), 2 * np.log(self.scale_)
        parts = (answer.log_aleatoric + shift, answer.log_epistemic + shift)
        return PredictiveNormal(self.mean_ + self.scale_ * answer.loc, *parts)
