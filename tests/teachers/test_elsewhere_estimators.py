"""Fitted scikit-learn ensembles as teachers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pyro_opu import as_teacher, distill
from pyro_opu.guides.plug_in import NetworkTrunk
from pyro_opu.teachers import EstimatorsTeacher
from pyro_opu.teachers.held import hold
from pyro_opu.teachers.ramps import ramp_network

ensemble = pytest.importorskip("sklearn.ensemble")
linear_model = pytest.importorskip("sklearn.linear_model")
from sklearn.neighbors import KNeighborsClassifier  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.svm import LinearSVC  # noqa: E402
from sklearn.tree import DecisionTreeClassifier  # noqa: E402

RANDOM = np.random.default_rng(0)
TRAIN = RANDOM.normal(size=(120, 4)).astype(np.float32)
LABELS = np.array(["c", "a", "d", "b"])[(TRAIN[:, 0] > 0) + 2 * (TRAIN[:, 1] > 0.5)]
TEST = RANDOM.normal(size=(30, 4)).astype(np.float32)
X = torch.as_tensor(TEST)
#: float32 of a mean of float64.
ROUNDING = {"rtol": 1e-5, "atol": 1e-6}


def forest(**options: Any) -> Any:
    return ensemble.RandomForestClassifier(12, random_state=0, **options)


def bagging(estimator: Any = None, **options: Any) -> Any:
    return ensemble.BaggingClassifier(estimator, n_estimators=12, random_state=0, **options)


def logistic() -> Any:
    return linear_model.LogisticRegression()


CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "forest": lambda: forest(min_samples_leaf=3),
    "weighted forest": lambda: forest(class_weight="balanced", max_features=1),
    "extra trees": lambda: ensemble.ExtraTreesClassifier(12, max_depth=3),
    "bagged trees": bagging,
    "of some columns": lambda: bagging(max_features=2, bootstrap_features=True),
    "bagged neighbours": lambda: bagging(KNeighborsClassifier(3), max_features=3),
    "bagged votes": lambda: bagging(LinearSVC()),
    "bagged pipelines": lambda: bagging(make_pipeline(StandardScaler(), logistic())),
    "some classes unseen": lambda: bagging(KNeighborsClassifier(1), max_samples=6),
    "vote": lambda: ensemble.VotingClassifier([("a", logistic()), ("b", forest())], voting="soft"),
    "weighted vote": lambda: ensemble.VotingClassifier(
        [("a", logistic()), ("b", DecisionTreeClassifier()), ("c", "drop")],
        voting="soft",
        weights=[3, 1, 5],
    ),
    "pipeline": lambda: make_pipeline(StandardScaler(), bagging(logistic())),
    "pipeline of one": lambda: make_pipeline(forest()),
}


@pytest.mark.parametrize("build", CLASSIFIERS.values(), ids=CLASSIFIERS)
def test_the_mean_of_the_draws_is_the_ensembles(build: Callable[[], Any]) -> None:
    fitted = build().fit(TRAIN, LABELS)
    teacher = as_teacher(fitted)
    assert isinstance(teacher, EstimatorsTeacher)
    probs = teacher.probs(X)
    np.testing.assert_allclose(probs.mean(0).numpy(), fitted.predict_proba(TEST), **ROUNDING)
    assert teacher.num_classes == 4 and teacher.max_draws == len(probs)
    torch.testing.assert_close(teacher.probs(X[:1]), probs[:, :1], **ROUNDING)
    assert len(teacher.probs(X, 2)) == 2


def test_each_draw_is_a_member() -> None:
    """By the slow loop, for members that read other columns and have not seen every class."""
    fitted = bagging(KNeighborsClassifier(1), max_features=2, max_samples=6)
    fitted.fit(TRAIN, LABELS)
    expected = np.zeros((12, 30, 4))
    pairs = zip(fitted.estimators_, fitted.estimators_features_, strict=True)
    for s, (member, columns) in enumerate(pairs):
        found = member.predict_proba(TEST[:, columns])
        for place, label in enumerate(member.classes_):
            expected[s, :, int(label)] = found[:, place]
    assert any(len(member.classes_) < 4 for member in fitted.estimators_)
    np.testing.assert_allclose(as_teacher(fitted).probs(X).numpy(), expected, **ROUNDING)


def test_a_list_of_classifiers() -> None:
    """Of their own classes, by their labels."""
    kept = LABELS != "c"
    fitted = [logistic().fit(TRAIN, LABELS), forest().fit(TRAIN[kept], LABELS[kept])]
    teacher = as_teacher(fitted)
    first, second = teacher.probs(X).numpy()
    np.testing.assert_allclose(first, fitted[0].predict_proba(TEST), **ROUNDING)
    np.testing.assert_allclose(second[:, [0, 1, 3]], fitted[1].predict_proba(TEST), **ROUNDING)
    assert (second[:, 2] < 1e-30).all()
    with pytest.raises(TypeError, match=r"`source\[1\]` must be a fitted classifier"):
        as_teacher([fitted[0], torch.nn.Linear(2, 3)])


def test_a_table_with_named_columns() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(TRAIN, columns=list("wxyz"))
    vote = ensemble.VotingClassifier([("a", logistic()), ("b", forest())], voting="soft")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "X does not have valid feature names"
        for unfitted in (forest(), bagging(), vote, make_pipeline(StandardScaler(), forest())):
            fitted = unfitted.fit(table, LABELS)
            expected = fitted.predict_proba(pandas.DataFrame(TEST, columns=list("wxyz")))
            found = as_teacher(fitted).probs(X).mean(0)
            np.testing.assert_allclose(found.numpy(), expected, **ROUNDING)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (lambda: ensemble.HistGradientBoostingClassifier(), TypeError, "one model. Fit several"),
        (lambda: ensemble.GradientBoostingClassifier().fit(TRAIN, LABELS), TypeError, "one model"),
        (lambda: logistic().fit(TRAIN, LABELS), TypeError, "BaggingClassifier.LogisticRegression"),
        (forest, ValueError, "must be fitted; this RandomForestClassifier"),
        (lambda: forest().fit(TRAIN, TRAIN > 0), ValueError, "one outcome per row"),
        (
            lambda: ensemble.VotingClassifier([("a", logistic()), ("b", forest())]).fit(
                TRAIN, LABELS
            ),
            ValueError,
            "voting='soft'",
        ),
        (
            lambda: ensemble.VotingClassifier(
                [("a", logistic()), ("b", forest())], voting="soft", weights=[0.5, 1]
            ).fit(TRAIN, LABELS),
            ValueError,
            "whole weights",
        ),
        (
            lambda: ensemble.RandomForestRegressor(3).fit(TRAIN, TRAIN[:, 0]),
            TypeError,
            "no noise. Pass .*EstimatorsTeacher",
        ),
    ],
)
def test_refused(source: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        distill(source(), X, progress=False)


@pytest.mark.parametrize("name", ["RandomForestRegressor", "ExtraTreesRegressor"])
def test_regressors(name: str) -> None:
    target = TRAIN[:, 0] + 0.1 * TRAIN[:, 1]
    fitted = getattr(ensemble, name)(8, random_state=0).fit(TRAIN, target)
    teacher = EstimatorsTeacher(fitted, 0.25)
    draws = teacher.draws(X)
    expected = np.stack([member.predict(TEST) for member in fitted.estimators_])
    np.testing.assert_allclose(draws[..., 0].numpy(), expected, rtol=1e-5)
    assert bool((draws[..., 1].exp() - 0.25).abs().max() < 1e-6)
    bagged = ensemble.BaggingRegressor(n_estimators=8, max_features=2).fit(TRAIN, target)
    noisy = as_teacher(EstimatorsTeacher(bagged, lambda x: 1 + x[:, 0] ** 2))
    np.testing.assert_allclose(
        noisy.draws(X)[..., 0].mean(0).numpy(), bagged.predict(TEST), rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(noisy.draws(X)[3, :, 1].exp(), 1 + X[:, 0] ** 2)
    fast = distill(teacher, X, num_steps=20, seed=0, progress=False)
    assert fast.uncertainty(X).epistemic.shape == (30,)
    with pytest.raises(TypeError, match="is a classifier"):
        EstimatorsTeacher(forest().fit(TRAIN, LABELS), 1.0)


def test_a_student_begins_with_ramps_and_is_saved(tmp_path: Any) -> None:
    """Columns of whole numbers are no indices to a tree, which takes any number."""
    whole = np.c_[np.round(3 * TRAIN[:, :2] + 9), TRAIN[:, 2:]].astype(np.float32)
    fitted = forest().fit(whole, LABELS)
    x = torch.as_tensor(whole)
    fast = distill(fitted, x, num_steps=30, seed=0, progress=False)
    assert isinstance(fast.guide.trunk, NetworkTrunk)
    assert fast(x)["obs"].shape == (12, 120)
    fast.save(tmp_path / "fast.safetensors")
    again = type(fast).load(tmp_path / "fast.safetensors")
    torch.testing.assert_close(again.dirichlet(x).mean, fast.dirichlet(x).mean)
    held = hold(as_teacher(fitted), x, 5)
    assert held.in_steps and torch.equal(held.probs(x), held.probs(x))


def test_ramps_rise_between_values_and_no_further() -> None:
    """Beyond the values a tree says what it says at the last one."""
    values = torch.tensor([[0.0, 5.0], [1.0, 5.0], [4.0, 5.0], [4.0, 6.0]])
    network = ramp_network(values, 3)
    weights = network.candidates[0]
    assert weights["w0"].shape[1] == 3  # 0 to 1, 1 to 4; 5 to 6
    far = torch.tensor([[-1e6, 1e6], [4.0, 6.0], [1e6, 6.0], [0.0, 6.5]])
    found = network.log_probs(weights, far)
    torch.testing.assert_close(found[1], found[2])
    torch.testing.assert_close(found[0], found[3])
    assert not torch.allclose(found[0], found[1])
