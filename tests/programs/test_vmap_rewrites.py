"""What ``vmap`` refuses and a rewrite of one operation makes possible, against the loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoIAFNormal
from torch import Tensor
from torch.distributions import kl_divergence

from pyro_opu import as_teacher, batched
from pyro_opu.programs.vmap import Batched, Draws, loop, vectorized
from pyro_opu.training.plan import Facts
from pyro_opu.training.tuned import NUM_DRAWS

S, N, D = 4000, 5, 3
X = torch.randn(N, D, generator=torch.Generator().manual_seed(0))
DRAWS = {"a": torch.linspace(0.5, 2.0, S)[:, None].repeat(1, D)}


def at_once(fn: Callable[[Draws], Tensor], draws: Draws) -> Tensor:
    """What ``vmap`` gives; a warning that it cannot is an error."""
    evaluate = Batched("it")
    with pyro.validation_enabled(False), warnings.catch_warnings():
        warnings.simplefilter("error")
        result = evaluate(fn, draws)
    assert evaluate.use_vmap
    return result


def ordered(draw: Draws) -> Tensor:
    cutpoints = torch.cumsum(draw["a"], -1) - 2
    return dist.OrderedLogistic(X @ draw["a"], cutpoints).probs


def written(draw: Draws) -> Tensor:
    found, counts = torch.ones(2, 3), torch.zeros(3, dtype=torch.long)
    found[0], counts[1] = draw["a"], 4
    return found + counts


@pytest.mark.parametrize("fn", [ordered, written])
def test_what_is_written_into_a_new_tensor(fn: Callable[[Draws], Tensor]) -> None:
    few = {"a": DRAWS["a"][::500]}
    torch.testing.assert_close(at_once(fn, few), loop(fn, few))


def test_gamma_variates_over_their_sum_are_of_a_dirichlet() -> None:
    """Means and covariances, within five standard errors; draws differ between draws."""
    concentration = torch.tensor([0.5, 2.0, 4.0])
    torch.manual_seed(0)
    found = at_once(lambda draw: dist.Dirichlet(concentration + 0 * draw["a"]).sample(), DRAWS)
    expected = dist.Dirichlet(concentration)
    off = (found.mean(0) - expected.mean).abs() / expected.stddev
    assert (off < 5 / S**0.5).all()
    spread = found.var(0) / expected.variance  # of its square the fourth moment is at most 6 here
    assert ((spread - 1).abs() < 5 * (5 / S) ** 0.5).all()
    assert len(found[:, 0].unique()) > 0.99 * S


def test_small_concentrations_stay_on_the_simplex() -> None:
    found = at_once(lambda draw: dist.Dirichlet(1e-6 * draw["a"]).sample(), DRAWS)
    torch.testing.assert_close(found.sum(-1), torch.ones(S))


SAMPLED: dict[str, Callable[[Tensor], dist.Distribution]] = {
    "Beta": lambda a: dist.Beta(a, 2.0),
    "LKJCholesky": lambda a: dist.LKJCholesky(D, a[0]),
    "BetaBinomial": lambda a: dist.BetaBinomial(a, 2.0, 5),
    "Binomial": lambda a: dist.Binomial(5, a / 3),
    "Multinomial": lambda a: dist.Multinomial(5, a),
}


@pytest.mark.parametrize("make", SAMPLED.values(), ids=SAMPLED)
def test_samples_have_the_moments_of_the_loop(make: Callable[[Tensor], dist.Distribution]) -> None:
    torch.manual_seed(0)
    few = {"a": DRAWS["a"][::2]}
    with pyro.validation_enabled(False):
        fast = at_once(lambda draw: make(draw["a"]).sample(), few).flatten(1)
        slow = torch.stack([make(a).sample() for a in few["a"]]).flatten(1)
    # Five standard errors of a difference of means over draws that differ alike.
    error = (2 / len(fast)) ** 0.5 * slow.std(0) + 1e-6
    assert ((fast.mean(0) - slow.mean(0)).abs() < 5 * error).all()


def test_torch_draws_as_before_outside() -> None:
    concentration = torch.ones(3)
    torch.manual_seed(0)
    before = torch._sample_dirichlet(concentration)
    at_once(lambda draw: dist.Dirichlet(draw["a"]).sample(), {"a": DRAWS["a"][:3]})
    torch.manual_seed(0)
    assert torch.equal(dist.Dirichlet(concentration).sample(), before)
    leaf = torch.ones(3, requires_grad=True)
    dist.Dirichlet(leaf).rsample()[0].backward()
    assert leaf.grad is not None and kl_divergence(dist.Dirichlet(leaf), dist.Dirichlet(leaf)) == 0


def ordinal(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
    steps = pyro.sample("steps", dist.Dirichlet(torch.ones(4)))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.OrderedLogistic(x @ w, steps.cumsum(-1)[:-1].logit()), obs=y)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", [batched, as_teacher])
def test_an_ordinal_model_is_evaluated_at_once(make: Callable[[Predictive], object]) -> None:
    """From samples, from the prior, and by an inverse autoregressive guide."""
    samples = {"w": torch.randn(6, D), "steps": dist.Dirichlet(torch.ones(4)).sample((6,))}
    guide = AutoIAFNormal(pyro.poutine.block(ordinal, hide=["obs"]))
    guide(X)
    for predictive in (
        Predictive(ordinal, samples),
        Predictive(ordinal, guide=guide, num_samples=6),
    ):
        found = make(predictive)
        if isinstance(found, Predictive):
            assert found(X)["obs"].shape == (6, N)
        else:
            assert found.probs(X).shape == (6, N, 4)


def counting(draw: Draws, seen: list[int] = []) -> Tensor:  # noqa: B006 - it shall remember
    seen.append(0)
    return draw["a"] + (len(seen) == 1)


@pytest.mark.parametrize(
    ("fn", "cure"),
    [
        (lambda draw: draw["a"] if draw["a"].sum() > 0 else 2 * draw["a"], "torch.where"),
        (lambda draw: draw["a"] * draw["a"].sum().item(), "torch.where"),
        (counting, "depends on the calls before"),
        (lambda draw: Refused.apply(draw["a"]), "needs a setup_context and a vmap rule"),
    ],
)
def test_the_warning_names_a_cure_for_its_cause(fn: Callable, cure: str) -> None:
    with pytest.warns(UserWarning, match=f"draw by draw.*{cure}"):
        Batched("it")(fn, {"a": DRAWS["a"][:3]})


class Refused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.exp()


def test_a_looped_model_is_not_asked_for_all_draws() -> None:
    """A run of it takes longer than its few operations."""

    def branching(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
        logits = x @ w if w.sum() > 0 else x @ w
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Bernoulli(logits=logits), obs=y)

    teacher = as_teacher(Predictive(branching, {"w": torch.randn(300, D)}))
    with pytest.warns(UserWarning, match="draw by draw"):
        teacher.probs(X)
    facts = Facts(N, D, teacher.num_outputs, teacher.max_draws, teacher.operations(X))
    assert facts.draws_of_step(256) == (NUM_DRAWS, NUM_DRAWS)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.bernoulli(torch.full((60,), 0.5)),
        lambda: torch.multinomial(torch.ones(60, 3), 1)[:, 0],
        lambda: torch.empty(60).normal_(),
        lambda: torch.poisson(torch.full((60,), 5.0)),
        lambda: torch.nn.functional.dropout(torch.ones(60)),
    ],
)
def test_what_is_drawn_by_numbers_that_all_draws_share_differs_between_draws(
    draw: Callable[[], Tensor],
) -> None:
    """Rows of 60 agree by chance with a probability below 1e-15."""
    found = vectorized(lambda _: draw(), {"": torch.arange(5)})
    assert len(found.unique(dim=0)) == 5


def test_labels_that_no_latent_decides() -> None:
    def source(x: Tensor) -> None:
        pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Bernoulli(logits=x[:, 0]))

    exact, x = batched(Predictive(source, {"w": torch.randn(400)})), torch.randn(40, 2)
    for _ in range(2):  # run, and by its record
        off = exact(x)["obs"].mean(0) - x[:, 0].sigmoid()
        assert off.abs().max() < 6 * 0.5 / 400**0.5  # by chance below 1e-6
