"""Members that are not asked at rows that they have seen; teachers that know the rows."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from flat import distill_flat
from pyro.infer import Predictive
from torch import Tensor, nn

from pyro_opu import as_teacher, distill
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.teachers import EstimatorsTeacher, bagged_contexts, out_of_bag
from pyro_opu.teachers.finished import finished_teacher
from pyro_opu.teachers.own_rows import MemorizedWarning, own_rows

pytest.importorskip("sklearn")
from sklearn.datasets import load_digits
from sklearn.ensemble import BaggingClassifier, ExtraTreesClassifier, RandomForestClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

pytestmark = pytest.mark.usefixtures("brief")

RANDOM = np.random.default_rng(0)
TRAIN = RANDOM.normal(size=(90, 4)).astype("f4")
LABELS = (TRAIN[:, 0] + RANDOM.normal(size=90) > 0).astype(int)
TEST = torch.as_tensor(RANDOM.normal(size=(20, 4)).astype("f4"))
TREES = 15


class Memory:
    """Repeats the labels of its context, and says nothing elsewhere; of no library."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> None:
        self.classes_ = np.unique(y)
        self.known = {row.tobytes(): label for row, label in zip(x, y, strict=True)}

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        probs = np.full((len(x), len(self.classes_)), 1 / len(self.classes_))
        for n, row in enumerate(x):
            if row.tobytes() in self.known:
                probs[n] = self.classes_ == self.known[row.tobytes()]
        return probs


@pytest.mark.parametrize(
    "ensemble",
    [
        RandomForestClassifier(TREES, random_state=0),
        BaggingClassifier(n_estimators=TREES, max_samples=0.5, max_features=2, random_state=0),
        make_pipeline(StandardScaler(), RandomForestClassifier(TREES, random_state=0)),
    ],
)
def test_own_rows_are_answered_by_members_that_have_not_seen_them(ensemble: Any) -> None:
    """By the slow loop over rows and members; two rows are copies of each other."""
    train, labels = np.r_[TRAIN, TRAIN[:1]], np.r_[LABELS, 1 - LABELS[:1]]
    fitted = ensemble.fit(train, labels)
    plain, teacher = as_teacher(fitted), out_of_bag(fitted, train)
    torch.testing.assert_close(teacher.probs(TEST), plain.probs(TEST))
    own = torch.as_tensor(train)
    every, found = plain.probs(own), teacher.probs(own)
    last = fitted[-1] if hasattr(fitted, "steps") else fitted
    replaced = 0
    for n in range(len(train)):
        copies = [0, len(train) - 1] if n in (0, len(train) - 1) else [n]
        seen = np.array([bool(set(copies) & set(each)) for each in last.estimators_samples_])
        if seen.all():
            continue
        for s in range(TREES):
            if not seen[s]:
                torch.testing.assert_close(found[s, n], every[s, n])
                continue
            assert (found[s, n] - every[~seen, n]).abs().sum(-1).min() < 1e-6
            replaced += 1
    assert replaced > 400
    mixed = teacher.probs(torch.cat([TEST[:3], own[:5]]))
    torch.testing.assert_close(mixed, torch.cat([plain.probs(TEST[:3]), found[:, :5]], 1))


def test_contexts_of_any_classifier() -> None:
    teacher = bagged_contexts(Memory(), TRAIN, LABELS, 10, seed=3)
    own = torch.as_tensor(TRAIN)
    torch.testing.assert_close(teacher.probs(own), torch.full((10, 90, 2), 0.5))
    raw = EstimatorsTeacher([member.estimator for member in teacher.estimators])
    assert float(raw.probs(own).amax(-1).mean()) > 0.7  # each knows 63 % of the labels
    sizes = [len(member.estimator.known) for member in teacher.estimators]
    assert round(0.632 * 90) - 3 <= min(sizes) and max(sizes) == round(0.632 * 90)


def test_nearest_neighbours_are_as_good_at_their_own_rows_as_at_new_ones() -> None:
    """Bagged, each row is mostly its own nearest neighbour: the labels come back."""
    y = torch.as_tensor(LABELS)
    own = torch.as_tensor(TRAIN)
    teacher = bagged_contexts(KNeighborsClassifier(1), TRAIN, LABELS, 40)
    raw = EstimatorsTeacher([member.estimator for member in teacher.estimators])

    def right(draws: Tensor) -> float:
        return float((draws.mean(0).argmax(-1) == y).double().mean())

    assert right(raw.probs(own)) > 0.97
    alone = KNeighborsClassifier(2).fit(TRAIN, LABELS).kneighbors(TRAIN)[1][:, 1]
    left_out = float((LABELS[alone] == LABELS).mean())
    assert abs(right(teacher.probs(own)) - left_out) < 0.12  # a neighbour or two farther away
    fast = distill(teacher, own, num_steps=5, seed=0, progress=False)
    assert fast(own)["obs"].shape == (40, 90)


