"""Scikit-learn estimators: a real y, weights of rows, searched teachers, categorical columns."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from torch import Tensor

from pyro_opu.interop.scikit_learn import (
    OnePassClassifier,
    OnePassRegressor,
    TeacherFunction,
    dropout_teacher,
    linear_teacher,
    logistic_teacher,
)

pytestmark = pytest.mark.usefixtures("brief")

needs_polyagamma = pytest.mark.skipif(find_spec("polyagamma") is None, reason="needs polyagamma")
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(200, 3))
Y = 50.0 + 20.0 * X @ [1.0, -0.5, 0.0] + 6.0 * RANDOM.normal(size=200)
LABELS = (Y > 50).astype(int)


# A real y ------------------------------------------------------------------------------------


def test_a_linear_regressor_is_ridge_regression() -> None:
    teacher = TeacherFunction(linear_teacher, num_draws=300)
    found = OnePassRegressor(teacher, num_steps=300, random_state=0).fit(X, Y)
    z = (X - X.mean(0)) / X.std(0)
    theirs = Ridge(alpha=1.0).fit(z, Y).predict(z)
    mean, deviation = found.predict(X, return_std=True)
    # 300 steps and draws: 3 % of the deviation of y, which is 23.
    assert abs(mean - theirs).mean() < 0.7
    assert deviation == pytest.approx(6.0 * np.ones(200), rel=0.15)  # 200 rows: 5 %
    u = found.predict_uncertainty(X)
    columns = np.column_stack([z, np.ones(200)])
    spread = np.linalg.inv(columns.T @ columns + np.eye(4))
    expected = (Y - theirs).var() * ((columns @ spread) * columns).sum(1)
    assert abs(np.log(u["epistemic"] / expected)).mean() < 0.2
    np.testing.assert_allclose(u["total"], deviation**2)
    assert found.score(X, Y) > 0.9
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.predict(X), mean)


@pytest.mark.slow
def test_dropout_learns_a_curve_and_its_noise() -> None:
    x = np.linspace(-2, 2, 200)[:, None]
    y = 100 * np.sin(2 * x[:, 0]) + 10 * RANDOM.normal(size=200)
    teacher = TeacherFunction(dropout_teacher, hidden=(32, 32), p=0.02, epochs=80)
    found = OnePassRegressor(teacher, num_steps=150, random_state=0).fit(x, y)
    assert found.score(x, y) > 0.85 > Ridge().fit(x, y).score(x, y) + 0.5
    # The noise's deviation of 10; dropout in training blurs the curve.
    assert 7 < np.sqrt(np.median(found.predict_uncertainty(x)["aleatoric"])) < 30


def test_a_teacher_of_classes_is_no_regressor() -> None:
    def teacher(x: Tensor, y: Tensor) -> Any:
        return lambda x: torch.full((9, len(x), 2), 0.5)

    with pytest.raises(ValueError, match="`teacher` must answer with a real y, .* got 2 classes"):
        OnePassRegressor(teacher, num_steps=5, random_state=0).fit(X, Y)


# Weights -------------------------------------------------------------------------------------


def test_weights_are_repetitions() -> None:
    x, y = torch.tensor(X).float(), torch.tensor(Y / 20 - 2.5).float()
    counts = torch.arange(200) % 3
    torch.manual_seed(0)
    weighted = linear_teacher(x, y, sample_weight=counts.float())
    torch.manual_seed(0)
    repeated = linear_teacher(x.repeat_interleave(counts, 0), y.repeat_interleave(counts))
    for one, other in zip(weighted(x), repeated(x), strict=True):
        torch.testing.assert_close(one, other)


WEIGHTS = np.where(LABELS == 1, 5.5, 0.5)


@needs_polyagamma
@pytest.mark.filterwarnings("ignore:The teacher has not mixed")
def test_weighted_rows_weigh_more_in_logistic_regression() -> None:
    teacher = TeacherFunction(logistic_teacher, num_draws=200, warmup_steps=50)
    z = (X - np.average(X, 0, WEIGHTS)) / np.sqrt(np.average(X**2, 0, WEIGHTS))
    theirs = LogisticRegression().fit(z, LABELS, WEIGHTS).predict_proba(z)
    plain = LogisticRegression().fit(z, LABELS).predict_proba(z)
    found = OnePassClassifier(teacher, num_steps=200, random_state=0)
    probs = found.fit(X, LABELS, sample_weight=WEIGHTS).predict_proba(X)
    # A posterior mean beside a mode; without weights the gap is 0.08.
    assert abs(probs - theirs).mean() < 0.04 < 0.06 < abs(probs - plain).mean()


def test_weighted_rows_weigh_more_in_a_network() -> None:
    x, y = torch.tensor(X).float(), torch.tensor(LABELS)
    means = []
    for weights in (WEIGHTS, 6.0 - WEIGHTS):
        teacher = dropout_teacher(x, y, epochs=20, sample_weight=torch.tensor(weights).float())
        means.append(float(teacher.probs(x, 50)[..., 1].mean()))
    assert means[0] > means[1] + 0.2


def test_a_row_without_weight_is_left_out() -> None:
    keep = np.arange(200) % 4 > 0
    one, other = (OnePassRegressor("linear", num_steps=10, random_state=0) for _ in range(2))
    one.fit(X, Y, sample_weight=keep.astype(float))
    other.fit(X[keep], Y[keep], sample_weight=np.ones(150))
    np.testing.assert_array_equal(one.predict(X), other.predict(X))
    with pytest.raises(ValueError, match="`sample_weight` must be above 0 for at least 4 rows"):
        one.fit(X, Y, sample_weight=np.arange(200) < 2)


# Searched teachers ---------------------------------------------------------------------------


class Fan(BaseEstimator):
    """An estimator that is a teacher when it is fitted: scales of one linear score."""

    def __init__(self, width: float = 1.0) -> None:
        self.width = width

    def fit(self, X: np.ndarray, y: np.ndarray) -> Fan:
        assert isinstance(X, np.ndarray) and isinstance(y, np.ndarray)
        self.coef_ = torch.tensor(np.linalg.lstsq(X, 2.0 * y - 1)[0]).float()
        return self

    def __call__(self, x: Tensor) -> Tensor:
        p = torch.sigmoid(torch.linspace(0, self.width, 20)[:, None] * (x @ self.coef_))
        return torch.stack([1 - p, p], -1)


def fan(x: Tensor, y: Tensor, width: float) -> Fan:
    return Fan(width).fit(x.numpy(), y.numpy())


@pytest.mark.filterwarnings("ignore:The student has learned little")
@pytest.mark.parametrize(
    ("teacher", "name"),
    [
        (TeacherFunction(fan, width=1.0), "teacher__width"),
        (Fan(), "teacher__width"),
    ],
)
def test_a_teachers_parameters_are_searched(teacher: Any, name: str) -> None:
    estimator = OnePassClassifier(teacher, num_steps=20, random_state=0)
    assert clone(estimator).get_params()[name] == estimator.get_params()[name]
    search = GridSearchCV(estimator, {name: [0.1, 0.9]}, cv=2, scoring="neg_log_loss")
    scores = search.fit(X, LABELS).cv_results_["mean_test_score"]
    assert scores[0] != scores[1]
    assert estimator.get_params()[name] in (0.1, 1.0)  # left as it was
    with pytest.raises(TypeError, match="must take sample_weight"):
        OnePassClassifier(Fan()).fit(X, LABELS, sample_weight=np.ones(200))


# Categorical columns -------------------------------------------------------------------------

COLOURS = ["red", "green", "blue"]
CODES = RANDOM.integers(3, size=200)
FRAME = pd.DataFrame(
    {
        "a": X[:, 0],
        "colour": pd.Categorical.from_codes(CODES, [*COLOURS, "none has it"]),
        "b": X[:, 1],
        "size": pd.Categorical(RANDOM.choice([7, 9], 200)),
    }
)
EFFECTS = np.array([-3.0, 0.0, 3.0])
CHOSEN = (X[:, 0] + EFFECTS[CODES] > 0).astype(int)


def by_colour(x: Any, y: Tensor) -> Callable[..., Tensor]:
    numbers, *codes = x
    assert numbers.shape == (200, 2) and [code.shape for code in codes] == [(200,), (200,)]

    def teacher(numbers: Tensor, colour: Tensor, size: Tensor) -> Tensor:
        score = numbers[:, 0] + torch.tensor(EFFECTS).float()[colour]
        p = torch.sigmoid(torch.linspace(0.5, 1.5, 20)[:, None] * score)
        return torch.stack([1 - p, p], -1)

    return teacher


def test_categorical_columns_are_indices() -> None:
    found = OnePassClassifier(by_colour, num_steps=200, random_state=0).fit(FRAME, CHOSEN)
    names = {part.name: part.source[0].names for part in found.form_.parts}
    assert names == {"a": (), "colour": (*COLOURS, "none has it"), "b": (), "size": (7, 9)}
    assert found.score(FRAME, CHOSEN) > 0.95
    assert found.student_.form.indices == [(2, (0, 1, 2)), (3, (0, 1))]
    probs = found.predict_proba(FRAME)
    plain = FRAME.assign(colour=FRAME["colour"].astype(object), size=FRAME["size"].astype(int))
    np.testing.assert_array_equal(found.predict_proba(plain), probs)  # the names decide
    other = FRAME.assign(colour=FRAME["colour"].cat.set_categories(COLOURS[::-1]))
    np.testing.assert_array_equal(found.predict_proba(other), probs)  # not their order
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.predict_proba(FRAME[:5]), probs[:5])


@pytest.mark.filterwarnings("ignore:The student has learned little")
@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FRAME[["colour", "a", "b", "size"]], "(?s)feature names should match.*same order"),
        (FRAME.assign(more=1.0), "(?s)feature names should match"),
        (FRAME.rename(columns={"b": "c"}), "(?s)feature names should match"),
        (FRAME[["a", "b", "size"]], "(?s)feature names should match"),
        (np.zeros((2, 4)), r"must be a data frame with the columns \['a', 'colour', 'b', 'size'\]"),
        (
            FRAME.assign(colour="pink"),
            r"'colour'\]` must hold names that are known, .*; got 'pink'",
        ),
        (FRAME.assign(colour="none has it"), r"has seen; got \['none has it'\]"),
        (FRAME.assign(size=None), r"'size'\]` must hold no missing values"),
        (FRAME.assign(a=np.nan), r"'a'\]` must hold no missing values"),
    ],
)
def test_other_columns_are_refused(frame: Any, message: str) -> None:
    found = OnePassClassifier(by_colour, num_steps=2, random_state=0).fit(FRAME, CHOSEN)
    with pytest.raises(ValueError, match=message):
        found.predict(frame)


@needs_polyagamma
@pytest.mark.filterwarnings("ignore:The teacher has not mixed")
@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("logistic", ["a", "colour"]),
        pytest.param("dropout", ["a", "colour"], marks=pytest.mark.slow),
        ("linear", ["colour"]),
    ],
)
def test_ready_teachers_take_them(name: str, columns: list[str]) -> None:
    frame = FRAME[columns]
    kind = OnePassRegressor if name == "linear" else OnePassClassifier
    teacher: Any = {
        "logistic": TeacherFunction(logistic_teacher, num_draws=100, warmup_steps=50),
        "dropout": TeacherFunction(dropout_teacher, hidden=(32,), p=0.1, epochs=100),
    }.get(name, name)
    found = kind(teacher, num_steps=200, random_state=0).fit(frame, CHOSEN)
    answers = found.predict(frame) if name == "linear" else found.predict_proba(frame)[:, 1]
    means = [answers[CODES == code].mean() for code in range(3)]
    known = [CHOSEN[CODES == code].mean() for code in range(3)]
    assert abs(np.array(means) - known).max() < 0.2


def ward(rows: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Text, dates, truth values and missing numbers, and labels that depend on each of them."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"age": random.normal(60, 10, rows), "sex": random.choice(["f", "m"], rows)}
    )
    frame["day"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(random.integers(0, 900, rows), "D")
    frame["ill"] = random.random(rows) < 0.5
    score = (frame["age"] - 60) / 10 + (frame["sex"] == "f") + 2.0 * frame["ill"] - 1.5
    score += (frame["day"] - pd.Timestamp("2021-03-25")).dt.days / 260
    gone = random.random(rows) < 0.2
    score[gone] += 2.0
    frame.loc[gone, "age"] = np.nan
    return frame, (random.random(rows) < 1 / (1 + np.exp(-2 * score))).astype(int)


@needs_polyagamma
@pytest.mark.filterwarnings("ignore:The teacher has not mixed")
def test_text_dates_and_missing_values_are_taken() -> None:
    """As a logistic regression of the same columns, made by hand."""
    (frame, y), (new, _) = ward(400, 0), ward(100, 1)

    def by_hand(table: pd.DataFrame) -> np.ndarray:
        days = (table["day"] - frame["day"].mean()) / frame["day"].std(ddof=0)
        age = table["age"].fillna(frame["age"].mean())
        filled = frame["age"].fillna(frame["age"].mean())
        age = (age - filled.mean()) / filled.std(ddof=0)
        sides = [table["sex"] == "f", table["sex"] == "m", ~table["ill"], table["ill"]]
        return np.column_stack([age, days, table["age"].isna(), *sides]).astype(float)

    teacher = TeacherFunction(logistic_teacher, num_draws=200, warmup_steps=50)
    found = OnePassClassifier(teacher, num_steps=300, random_state=0).fit(frame, y)
    theirs = LogisticRegression().fit(by_hand(frame), y).predict_proba(by_hand(new))
    # A posterior mean beside a mode; 0.1 where one of the columns is left out.
    assert abs(found.predict_proba(new) - theirs).mean() < 0.03
    assert list(found.feature_names_in_) == ["age", "sex", "day", "ill"]
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.predict_proba(new), found.predict_proba(new))
    with pytest.raises(ValueError, match=r"`X\['day'\]` must hold a date, as it did first"):
        found.predict(new.assign(day=1.0))


def test_an_estimator_takes_numbers_alone() -> None:
    with pytest.raises(ValueError, match="`X` must hold numbers alone for a `teacher` that is an"):
        OnePassClassifier(Fan()).fit(FRAME, CHOSEN)
