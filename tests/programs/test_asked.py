"""What Pyro asks of the arguments of distributions is asked of exact answers, too."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from torch import Tensor

from pyro_opu import exact
from pyro_opu.programs.recorded import VALID

S = 6
Law = Callable[[Tensor, Tensor], Any]
#: Laws of a number z of every row and of another, which are valid for z in (.1, .6), not below 0.
LAWS: dict[str, Law] = {
    "scale": lambda z, w: dist.Normal(w, z),
    "location": lambda z, w: dist.Normal(z.sqrt(), 1.0),
    "rate": lambda z, w: dist.Poisson(z),
    "gamma": lambda z, w: dist.Gamma(z, 1.0),
    "uniform": lambda z, w: dist.Uniform(0.0, z),
    "probability": lambda z, w: dist.Bernoulli(1.0 - z),
    "trials": lambda z, w: dist.Binomial(3, probs=z),
    "classes": lambda z, w: dist.Categorical(torch.stack([z, z + 2.0, w.abs() + 0 * z], -1)),
    "dirichlet": lambda z, w: dist.Dirichlet(torch.stack([z, z + 2.0], -1)),
    "covariance": lambda z, w: dist.MultivariateNormal(
        torch.zeros(2), z[..., None, None] * torch.eye(2)
    ),
    "own choice": lambda z, w: dist.Normal(w, z, validate_args=True),
}


def model_of(law: Law) -> Callable[..., Tensor]:
    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(1.0, 0.1))
        with pyro.plate("data", len(x)):
            inner = pyro.sample("inner", law(x * w, w))
            noise = 1.0 + 0.1 * inner.reshape(len(x), -1).abs().sum(-1)
            return pyro.sample("obs", dist.Normal(w, noise.clamp_max(5.0)), obs=y)

    return model


def samples() -> dict[str, Tensor]:
    return {"w": 0.8 + 0.4 * torch.rand(S)}


def rows(count: int, wrong: int | None = None) -> Tensor:
    x = 0.15 + 0.3 * torch.rand(count)
    return x if wrong is None else x.index_fill(0, torch.tensor([wrong]), -0.4)


def error_of(call: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught, warnings.catch_warnings():  # noqa: PT011 - compared
        warnings.simplefilter("ignore")
        call()
    text = str(caught.value).splitlines()[0]
    law = text.split("of distribution ")[-1].split("(")[0]
    return f"{caught.type.__name__}: {text.split(' (')[0]} of {law}"


@pytest.fixture(autouse=True)
def validated() -> Iterator[None]:
    with pyro.validation_enabled(True):
        yield


@pytest.mark.parametrize("name", LAWS)
def test_the_error_is_that_of_the_loop(name: str) -> None:
    torch.manual_seed(1)
    predictive = Predictive(model_of(LAWS[name]), samples(), return_sites=("inner", "obs"))
    answer, good, bad = exact(predictive), rows(7), rows(8, wrong=3)
    assert answer(good).keys() == predictive(good).keys()
    assert answer(good)["inner"].isfinite().all()
    expected = error_of(lambda: predictive(bad))
    assert error_of(lambda: answer(bad)) == expected
    assert error_of(lambda: exact(predictive)(bad)) == expected  # asked first about these rows
    assert answer(good)["inner"].isfinite().all()
    if name != "own choice":
        assert len(answer._programs._kept) == 1  # it is the record that has seen it


@pytest.mark.parametrize("ask", ["draws", "uncertainty"])
def test_so_is_that_of_what_draws_say(ask: str) -> None:
    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(1.0, 0.1))
        with pyro.plate("data", len(x)):
            return pyro.sample("obs", dist.Normal(x, x * w), obs=y)

    predictive = Predictive(model, samples())
    for first in (rows(7), rows(7, wrong=6)):
        answer = exact(predictive)
        if first.amin() > 0:
            getattr(answer, ask)(first)
            assert not answer.reason
        expected = error_of(lambda: predictive(rows(7, wrong=2)))
        assert error_of(lambda a=answer: getattr(a, ask)(rows(7, wrong=2))) == expected


def test_random_draws_are_asked_each_time() -> None:
    """A scale that is drawn below zero now and then, by the prior and by a guide."""

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        scale = pyro.sample("scale", dist.Normal(2.0, 1.0))
        with pyro.plate("data", len(x)):
            return pyro.sample("obs", dist.Normal(x, scale), obs=y)

    def guide(x: Tensor) -> None:
        pyro.sample("scale", dist.Normal(-2.0, 0.1) if x[0] < 0 else dist.Normal(2.0, 0.1))

    torch.manual_seed(0)
    wide = exact(Predictive(model, num_samples=500))
    message = error_of(lambda: wide(rows(5)))
    assert "ValueError: Expected parameter scale" in message
    for answer in (exact(Predictive(model, guide=guide, num_samples=5)),):
        assert (answer(rows(5))["scale"] > 0).all()
        assert "ValueError: Expected parameter scale" in error_of(lambda a=answer: a(-rows(5)))


def test_a_wrong_draw_is_seen_without_an_input() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        scale = pyro.sample("scale", dist.Normal(2.0, 1.0))
        with pyro.plate("data", len(x)):
            return pyro.sample("obs", dist.Normal(x, scale), obs=y)

    predictive = Predictive(model, {"scale": torch.tensor([1.0, 2.0, 1.0, -1.0])})
    answer = exact(predictive)
    expected = error_of(lambda: predictive(rows(5)))
    for call in (answer, answer, answer.draws, answer.uncertainty):
        assert error_of(lambda c=call: c(rows(5))) == expected


def test_without_validation_both_answer() -> None:
    predictive = Predictive(model_of(LAWS["gamma"]), samples(), return_sites=("inner",))
    answer, bad = exact(predictive), rows(7, wrong=3)
    with pyro.validation_enabled(False):
        loop, found = predictive(bad)["inner"], answer(bad)["inner"]
        assert torch.equal(loop.isfinite(), found.isfinite())
    assert "concentration" in error_of(lambda: answer(bad))  # now it is on
    with pyro.validation_enabled(False):
        assert answer(bad).keys() == {"inner"}

    def own(x: Tensor) -> Tensor:
        w = pyro.sample("w", dist.Normal(1.0, 0.1))
        return pyro.sample("obs", dist.Gamma(x * w, 1.0, validate_args=False).to_event(1))

    assert exact(Predictive(own, samples()))(bad)["obs"].shape == (S, 7)


def test_what_cannot_be_recorded_is_asked_too() -> None:
    """Python branches by the draw: the loop; a branch by the number of rows: ``vmap``."""

    def branching(x: Tensor) -> Tensor:
        w = pyro.sample("w", dist.Normal(1.0, 0.1))
        z = x * w if w > 0 else x
        return pyro.sample("obs", dist.Gamma(z, 1.0).to_event(1))

    def by_rows(x: Tensor) -> Tensor:
        w = pyro.sample("w", dist.Normal(1.0, 0.1))
        z = torch.stack([each * w for each in x])
        return pyro.sample("obs", dist.Gamma(z, 1.0).to_event(1))

    for model in (branching, by_rows):
        predictive = Predictive(model, samples())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = exact(predictive)
            assert answer(rows(7))["obs"].isfinite().all()
        expected = error_of(lambda p=predictive: p(rows(7, wrong=1)))
        assert error_of(lambda a=answer: a(rows(7, wrong=1))) == expected


SURE: dict[str, Callable[[Tensor], Any]] = {
    "logits": lambda z: dist.Categorical(logits=torch.stack([z, -z, z + 1], -1)),
    "softmax": lambda z: dist.Categorical(torch.stack([z, -z, z + 1], -1).softmax(-1)),
    "sigmoid": lambda z: dist.Bernoulli(z.sigmoid()),
    "softplus and more": lambda z: dist.Normal(z, torch.nn.functional.softplus(z) + 1e-3),
}


@pytest.mark.parametrize("name", SURE)
def test_what_holds_by_construction_is_not_asked(name: str) -> None:
    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(torch.zeros(()), 1.0))
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("beside", dist.Normal(w, scale))
            return pyro.sample("obs", SURE[name](x * w), obs=y)

    answer = exact(Predictive(model, samples() | {"scale": torch.ones(S)}, return_sites=("obs",)))
    answer(torch.randn(7))
    (programs,) = answer._programs._kept.values()
    late = programs._bound.late.graph
    names = [getattr(node.target, "__name__", "") for node in late.nodes]
    assert not any(
        word in each for each in names for word in ("ge.", "gt.", "Scalar", "amin", "all.")
    )
    assert sum(each == "eq.Tensor" for each in names) == 1  # whether a number is NaN, once
    assert VALID in programs._bound.names
    bad = torch.randn(7).index_fill(0, torch.tensor([2]), torch.nan)
    assert "ValueError: Expected parameter" in error_of(lambda: answer(bad))


#: Laws of columns z that are asked of each, and of p, which is NaN where z is negative.
COLUMNS: dict[str, Callable[[Tensor, Tensor, Tensor], tuple[Any, Any]]] = {
    "scales": lambda z, p, w: (dist.Normal(w, z[:, 0]), dist.Normal(w, z[:, 1])),
    "other order": lambda z, p, w: (dist.Normal(w, z[:, 1]), dist.Normal(w, z[:, 0])),
    "NaN": lambda z, p, w: (dist.Bernoulli(p[:, 1]), dist.Normal(w, p[:, 0] + w)),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_is_asked(name: str) -> None:
    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(1.0, 0.1))
        z = x * w
        with pyro.plate("data", len(x)):
            for site, law in zip("ab", COLUMNS[name](z, z.log().sigmoid(), w), strict=True):
                pyro.sample(site, law)

    predictive, good = Predictive(model, samples()), torch.stack([rows(7), rows(7)], -1)
    answer = exact(predictive)
    assert answer(good).keys() == {"a", "b"}
    assert len(answer._programs._kept) == 1
    for column in range(2):
        bad = good.clone()
        bad[3, column] = -0.4
        expected = error_of(lambda x=bad: predictive(x))
        assert error_of(lambda x=bad: answer(x)) == expected


def test_a_distribution_that_asks_more_is_asked_it() -> None:
    predictive = Predictive(
        model_of(lambda z, w: dist.Geometric(z.clamp_min(0))), samples(), return_sites=("inner",)
    )
    answer = exact(predictive)
    assert answer(rows(7))["inner"].isfinite().all()
    expected = error_of(lambda: predictive(rows(7, wrong=3)))
    assert error_of(lambda: answer(rows(7, wrong=3))) == expected


def test_the_exponential_of_the_logarithm_of_what_is_negative_is_nan() -> None:
    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(1.0, 0.1))
        pyro.deterministic("log", (x * w).log().exp())
        pyro.deterministic("log1p", (5 * x * w).log1p().exp())

    predictive, bad = Predictive(model, samples()), rows(7, wrong=3)
    answer = exact(predictive)
    answer(rows(7))
    found, loop = answer(bad), predictive(bad)
    for name in loop:
        assert loop[name][:, 3].isnan().all()
        torch.testing.assert_close(found[name], loop[name], equal_nan=True)