class Numbered(Memory):
    """Says one probability everywhere, that no other context says."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> None:
        super().fit(x, y)
        self.own = float(np.abs(x).sum() % 1)

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return np.tile([self.own, 1 - self.own], (len(x), 1))


@pytest.mark.parametrize(("contexts", "share"), [(30, 0.632), (31, 0.9), (40, 0.3)])
def test_members_that_have_not_seen_a_row_have_equal_weights(contexts: int, share: float) -> None:
    """As equal as whole draws can be, at every row; one more goes to each alike over the rows."""
    teacher = bagged_contexts(Numbered(), TRAIN, LABELS, contexts, share=share)
    own = torch.as_tensor(TRAIN)
    said = torch.tensor([each.estimator.own for each in teacher.estimators])
    assert len(said.unique()) == contexts
    draws = teacher.probs(own)[..., 0]
    for row, found in zip(TRAIN, draws.mT, strict=True):
        counts = ((said[:, None] - found).abs() < 1e-6).sum(1).numpy()
        seen = teacher.seen[row.tobytes()]
        assert not counts[seen].any()
        assert counts.sum() == contexts
        assert np.ptp(counts[~seen]) <= 1


def test_the_mean_is_the_forests_own_out_of_bag() -> None:
    """To the rounding of weights to whole draws; the mean over rows is nearer."""
    forest = RandomForestClassifier(100, oob_score=True, max_depth=3, random_state=0)
    forest.fit(TRAIN, LABELS)
    gap = out_of_bag(forest, TRAIN).probs(torch.as_tensor(TRAIN)).mean(0)[:, 1].numpy()
    gap = gap - forest.oob_decision_function_[:, 1]
    assert np.sqrt((gap**2).mean()) < 0.009  # .015 by turns of the members' numbers
    assert abs(gap.mean()) < 0.002


def test_refused() -> None:
    forest = RandomForestClassifier(5).fit(TRAIN, LABELS)
    with pytest.raises(ValueError, match="the 90 rows that .*got 80"):
        out_of_bag(forest, TRAIN[:80])
    with pytest.raises(ValueError, match="bootstrap=True"):
        out_of_bag(ExtraTreesClassifier(5).fit(TRAIN, LABELS), TRAIN)
    with pytest.raises(TypeError, match="bagged_contexts"):
        out_of_bag(KNeighborsClassifier().fit(TRAIN, LABELS), TRAIN)
    with pytest.raises(ValueError, match="`y` must have a label for each of the 90 rows"):
        bagged_contexts(Memory(), TRAIN, LABELS[:5])
    with pytest.raises(ValueError, match="`share` must leave rows"):
        bagged_contexts(Memory(), TRAIN, LABELS, share=1.0)
    with pytest.raises(TypeError, match="classifier.fit"):
        bagged_contexts(nn.Linear(2, 2), TRAIN, LABELS)


def digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return torch.as_tensor(x).float()[order] / 16, torch.as_tensor(y)[order]


def dropout(x: Tensor, y: Tensor) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 64), nn.ReLU(),
            nn.Dropout(0.5), nn.Linear(64, 10),
        )  # fmt: skip
        optimizer = torch.optim.Adam(net.parameters(), 3e-3)
        for _ in range(20):
            for some in torch.randperm(len(x)).split(64):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x[some]), y[some]).backward()
                optimizer.step()
    return net


def logistic(x: Tensor, y: Tensor) -> Predictive:
    """A posterior by Laplace's approximation of the first order: normals around a fit."""
    from sklearn.linear_model import LogisticRegression

    fit = LogisticRegression(max_iter=300).fit(x.numpy(), y.numpy())
    weight, bias = torch.as_tensor(fit.coef_.T).float(), torch.as_tensor(fit.intercept_).float()
    draws = {
        "weight": weight + 0.3 * torch.randn(60, *weight.shape),
        "bias": bias + 0.3 * torch.randn(60, *bias.shape),
    }
    return Predictive(logistic_regression(10), draws, return_sites=["obs"])


def test_a_teacher_that_knows_the_rows_is_told_from_one_that_does_not() -> None:
    x, y = digits()
    own, new = x[:600], x[600:]
    forest = RandomForestClassifier(60, random_state=0).fit(own.numpy(), y[:600].numpy())
    neighbours = BaggingClassifier(KNeighborsClassifier(1), n_estimators=40, random_state=0)
    neighbours.fit(own.numpy(), y[:600].numpy())
    known = {
        "forest": (forest, own),
        "neighbours": (neighbours, own),
    }
    unknown = {
        "forest elsewhere": (forest, new),
        "neighbours elsewhere": (neighbours, new),
        "forest out of bag": (out_of_bag(forest, own), own),
        "dropout": (dropout(own, y[:600]), own),
        "logistic": (logistic(own, y[:600]), own),
    }
    found = {
        name: own_rows(finished_teacher(source, rows), rows)
        for name, (source, rows) in (known | unknown).items()
    }
    assert all(each is not None for each in found.values())
    assert {name for name, each in found.items() if each and each.memorized} == set(known), found


def test_distill_says_so() -> None:
    x, y = digits()
    own = x[:400]
    forest = RandomForestClassifier(40, random_state=0).fit(own.numpy(), y[:400].numpy())
    options: dict[str, Any] = {"num_steps": 2, "seed": 0, "progress": False, "num_draws": 2}
    state = torch.get_rng_state()
    with pytest.warns(MemorizedWarning, match="fitted to these rows.*out_of_bag"):
        distill_flat(forest, own, **options)
    assert torch.equal(torch.get_rng_state(), state)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MemorizedWarning)
        distill_flat(out_of_bag(forest, own), own, **options)


def test_where_nothing_can_be_said() -> None:
    teacher = finished_teacher(lambda x: torch.full((20, len(x), 2), 0.5), TEST)
    assert own_rows(teacher, torch.randn(100, 4)) is None  # no spread at all
    for x in (torch.randn(10, 4), torch.randn(100, 8, 8), torch.randn(100, 500)):
        assert own_rows(teacher, x) is None
