"""What the numbers of networks are: said, guessed where it is certain, refused where not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributions as dist
from torch.nn import functional as F

import pyro_opu
from pyro_opu import as_teacher

D, N = 3, 6
X = torch.randn(N, D, generator=torch.Generator().manual_seed(0))
ROUNDING = {"rtol": 1e-4, "atol": 1e-4}


class Network(nn.Module):
    """Of K numbers, which a function makes something of."""

    def __init__(self, columns: int, last: Any = lambda z: z, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Linear(D, 8), nn.Dropout(0.4), nn.Linear(8, columns))
        self.last = last

    def forward(self, x: Tensor) -> Any:
        return self.last(self.layers(x))


@dataclass
class Output:
    logits: Tensor
    loss: Tensor | None = None


def members(columns: int, last: Any = lambda z: z) -> list[nn.Module]:
    return [Network(columns, last, seed).eval() for seed in range(4)]


def numbers(columns: int) -> Tensor:
    """By the loop."""
    with torch.no_grad():
        return torch.stack([each(X) for each in members(columns)])


def Bernoulli(z: Tensor) -> dist.Bernoulli:  # noqa: N802
    return dist.Bernoulli(logits=z)


PAIR = lambda z: (z[:, 0], z[:, 1:])  # noqa: E731


@pytest.mark.parametrize("last", [lambda z: z, PAIR], ids=["columns", "pair"])
def test_mean_and_log_variance(last: Any) -> None:
    teacher = as_teacher(members(2, last), output="mean and log variance")
    mean, log_scale = teacher.draws(X).unbind(-1)
    torch.testing.assert_close(mean, numbers(2)[..., 0], **ROUNDING)
    torch.testing.assert_close(log_scale, numbers(2)[..., 1] / 2, **ROUNDING)
    assert teacher.outcome.kind == "real" and teacher.max_draws == 4


@pytest.mark.parametrize("last", [lambda z: z, lambda z: z[:, 0]], ids=["(N, 1)", "(N,)"])
def test_a_mean_has_hardly_any_noise(last: Any) -> None:
    mean, log_scale = as_teacher(members(1, last), output="mean").draws(X).unbind(-1)
    torch.testing.assert_close(mean, numbers(1)[..., 0], **ROUNDING)
    torch.testing.assert_close(log_scale.exp(), torch.full((4, N), 1e-3))


@pytest.mark.parametrize("size", [1e3, 1e7])
def test_large_numbers_keep_their_digits(size: float) -> None:
    """Those of the noise too, of a y of millions, such as prices."""

    def last(z: Tensor) -> Tensor:
        return torch.stack([size * (1 + z[:, 0]), z[:, 1]], -1)

    teacher = as_teacher(members(2, last), output="mean and log variance")
    mean, log_scale = teacher.draws(X).unbind(-1)
    torch.testing.assert_close(mean, size * (1 + numbers(2)[..., 0]), rtol=1e-5, atol=1e-6 * size)
    torch.testing.assert_close(log_scale, numbers(2)[..., 1] / 2, **ROUNDING)
    assert log_scale.dtype == torch.float32


@pytest.mark.parametrize(
    "last", [lambda z: z, torch.sigmoid, lambda z: F.sigmoid(z).squeeze(0)], ids=["z", "p", "view"]
)
@pytest.mark.parametrize("columns", [1, 3])
def test_labels_are_read_each_by_itself(last: Any, columns: int) -> None:
    teacher = as_teacher(members(columns, last), output="labels")
    found = teacher.draws(X).unflatten(-1, (columns, 2))
    torch.testing.assert_close(found[..., 1], numbers(columns).sigmoid(), **ROUNDING)
    torch.testing.assert_close(found.sum(-1), torch.ones(4, N, columns))


@pytest.mark.parametrize("output", ["mean", "mean and log variance", "labels"])
def test_dropout_networks_answer_as_in_training_mode(output: Any) -> None:
    columns = {"mean": 1, "mean and log variance": 2, "labels": 2}[output]
    network = Network(columns)
    teacher = as_teacher(network, output=output)
    teacher.draws(X)
    found = teacher.draws(X, 2000)
    with torch.no_grad():
        drawn = torch.stack([network.train()(X) for _ in range(2000)])
    if output == "labels":
        found, drawn = found[..., 1::2], drawn.sigmoid()
    else:
        found, drawn = found[..., 0], drawn[..., 0]
    # Six standard errors of the difference of two means of 2,000 draws.
    error = 6 * (2 / 2000) ** 0.5 * drawn.std(0)
    assert ((found.mean(0) - drawn.mean(0)).abs() < error).all()
    assert found.std(0).max() > 0.01


@pytest.mark.parametrize("last", [Output, lambda z: {"logits": z, "loss": None}])
def test_logits_by_name_are_taken(last: Any) -> None:
    found = as_teacher(members(3, last)).probs(X)
    torch.testing.assert_close(found, numbers(3).softmax(-1), **ROUNDING)
    assert as_teacher(Network(3, last)).probs(X, 5).shape == (5, N, 3)
    said = as_teacher(members(3, last), output="classes").probs(X)
    torch.testing.assert_close(said, found)
    labels = as_teacher(members(3, last), output="labels").draws(X)
    torch.testing.assert_close(labels[..., 1::2], numbers(3).sigmoid(), **ROUNDING)


def test_a_distribution_of_classes_is_taken() -> None:
    found = as_teacher(members(3, lambda z: dist.Categorical(logits=z))).probs(X)
    torch.testing.assert_close(found, numbers(3).softmax(-1), **ROUNDING)


@pytest.mark.parametrize(
    ("network", "error", "message"),
    [
        (Network(3, torch.sigmoid), ValueError, 'probabilities of 3 labels.*output="labels"'),
        (members(2, nn.Sigmoid()), ValueError, 'probabilities of 2 labels.*output="labels"'),
        (Network(1), ValueError, r'one logit per input.*output="labels".*output="mean"'),
        (Network(2, PAIR), TypeError, 'output="mean and log variance"'),
        (Network(1, lambda z: z[:, 0]), ValueError, 'output="mean"'),
        (Network(3, Bernoulli), ValueError, 'got a Bernoulli.*output="labels"'),
        (members(2, Bernoulli), ValueError, 'got a Bernoulli.*output="labels"'),
    ],
)
def test_what_are_no_classes_is_refused_with_its_cure(
    network: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        as_teacher(network).probs(X)


def test_probabilities_are_classes_and_two_numbers_must_be_named() -> None:
    found = as_teacher(members(2, lambda z: z.softmax(-1))).probs(X)
    torch.testing.assert_close(found, numbers(2).softmax(-1), **ROUNDING)
    for network in (members(2), Network(2)):
        with pytest.raises(ValueError, match='logits of two classes, or a mean.*output="classes"'):
            as_teacher(network).probs(X)
        assert as_teacher(network, output="classes").probs(X).shape[1:] == (N, 2)


def test_bad_outputs() -> None:
    with pytest.raises(ValueError, match="`output` must be one of"):
        as_teacher(Network(2), output="logits")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`output` says what the numbers of an nn.Module are"):
        as_teacher(lambda x: x, output="mean")
    with pytest.raises(
        ValueError, match=r'means \(N,\) or \(N, 1\) for output="mean"; got \(2, 3\)'
    ):
        as_teacher(members(3), output="mean").draws(X[:2])


@pytest.mark.parametrize(
    ("output", "columns"), [("labels", 3), ("labels", 1), ("mean and log variance", 2)]
)
def test_a_student_and_its_fidelity(output: Any, columns: int, tmp_path: Any) -> None:
    teacher = as_teacher(members(columns), output=output)
    x = torch.randn(60, D)
    fast = pyro_opu.distill(teacher, x, num_steps=5, seed=0, progress=False)
    shape = (4, N, columns) if output == "labels" and columns > 1 else (4, N)
    assert fast(X)["obs"].shape == shape
    report = pyro_opu.fidelity(fast, teacher, x, num_draws=4, seed=0)
    assert "KL" in str(report)
    fast.save(tmp_path / "fast")
    loaded = type(fast).load(tmp_path / "fast")
    assert loaded(X)["obs"].shape == shape


def test_several_inputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(D, 1)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.one(a) + b[:, None]

    networks = [Two() for _ in range(3)]
    b = torch.arange(N).float()
    found = as_teacher(networks, output="mean").draws((X, b))[..., 0]
    with torch.no_grad():
        expected = torch.stack([each(X, b)[:, 0] for each in networks])
    torch.testing.assert_close(found, expected, **ROUNDING)
