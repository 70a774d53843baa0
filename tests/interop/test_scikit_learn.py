"""The scikit-learn classifier: scikit-learn's own checks, and what it adds to them."""

from __future__ import annotations

import pickle
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs, make_moons
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import check_estimator
from torch import Tensor

from pyro_opu import aleatoric_uncertainty
from pyro_opu.interop.scikit_learn import (
    OnePassClassifier,
    OnePassRegressor,
    dropout_teacher,
    logistic_teacher,
)
from pyro_opu.teachers import as_teacher

pytestmark = pytest.mark.usefixtures("brief")

needs_polyagamma = pytest.mark.skipif(find_spec("polyagamma") is None, reason="needs polyagamma")


#: Weights are repetitions in the posterior, but not in its draws and in the student's batches.
DRAWN = dict.fromkeys(
    ("check_sample_weight_equivalence_on_dense_data",), "the posterior is the same, its draws not"
)


def fan(x: Tensor, y: Tensor) -> Any:
    """A teacher in closed form: 40 scales of one linear score, for two classes or more."""
    classes = torch.arange(int(y.max()) + 1)
    scales = torch.linspace(0.2, 2.0, 40)[:, None, None]
    return lambda x: torch.softmax(scales * x[:, :1] * classes, -1)


def quick(teacher: Any = fan, **options: Any) -> OnePassClassifier:
    options = {"loss": "moments", "num_steps": 60, "random_state": 0, **options}
    return OnePassClassifier(teacher, **options)


def blobs(classes: int = 3, rows: int = 90) -> tuple[np.ndarray, np.ndarray]:
    return make_blobs(rows, centers=classes, n_features=4, cluster_std=2.0, random_state=1)


@needs_polyagamma
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The teacher has not mixed")
def test_every_check_of_scikit_learn() -> None:
    """With too few draws and steps for anything but the interface."""
    teacher = partial(logistic_teacher, num_draws=30, warmup_steps=10)
    done = check_estimator(
        quick(teacher, num_steps=8), on_skip=None, on_fail=None, expected_failed_checks=DRAWN
    )
    assert len(done) > 50 and sum(each["status"] == "passed" for each in done) >= len(done) - 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The student has learned little")
@pytest.mark.parametrize("exact", [False, True])
def test_every_check_of_scikit_learn_of_a_regressor(exact: bool) -> None:
    regressor = OnePassRegressor("linear", num_steps=8, exact=exact, random_state=0)
    done = check_estimator(regressor, on_skip=None, on_fail=None, expected_failed_checks=DRAWN)
    failed = [each["check_name"] for each in done if each["status"] == "failed"]
    assert len(done) > 50 and not failed


@needs_polyagamma
@pytest.mark.filterwarnings("ignore:The teacher has not mixed")
def test_logistic_is_scikit_learns() -> None:
    X, y = blobs(2, 200)
    # The same prior: N(0, 1) on weights of standardised inputs, C = 1; the intercept's is flat.
    other = LogisticRegression().fit((X - X.mean(0)) / X.std(0), y)
    found = quick(partial(logistic_teacher, num_draws=200), num_steps=300).fit(X, y)
    theirs = other.predict_proba((X - X.mean(0)) / X.std(0))
    # A posterior mean beside a plug-in at the mode, from 200 rows: 0.02 on average.
    assert abs(found.predict_proba(X) - theirs).mean() < 0.02
    assert found.score(X, y) > 0.95


@pytest.mark.slow
def test_dropout_bends() -> None:
    X, y = make_moons(200, noise=0.1, random_state=0)
    teacher = partial(dropout_teacher, hidden=(64,), p=0.1, epochs=120)
    found = quick(teacher, guide="dirichlet", num_steps=160).fit(X, y)
    # 0.87 of a line; 0.91 to 0.94 with three seeds.
    assert found.score(X, y) > LogisticRegression().fit(X, y).score(X, y) + 0.02


def test_it_answers_as_its_teacher() -> None:
    X, y = blobs()
    found = quick(num_steps=400).fit(X, y)
    x = torch.tensor((X - X.mean(0)) / X.std(0))
    draws = as_teacher(fan(x, torch.tensor(y))).probs(x)
    probs, u = found.predict_proba(X), found.predict_uncertainty(X)
    # 400 steps of a small network: a percent of probability, and as much of a nat.
    assert abs(probs - draws.mean(0).numpy()).mean() < 0.02
    assert abs(u["aleatoric"] - aleatoric_uncertainty(draws).numpy()).mean() < 0.02
    np.testing.assert_allclose(u["total"], u["aleatoric"] + u["epistemic"], atol=1e-12)
    entropy = -(probs * np.log(probs)).sum(1)
    np.testing.assert_allclose(u["total"], entropy, atol=1e-9)  # float64 sums
    np.testing.assert_allclose(u["max_probability"], probs.max(1), atol=1e-12)
    assert {value.dtype for value in (*u.values(), probs)} == {np.dtype("float64")}
    assert {value.shape for value in u.values()} == {(len(X),)}
    # One row asks the same as all rows do.
    alone = found.predict_uncertainty(X[3:4])
    np.testing.assert_allclose(alone["epistemic"], u["epistemic"][3:4], rtol=1e-9)


@pytest.mark.parametrize("labels", [["no", "yes"], [-1, 7], [False, True], ["a", "b", "c"]])
def test_labels_of_any_kind(labels: list[Any]) -> None:
    X, codes = blobs(len(labels))
    y = np.array(labels)[codes]
    found = quick().fit(X, y)
    assert found.classes_.tolist() == labels and found.predict(X).dtype == y.dtype
    chosen = found.classes_[found.predict_proba(X).argmax(1)]
    np.testing.assert_array_equal(found.predict(X), chosen)


