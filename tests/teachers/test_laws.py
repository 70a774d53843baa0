"""Laws are read by their own methods: subclasses, and a real y or counts of any law by moments."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from torch import Tensor

from pyro_opu.parts.kinds import check_law
from pyro_opu.teachers import as_teacher
from pyro_opu.teachers.finished import finished_teacher
from pyro_opu.teachers.mixture import MixtureTeacher
from pyro_opu.utils.laws import is_known, own_members

S, N = 7, 5
ONE = torch.Size()
X = torch.linspace(-1, 1, N)[:, None]
W = torch.linspace(0.5, 1.5, S)
RATE = (W[:, None] * X[:, 0]).exp()


def source(of: Callable[[Tensor], Any]) -> Predictive:
    """A model that observes a distribution of a rate of every row."""

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", of((w * x[:, 0]).exp()), obs=y)

    return Predictive(model, {"w": W})


class HalfZero(dist.Poisson):
    """Zero half of the time."""

    def sample(self, sample_shape: Any = ONE) -> Tensor:
        return super().sample(sample_shape) * (torch.rand(self._extended_shape(sample_shape)) < 0.5)

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.log(0.5 * super().log_prob(value).exp() + 0.5 * (value == 0))


class WithMoments(HalfZero):
    @property
    def mean(self) -> Tensor:
        return self.rate / 2

    @property
    def variance(self) -> Tensor:
        return self.rate / 2 + self.rate**2 / 4


class Flipped(dist.Bernoulli):
    """Reported wrong one time in ten."""

    def sample(self, sample_shape: Any = ONE) -> Tensor:
        wrong = torch.rand(self._extended_shape(sample_shape)) < 0.1
        return (super().sample(sample_shape) - wrong.float()).abs()

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.log(0.1 + 0.8 * super().log_prob(value).exp())


class Guessed(dist.Categorical):
    """A guess one time in two."""

    def sample(self, sample_shape: Any = ONE) -> Tensor:
        probs = 0.5 / self.logits.shape[-1] + 0.5 * self.probs
        return dist.Categorical(probs).sample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.log(0.5 / self.logits.shape[-1] + 0.5 * super().log_prob(value).exp())


class Heavy(dist.Normal):
    """Ten times as wide as it says."""

    def rsample(self, sample_shape: Any = ONE) -> Tensor:
        return self.loc + 10 * (super().rsample(sample_shape) - self.loc)

    def log_prob(self, value: Tensor) -> Tensor:
        return dist.Normal(self.loc, 10 * self.scale).log_prob(value)


class OnlyDrawn(dist.Bernoulli):
    def sample(self, sample_shape: Any = ONE) -> Tensor:
        return torch.zeros(self._extended_shape(sample_shape))


class Score(dist.Bernoulli):
    """A known law by another name, with a method of its own."""

    def __init__(self, score: Tensor, validate_args: bool | None = None) -> None:
        super().__init__(logits=score, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        return Score(self.logits.expand(batch_shape))

    def odds(self) -> Tensor:
        return self.logits.exp()


def test_what_a_subclass_defines_anew() -> None:
    assert own_members(HalfZero) == {"sample", "log_prob"}
    assert not own_members(Score) and not own_members(dist.OrderedLogistic)
    assert is_known(Score(torch.zeros(2)), dist.Bernoulli)
    assert not is_known(HalfZero(torch.ones(2)), dist.Poisson)


def test_classes_of_a_subclass_are_read_by_its_own_log_prob() -> None:
    p = RATE / (1 + RATE)
    found = as_teacher(source(lambda rate: Flipped(logits=rate.log()))).probs(X)[..., 1]
    torch.testing.assert_close(found, 0.1 + 0.8 * p)
    found = as_teacher(source(lambda rate: Score(rate.log()))).probs(X)[..., 1]
    torch.testing.assert_close(found, p)
    three = lambda rate: torch.stack([rate, rate**2, 1 / rate], -1)  # noqa: E731
    found = as_teacher(source(lambda rate: Guessed(logits=three(rate)))).probs(X)
    torch.testing.assert_close(found, 1 / 6 + 0.5 * three(RATE).softmax(-1))


def test_a_label_of_a_subclass_is_reported_by_arviz_as_it_is_drawn() -> None:
    from pyro_opu.interop.runs import _log_prob

    fn, value = Flipped(logits=torch.tensor([0.0, 2.0])), torch.tensor([1.0, 0.0])
    found = _log_prob(fn, value)
    assert found is not None
    torch.testing.assert_close(found.float(), fn.log_prob(value))


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (HalfZero, r"'HalfZero \(a Poisson with `log_prob` and `sample` of its own\)'.*`mean` and"),
        (lambda rate: Heavy(rate, 1.0), r"Heavy \(a Normal with `log_prob` and `rsample` of its"),
        (OnlyDrawn, r"OnlyDrawn \(a Bernoulli with `sample` of its own\).*that agree"),
        (lambda rate: dist.Cauchy(rate, 1.0), "finite mean and variance"),
        (lambda rate: dist.StudentT(1.5, rate), "degrees of freedom of a StudentT above 2"),
        (lambda rate: dist.VonMises(rate, 1.0), "finite mean and variance"),
        (lambda rate: dist.ZeroInflatedDistribution(HalfZero(rate), gate=0.1 * rate), "Zero"),
        (
            lambda rate: dist.Dirichlet(torch.stack([rate, rate], -1)),
            "one event of several numbers",
        ),
        (lambda rate: dist.Multinomial(3, torch.stack([rate, rate], -1)), "one row per trial"),
    ],
    ids=[*"abcdefghi"],
)
def test_what_cannot_be_read_is_refused_with_a_cure(of: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        finished_teacher(source(of), X)


def test_a_log_prob_that_is_not_that_of_the_parameters_is_refused() -> None:
    label, number = dist.Bernoulli(logits=RATE[0]), dist.Normal(RATE[0], 1.0)
    for fn in (label, number, label.mask(True).to_event(1)):
        check_law(fn, "obs")
    label.log_prob = lambda value: torch.log(0.3 + 0.4 * value)
    number.log_prob = dist.Normal(RATE[0], 2.0).log_prob
    for fn in (label, number):
        with pytest.raises(ValueError, match="'obs' must have the log_prob of a"):
            check_law(fn, "obs")


LAWS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "LogNormal": (lambda rate: dist.LogNormal(rate.log(), 0.5), "real"),
    "Gamma": (lambda rate: dist.Gamma(2.0, 1 / rate), "real"),
    "Beta": (lambda rate: dist.Beta(rate, 2.0), "real"),
    "StudentT": (lambda rate: dist.StudentT(5.0, rate, 0.5), "real"),
    "Laplace": (lambda rate: dist.Laplace(rate, 0.5), "real"),
    "Exponential": (lambda rate: dist.Exponential(rate), "real"),
    "mixture": (
        lambda rate: dist.MixtureSameFamily(
            dist.Categorical(torch.ones(*rate.shape, 2)),
            dist.Normal(torch.stack([rate, -rate], -1), 0.5),
        ),
        "real",
    ),
    "ZeroInflatedPoisson": (lambda rate: dist.ZeroInflatedPoisson(rate, gate=0.3 + 0 * rate), ""),
    "BetaBinomial": (lambda rate: dist.BetaBinomial(rate, 2.0, 4), ""),
    "Geometric": (lambda rate: dist.Geometric(1 / (1 + rate)), ""),
    "a subclass with moments": (WithMoments, ""),
}


@pytest.mark.parametrize("name", LAWS)
def test_numbers_of_any_law_are_taken_by_its_moments(name: str) -> None:
    of, kind = LAWS[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        teacher = finished_teacher(source(of), X)
        mean, log_scale = teacher.draws(X).unbind(-1)
        assert not caught  # draws lose nothing, a student of them would
        teacher.layouts(X), MixtureTeacher([teacher]).warn_of_laws()
    assert teacher.outcome.kind == (kind or "table") and teacher.program.run.use_vmap
    said = ["its student learns the mean" in str(w.message) for w in caught]
    assert said == [True, True] * bool(kind)
    drawn = of(RATE).sample((200_000,))
    # Within 6 standard errors of each of 35 means; of variances with heavy tails a tenth.
    error = 6 * drawn.std(0) / 200_000**0.5
    assert ((mean - drawn.mean(0)).abs() < error).all()
    torch.testing.assert_close((2 * log_scale).exp(), drawn.var(0), rtol=0.15, atol=1e-3)
