"""Scikit-learn estimators: a Bayesian teacher, ready or the user's, and its one-pass student."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state, check_X_y
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from pyro_opu.checks import ArgumentError, ArgumentTypeError, check_bool, one_of
from pyro_opu.choosing import GuideName, LossName
from pyro_opu.distillation import distill
from pyro_opu.inputs import Inputs
from pyro_opu.interop.ready_teachers import (
    CLASSIFIERS,
    REGRESSORS,
    ClassTeacher,
    RealTeacher,
    TeacherFunction,
    TeacherInputs,
    dropout_teacher,
    linear_teacher,
    logistic_teacher,
)
from pyro_opu.ladder.base import Exact
from pyro_opu.ladder.exact import exact
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
        exact: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.teacher = teacher
        self.guide = guide
        self.loss = loss
        self.num_steps = num_steps
        self.exact = exact
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: object = None) -> Any:
        """Teach by ``X`` ``(N, D)``, at least 4 rows, finite or a data frame, and ``y`` ``(N,)``.

        A row with a weight counts so many times to a teacher that takes ``sample_weight``; one of
        weight 0 is left out.
        """
        make = self._maker()
        X = self._matrix(X, reset=True)
        checks = {"y_numeric": isinstance(self, RegressorMixin), "ensure_min_samples": LEAST_ROWS}
        if self.form_ is None:
            X, y = validate_data(self, X, y, dtype=np.float64, **checks)
        else:
            X, y = check_X_y(X, y, dtype=np.float64, estimator=self, **checks)
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
        numbers = X[:, _measured(self._kinds(X))]
        self.scaler_ = StandardScaler()
        if numbers.shape[1]:
            self.scaler_.fit(numbers, sample_weight=weights if options else None)
        x = self._inputs(X, torch.float32)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with seeded(seed):
            source = make(x, target, **options)
            self.student_ = self._answering(source, x, seed)
        self._check(self.student_.outcome.num_classes)
        return self

    def _answering(self, source: Any, x: TeacherInputs, seed: int) -> Any:
        """What answers: a student, or the draws themselves."""
        if check_bool("exact", self.exact):
            if not (self.guide is None and self.loss is None):
                raise ArgumentError(
                    "`exact` learns nothing, and so takes neither `guide` nor `loss`; got "
                    f"{self.guide!r} and {self.loss!r}. Leave them out."
                )
            answering = exact(source)
            answering.draws(x, 1)  # by which draws are held
            return answering
        settings: dict[str, Any] = {k: getattr(self, k) for k in ("guide", "loss", "num_steps")}
        return distill(source, x, **settings, seed=seed, progress=False).double()

    def predict_uncertainty(
        self, X: object, quantiles: Sequence[float] | None = None
    ) -> dict[str, np.ndarray]:
        """Every measure of :func:`pyro_opu.uncertainty` by name, ``(N,)``.

        With ``exact=True`` "quantiles", too, of levels such as ``(0.05, 0.95)``: ``(Q, N, C)`` of
        the class probabilities, or ``(Q, N)`` of the mean of y, over the draws.
        """
        found = self._measures(X, quantiles)
        if found["mean"].ndim > 1:  # class probabilities, which predict_proba gives
            del found["mean"]
        return found

    def bound(self, level: float = 0.95) -> float | None:
        """How far the student's mean may be from the teacher's at a new row, at this level.

        Total variation of class probabilities, or predictive deviations of a real y; ``None`` where
        too few rows were kept for it: it takes 190 in ``fit``. See
        :meth:`.OnePassPredictive.bound`, of ``student_``. With ``exact=True`` 0.
        """
        check_is_fitted(self)
        exact = isinstance(self.student_, Exact)
        found: float | None = 0.0 if exact else self.student_.bound(level)
        return found

    @abstractmethod
    def _target(self, y: np.ndarray, weights: Tensor | None) -> Tensor:
        """What the teacher is given for ``y``."""

    @abstractmethod
    def _check(self, num_classes: int | None) -> None:
        """Refuse a teacher of other classes than ``y`` has, ``None`` of a real y."""

    def _maker(self) -> Callable[..., Any]:
        """``(x, y) -> source``."""
        if callable(self.teacher) and not hasattr(self.teacher, "fit"):
            return self.teacher
        if hasattr(self.teacher, "fit"):
            return fitting(self.teacher)
        advice = "Or pass a function (x, y) -> teacher, or an estimator."
        return self.teachers[one_of("teacher", self.teacher, self.teachers, advice)]

    def _matrix(self, X: Any, reset: bool) -> Any:
        """A data frame with other columns than numbers, or with missing values, as a matrix."""
        frame = hasattr(X, "select_dtypes")
        if reset:
            missing = [name for name in X.columns if X[name].isna().any()] if frame else []
            numbers = not frame or X.select_dtypes("number").shape[1] == X.shape[1]
            self.form_ = None
            if missing or not numbers:
                validate_data(self, X, skip_check_array=True)
                self.form_ = Inputs.of(X, missing=missing, name="X").form
        if self.form_ is None:
            return X
        if not frame:
            raise ArgumentError(
                f"`X` must be a data frame with the columns {list(self.feature_names_in_)}, as in "
                f"fit; got {type(X).__name__}. Pass one with the same columns in the same order."
            )
        validate_data(self, X, reset=False, skip_check_array=True)
        return self.form_.pack(X, "X", check_seen=not reset).double().numpy()

    def _kinds(self, X: np.ndarray) -> np.ndarray:
        """Kinds of the columns of the matrix, ``(D,)``: number, date, category or missing."""
        if self.form_ is None:
            return np.repeat("number", X.shape[1])
        return np.array([column.kind for part in self.form_.parts for column in part.source])

    def _inputs(self, X: np.ndarray, dtype: torch.dtype) -> TeacherInputs:
        """Standardised numbers and masks; or these, if any, and the codes of each category."""
        kinds = self._kinds(X)
        codes = torch.tensor(X[:, kinds == "category"]).long().unbind(1)
        if (kinds == "category").all():
            return codes
        measured, masks = X[:, _measured(kinds)], X[:, kinds == "missing"]
        if measured.shape[1]:
            measured = self.scaler_.transform(measured)
        numbers = torch.tensor(np.hstack([measured, masks]), dtype=dtype)
        return (numbers, *codes) if codes else numbers

    @torch.no_grad()
    def _measures(self, X: object, quantiles: Sequence[float] | None = None) -> dict[str, Any]:
        """Mean and measures in float64, of a y as the teacher was given it."""
        check_is_fitted(self)
        matrix = self._matrix(X, reset=False)
        if self.form_ is None:
            matrix = validate_data(self, matrix, dtype=np.float64, reset=False)
        if isinstance(self.student_, Exact):
            inputs = self._inputs(matrix, torch.float32)
            found = self.student_.uncertainty(inputs, quantiles=quantiles).to_dict()
        elif quantiles is not None:
            raise ArgumentError(
                "`quantiles` are those of a posterior's draws, which a student does not keep; got "
                f"{quantiles!r}. Make the estimator with exact=True."
            )
        else:
            answer = self.student_.distribution(self._inputs(matrix, torch.float64))
            found = uncertainty(answer).to_dict()
        return {name: value.double().numpy() for name, value in found.items()}


def _measured(kinds: np.ndarray) -> np.ndarray:
    """Which columns are standardised, ``(D,)``."""
    return (kinds == "number") | (kinds == "date")


def fitting(estimator: Any) -> Callable[..., Any]:
    """``(x, y) ->`` a fitted copy of an estimator."""

    @wraps(estimator.fit)
    def fitted(x: TeacherInputs, y: Tensor, **options: Any) -> Any:
        if not isinstance(x, Tensor):
            raise ArgumentError(
                "`X` must hold numbers alone for a `teacher` that is an estimator; got columns of "
                "names. Encode them before, or pass a function (x, y) -> teacher."
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

    Columns of a pandas data frame are read as by :class:`~pyro_opu.Inputs`: categories, text and
    truth values are indices, dates are numbers, and a column with missing values in ``fit`` is a
    value and a mask. A function is given ``x = (numbers, code, ...)``, standardised numbers and
    then the masks, 0 or 1, and an int64 code ``(N,)`` for each of the others in order; and it is
    asked ``teacher(numbers, code, ...)``. Without numbers or without codes these are left out.

    Args:
        teacher: "dropout" (:func:`~.ready_teachers.dropout_teacher`), "logistic"
            (:func:`~.ready_teachers.logistic_teacher`, which needs the package polyagamma), or
            a function ``(x, y) -> teacher`` of standardised
            float32 inputs ``(N, D)`` and int64 classes ``(N,)`` that returns anything
            :func:`pyro_opu.as_teacher` takes, such as ``partial(dropout_teacher, p=0.5)``. Its
            parameters can be searched as ``teacher__p`` in ``TeacherFunction(dropout_teacher)``.
            Or an estimator, whose copy is fitted, if :func:`pyro_opu.as_teacher` takes it.
        guide, loss, num_steps: As for :func:`pyro_opu.distill`.
        exact: Learn nothing, and answer by the teacher's own draws (:func:`pyro_opu.exact`): as
            slow as these are, and as right. It can be pickled if the teacher can.
        random_state: Seed of ``fit``: an integer, a ``RandomState``, or None for NumPy's own.

    Attributes:
        classes_: The class labels, sorted, ``(C,)``.
        scaler_: The ``StandardScaler`` of the numbers.
        form_: The :class:`~pyro_opu.inputs.Form` of a data frame, ``None`` of numbers alone.
        student_: The :class:`~pyro_opu.OnePassPredictive` of standardised inputs, or the
            :class:`~pyro_opu.ladder.base.Exact`.

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
        mean: np.ndarray = self._measures(X)["mean"]
        return mean / mean.sum(1, keepdims=True)

    def _target(self, y: np.ndarray, weights: Tensor | None) -> Tensor:
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ArgumentError(
                f"`y` must hold at least two classes; got one class, {self.classes_[0]}. Add rows "
                "of another one."
            )
        return torch.tensor(codes)

    def _check(self, num_classes: int | None) -> None:
        if num_classes != len(self.classes_):
            raise ArgumentError(
                f"`teacher` must give probabilities of the {len(self.classes_)} classes of y; got "
                f"{num_classes} classes. Size it by y.max() + 1."
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
        guide, loss, num_steps, exact, random_state: See :class:`OnePassClassifier`.

    Attributes:
        mean_: The mean of y.
        scale_: Its deviation.
        scaler_: See :class:`OnePassClassifier`.
        form_: See :class:`OnePassClassifier`.
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
        found = self._measures(X)
        return (found["mean"], np.sqrt(found["total"])) if return_std else found["mean"]

    def _target(self, y: np.ndarray, weights: Tensor | None) -> Tensor:
        counts = None if weights is None else weights.numpy()
        y = np.asarray(y, dtype=np.float64)
        self.mean_ = np.average(y, weights=counts)
        self.scale_ = np.sqrt(np.average((y - self.mean_) ** 2, weights=counts)) or 1.0
        return torch.tensor((y - self.mean_) / self.scale_, dtype=torch.float32)

    def _check(self, num_classes: int | None) -> None:
        if num_classes is not None:
            raise ArgumentError(
                "`teacher` must answer with a real y, as a function x -> (loc, scale) does; got "
                f"{num_classes} classes. Use OnePassClassifier for them."
            )

    def _measures(self, X: object, quantiles: Sequence[float] | None = None) -> dict[str, Any]:
        found, scale = super()._measures(X, quantiles), self.scale_
        in_units = {name: scale**2 * value for name, value in found.items()}
        moved = {k: self.mean_ + scale * found[k] for k in ("mean", "quantiles") if k in found}
        return in_units | moved