@pytest.mark.parametrize("teacher", [fan, partial(dropout_teacher, hidden=(8,), epochs=2)])
def test_random_state_fixes_all_and_changes_nothing(teacher: Any) -> None:
    X, y = blobs()
    kept, theirs = torch.get_rng_state(), np.random.get_state()[1].copy()
    options: dict[str, Any] = {"guide": "network", "num_steps": 5}
    one, same, other = (quick(teacher, random_state=s, **options).fit(X, y) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), kept)
    np.testing.assert_array_equal(np.random.get_state()[1], theirs)
    np.testing.assert_array_equal(one.predict_proba(X), same.predict_proba(X))
    assert (one.predict_proba(X) != other.predict_proba(X)).any()


def test_pickled_cloned_piped_and_searched() -> None:
    X, y = blobs()
    found = quick(guide="mixture", num_steps=20).fit(X, y)
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.predict_proba(X), found.predict_proba(X))
    assert not hasattr(clone(found), "student_") and clone(found).guide == "mixture"
    pipe = make_pipeline(PolynomialFeatures(2), quick(num_steps=20))
    assert pipe.fit(X, y).predict_proba(X).shape == (90, 3)
    search = GridSearchCV(quick(), {"num_steps": [5, 20]}, cv=2, scoring="neg_log_loss")
    scores = search.fit(X, y).cv_results_["mean_test_score"]
    assert scores[0] != scores[1]
    alone = quick(**search.best_params_).fit(X, y)
    np.testing.assert_array_equal(search.predict_proba(X), alone.predict_proba(X))


def test_a_constant_column_and_large_numbers() -> None:
    X, y = blobs()
    X = np.column_stack([1e12 * X, np.full(len(X), 3.0)])
    found = quick().fit(X, y)
    assert np.isfinite(found.predict_proba(X)).all() and found.n_features_in_ == 5


def test_one_class_has_nothing_to_learn() -> None:
    X, _ = blobs()
    with pytest.raises(ValueError, match="`y` must hold at least two classes; got one class, a"):
        quick().fit(X, ["a"] * len(X))


# The draws in the place of a student ---------------------------------------------------------


def pair(x: Tensor, y: Tensor) -> Any:
    """Draws and their function, which can be recorded, and pickled with it."""
    weights = torch.randn(50, x.shape[1], int(y.max()) + 1)
    return {"w": weights}, said_of


def said_of(draw: Any, x: Tensor) -> Tensor:
    return (x @ draw["w"]).softmax(-1)


TEACHERS: dict[str, Any] = {
    "pair": pair,
    "function": fan,
    "dropout": partial(dropout_teacher, hidden=(8,), epochs=5),
}


@pytest.mark.parametrize("name", TEACHERS)
def test_exact_answers_are_the_draws_own(name: str) -> None:
    X, y = blobs()
    found = quick(TEACHERS[name], exact=True, loss=None).fit(X, y)
    x = torch.tensor((X - X.mean(0)) / X.std(0), dtype=torch.float32)
    draws = found.student_.probs(x).double()
    np.testing.assert_allclose(found.predict_proba(X), draws.mean(0), atol=1e-6)
    said = found.predict_uncertainty(X, quantiles=(0.0, 0.25, 1.0))
    np.testing.assert_allclose(said["aleatoric"], aleatoric_uncertainty(draws), atol=1e-6)
    levels = torch.quantile(draws, torch.tensor([0.0, 0.25, 1.0]).double(), 0)
    np.testing.assert_allclose(said["quantiles"], levels, atol=1e-6)
    assert found.score(X, y) >= 0 and "mean" not in said
    if name != "function":  # made in a function, which cannot be pickled
        again = pickle.loads(pickle.dumps(found))
        np.testing.assert_allclose(again.predict_proba(X), found.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("teacher", ["linear", partial(dropout_teacher, hidden=(8,), epochs=5)])
def test_exact_answers_of_a_regressor(teacher: Any) -> None:
    X, _ = blobs()
    y = 100.0 + 30.0 * X[:, 0]
    found = OnePassRegressor(teacher, exact=True, random_state=0).fit(X, y)
    x = torch.tensor((X - X.mean(0)) / X.std(0), dtype=torch.float32)
    means, log_scales = found.student_.draws(x).double().unbind(-1)
    mean, deviation = found.predict(X, return_std=True)
    np.testing.assert_allclose(mean, y.mean() + y.std() * means.mean(0), rtol=1e-4)
    total = means.var(0) + (2 * log_scales).exp().mean(0)
    np.testing.assert_allclose(deviation, y.std() * total.sqrt(), rtol=1e-4)
    (half,) = found.predict_uncertainty(X, quantiles=[0.5])["quantiles"]
    median = y.mean() + y.std() * means.quantile(0.5, dim=0)
    np.testing.assert_allclose(half, median, rtol=1e-4)
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.predict(X), mean)


def test_a_bound_is_that_of_the_student() -> None:
    x, y = blobs(rows=200)
    found = quick().fit(x, y)
    assert 0 < found.bound() == found.student_.bound(0.95) and found.bound(0.99) is None
    assert quick(exact=True, loss=None).fit(x, y).bound(0.999) == 0.0
    assert quick().fit(*blobs()).bound() is None
    with pytest.raises(NotFittedError):
        quick().bound()


def test_what_exact_does_not_take() -> None:
    X, y = blobs()
    with pytest.raises(ValueError, match="takes neither `guide` nor `loss`"):
        quick(pair, exact=True).fit(X, y)
    with pytest.raises(ValueError, match="`quantiles` are those of a posterior's draws"):
        quick(num_steps=5).fit(X, y).predict_uncertainty(X, quantiles=[0.5])
