"""What a teacher may do with its inputs: nothing to them, and the same at every row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from torch import Tensor, nn

import pyro_opu
from pyro_opu import as_teacher, distill, fidelity
from pyro_opu.teachers import bagged_contexts
from pyro_opu.teachers.alone import check_alone
from pyro_opu.teachers.finished import finished_teacher

pytestmark = pytest.mark.usefixtures("brief")

torch.manual_seed(0)
X, W = torch.randn(60, 3), torch.randn(40, 3, 4)
Changed = Callable[[Tensor], Any]
#: Ways to change an input in place, each of which gives it back.
CHANGES: dict[str, Changed] = {
    "-=": lambda x: x.sub_(1),
    "a column": lambda x: x[:, 0].zero_(),
    "relu_": torch.relu_,
    "out=": lambda x: torch.mul(x, 2, out=x),
    "its NumPy view": lambda x: np.add(x.numpy(), 1, out=x.numpy()),
    "its data": lambda x: x.data.neg_(),
}


class Network(nn.Module):
    """Logits of changed inputs, with dropout or not."""

    def __init__(self, change: Changed, p: float = 0.5) -> None:
        super().__init__()
        self.change, self.layers = change, nn.Sequential(nn.Linear(3, 8), nn.Dropout(p))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.change(x)
        return self.head(self.layers(x))


def model(change: Changed, x: Tensor, y: Tensor | None = None) -> Tensor:
    w = pyro.sample("w", dist.Normal(torch.zeros(3, 4), 1.0).to_event(2))
    change(x)
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Categorical(logits=x @ w), obs=y)


def probs(change: Changed, x: Tensor, w: Tensor = W) -> Tensor:
    change(x)
    return (x @ w).softmax(-1)


def of_arrays(change: Changed, x: np.ndarray) -> np.ndarray:
    change(torch.as_tensor(x))
    powers = np.exp(np.asarray(x) @ W.numpy())
    return powers / powers.sum(-1, keepdims=True)


SOURCES: dict[str, Callable[[Changed], Any]] = {
    "model": lambda c: Predictive(lambda x, y=None: model(c, x, y), {"w": W}),
    "dropout network": Network,
    "ensemble": lambda c: [Network(c, 0.0).eval() for _ in range(3)],
    "function": lambda c: lambda x: probs(c, x),
    "fresh draws": lambda c: lambda x, num_draws: probs(c, x, torch.randn(num_draws, 3, 4)),
    "arrays": lambda c: lambda x: of_arrays(c, x),
    "real y": lambda c: lambda x: (probs(c, x)[..., 0], torch.ones(40, 1)),
    "posterior": lambda c: ({"w": W}, lambda t, x: probs(c, x, t["w"])),
}
USES: dict[str, Callable[[Any, Tensor], Any]] = {
    "distill": lambda source, x: distill(source, x, num_steps=2, progress=False),
    "joint": lambda source, x: pyro_opu.joint.total(source, x, torch.arange(4.0)),
    "probs": lambda source, x: as_teacher(source).probs(x),
    "fidelity": lambda source, x: fidelity(lambda x: dist.Dirichlet(torch.ones(60, 4)), source, x),
    "score": lambda source, x: pyro_opu.misclassification(source, x, torch.arange(60) % 4),
}


def refused(source: Any, use: str, match: str = "`source` must leave its inputs as they") -> None:
    x = X.clone()
    with pytest.raises(ValueError, match=match):
        USES[use](source, x)
    assert torch.equal(x, X)


OF_CLASSES_ALONE = ("probs", "fidelity", "score")


@pytest.mark.parametrize(
    ("kind", "use"),
    [(k, u) for k in SOURCES for u in USES if not (k == "real y" and u in OF_CLASSES_ALONE)],
)
def test_inputs_stay_as_they_are(kind: str, use: str) -> None:
    refused(SOURCES[kind](CHANGES["-="]), use)


@pytest.mark.parametrize("change", CHANGES)
def test_ways_to_change_them(change: str) -> None:
    refused(SOURCES["function"](CHANGES[change]), "probs")
    with torch.inference_mode():
        refused(SOURCES["function"](CHANGES[change]), "probs")


def test_what_changes_nothing_is_taken() -> None:
    """In place on inputs that stay as they were, or on a copy."""
    right = (X.relu() @ W).softmax(-1)
    for change, x in ((torch.relu_, X.relu()), (lambda x: x.clone().sub_(1), X)):
        found = as_teacher(SOURCES["function"](change)).probs(x)
        torch.testing.assert_close(found, right if x is not X else (X @ W).softmax(-1))


def test_a_student_leaves_inputs_as_they_are() -> None:
    def student(x: Tensor) -> dist.Dirichlet:
        return dist.Dirichlet(1 + x.sub_(1).abs() @ torch.ones(3, 4))

    x = X.clone()
    with pytest.raises(ValueError, match="`student` must leave its inputs"):
        fidelity(student, lambda x: (x @ W).softmax(-1), x)
    assert torch.equal(x, X)


def batched(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / x.std(0)


def seen_by_place(x: Tensor, w: Tensor = W) -> Tensor:
    place = torch.arange(len(x))[:, None] / 10
    return (x @ w + place * torch.arange(4)).softmax(-1)


#: Teachers whose answer at a row depends on the others, on their number or on its place.
TOGETHER: dict[str, Any] = {
    "centred": lambda x: ((x - x.mean(0)) @ W).softmax(-1),
    "scaled": lambda x: (batched(x) @ W).softmax(-1),
    "softmax over rows": lambda x: (x.softmax(0) @ W * 20).softmax(-1),
    "a sum over rows": lambda x: (x @ W + (x.sum(0) @ W)[:, None] / 9).softmax(-1),
    "the number of rows": lambda x: (x @ W / len(x)).softmax(-1),
    "the place": seen_by_place,
    "ranks": lambda x: (x.argsort(0).argsort(0).float() @ W / len(x)).softmax(-1),
    "fresh draws, centred": lambda x, num_draws: (
        (x - x.mean(0)) @ torch.randn(num_draws, 3, 4)
    ).softmax(-1),
    "arrays": lambda x: of_arrays(lambda x: None, np.asarray(x - x.mean(0))),
    "real y": lambda x: (W[..., 0] @ batched(x).mT, torch.ones(40, 1)),
    "posterior": ({"w": W}, lambda t, x: (batched(x) @ t["w"]).softmax(-1)),
    "model": Predictive(lambda x, y=None: model(lambda x: None, batched(x), y), {"w": W}),
    "ensemble": [nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 4))] * 3,
    "dropout": nn.Sequential(
        nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 9), nn.Dropout(), nn.Linear(9, 4)
    ),
}


@pytest.mark.parametrize("kind", TOGETHER)
def test_rows_that_depend_on_each_other_are_refused(kind: str) -> None:
    refused(TOGETHER[kind], "distill", "`source` must say the same of a row whatever rows")


def noisy(x: Tensor, num_draws: int) -> Tensor:
    """With noise of its own for every row."""
    return (x @ torch.randn(num_draws, 3, 4) + torch.randn(num_draws, len(x), 1)).softmax(-1)


def process(x: Tensor, num_draws: int, root: str = "cholesky") -> Tensor:
    """Joint draws of a Gaussian process, by either root of the covariance."""
    covariance = (-torch.cdist(x, x).square()).exp() + 1e-3 * torch.eye(len(x))
    if root == "cholesky":
        factor = torch.linalg.cholesky(covariance)
    else:
        values, vectors = torch.linalg.eigh(covariance)
        factor = vectors * values.clamp_min(0).sqrt()
    logit = torch.randn(num_draws, len(x)) @ factor.mT
    return torch.stack([torch.zeros_like(logit), logit], -1).softmax(-1)


#: Teachers that say the same of a row, in each draw or in law.
APART: dict[str, Any] = {
    "held draws": lambda x: (x @ W).softmax(-1),
    "fresh draws": lambda x, num_draws: (x @ torch.randn(num_draws, 3, 4)).softmax(-1),
    "noise at every row": noisy,
    "a process by Cholesky": process,
    "a process by eigenvectors": lambda x, num_draws: process(x, num_draws, "eigenvectors"),
    "sure": lambda x: (x @ W * 1e4).softmax(-1),
    "one answer": lambda x: torch.full((5, len(x), 4), 0.25),
    "batch norm of training rows": nn.Sequential(
        nn.BatchNorm1d(3), nn.Linear(3, 9), nn.Dropout(), nn.Linear(9, 4)
    ),
    "bfloat16": lambda x: (x.bfloat16() @ W.bfloat16()).float().softmax(-1),
}


@pytest.mark.parametrize("kind", APART)
@pytest.mark.parametrize("rows", [60, 7, 3])
def test_others_are_taken(kind: str, rows: int) -> None:
    """By chance one in 10^6 is refused."""
    teacher = finished_teacher(APART[kind], X[:rows])
    before = torch.get_rng_state()
    check_alone(teacher, X[:rows])
    assert torch.equal(torch.get_rng_state(), before)


def test_members_that_have_not_seen_a_row_are_taken() -> None:
    neighbours = pytest.importorskip("sklearn.neighbors").KNeighborsClassifier(1)
    teacher = bagged_contexts(neighbours, X, X[:, 0] > 0, 8)
    check_alone(finished_teacher(teacher, X), X)
