"""Posteriors asked in several threads: Pyro, torch and the modules are borrowed one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from flat import distill_flat
from pyro.infer import Predictive
from pyro.poutine.runtime import _PYRO_STACK
from taught import teacher
from torch import Tensor, nn

from pyro_opu import as_teacher, batched
from pyro_opu.programs.trace import quiet
from pyro_opu.rng import evaluating, exclusive, preserve_rng, replaced

S, N, D = 20, 30, 3
X = torch.randn(N, D, generator=torch.Generator().manual_seed(0))


def samples(scale: float) -> dict[str, Tensor]:
    return {"w": scale * torch.randn(S, D, generator=torch.Generator().manual_seed(1))}


def linear(x: Tensor) -> Tensor:
    return x @ pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))


def classifier(x: Tensor, y: Tensor | None = None) -> None:
    logits = linear(x)
    with pyro.plate("data", len(x)):
        p = pyro.deterministic("p", torch.sigmoid(logits))
        pyro.sample("obs", dist.Bernoulli(p), obs=y)


def tied(x: Tensor) -> None:
    logits = linear(x)
    with pyro.plate("data", 100, subsample_size=50):
        pyro.sample("obs", dist.Bernoulli(logits=logits), obs=torch.zeros(50))


def regression(x: Tensor, y: Tensor | None = None) -> None:
    loc = linear(x)
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(loc, 0.5), obs=y)


def branching(x: Tensor, y: Tensor | None = None) -> None:
    logits = linear(x)
    logits = logits if logits[0] > 0 else 1 * logits
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Bernoulli(logits=logits), obs=y)


def of_batched(scale: float) -> Callable[[], Tensor]:
    call = batched(Predictive(classifier, samples(scale)))
    return lambda: call(X)["p"].reshape(S, N)


def of_teacher(model: Any) -> Callable[[float], Callable[[], Tensor]]:
    def make(scale: float) -> Callable[[], Tensor]:
        found = as_teacher(Predictive(model, samples(scale)))
        return lambda: found.probs(X)[..., 1]

    return make


def of_regression(scale: float) -> Callable[[], Tensor]:
    found = as_teacher(Predictive(regression, samples(scale)))
    return lambda: found.draws(X)[..., 0]


def of_ensemble(scale: float) -> Callable[[], Tensor]:
    """Two networks in training mode, which all threads share."""
    found = as_teacher(ENSEMBLE, output="classes")
    return lambda: found.probs(scale * X)[..., 1]


ENSEMBLE = [nn.Sequential(nn.Linear(D, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)) for _ in "ab"]
ASKED: dict[str, Callable[[float], Callable[[], Tensor]]] = {
    "batched": of_batched,
    "teacher": of_teacher(classifier),
    "plates of other rows": of_teacher(tied),
    "looped over": of_teacher(branching),
    "regression": of_regression,
    "ensemble": of_ensemble,
}


@pytest.mark.filterwarnings("ignore:the model is evaluated draw by draw")
@pytest.mark.parametrize("name", ASKED)
def test_every_call_of_two_threads_is_right(name: str) -> None:
    calls = [ASKED[name](scale) for scale in (0.1, 3.0)]
    right = [call() for call in calls]
    start = threading.Barrier(2)

    def ask(number: int) -> list[bool]:
        start.wait(30)
        answers = [calls[number]() for _ in range(5 if name == "looped over" else 30)]
        return [torch.allclose(each, right[number], atol=1e-4) for each in answers]

    with ThreadPoolExecutor(2) as pool:
        found = [job.result(60) for job in [pool.submit(ask, number) for number in (0, 1)]]
    assert all(map(all, found))
    assert not _PYRO_STACK and torch.distributions.Distribution._validate_args
    assert all(module.training for each in ENSEMBLE for module in each.modules())


def test_the_first_calls_of_one_teacher_in_four_threads() -> None:
    found = as_teacher(Predictive(tied, samples(1.0)))
    start = threading.Barrier(4)

    def ask() -> Tensor:
        start.wait(30)
        return found.probs(X)[..., 1]

    expected = torch.sigmoid(samples(1.0)["w"] @ X.T)
    with ThreadPoolExecutor(4) as pool:
        for job in [pool.submit(ask) for _ in range(4)]:
            torch.testing.assert_close(job.result(60), expected)


def while_another_holds(borrow: Callable[[], Any], work: Callable[[], Any]) -> Any:
    """What a thread finds while another one is inside."""
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with borrow():
            inside.set()
            assert done.wait(30)

    with ThreadPoolExecutor(2) as pool:
        holding = pool.submit(hold)
        try:
            assert inside.wait(30)
            return pool.submit(work).result(20)
        finally:
            done.set()
            holding.result(30)


@pytest.mark.parametrize("borrow", [exclusive, preserve_rng, quiet], ids=lambda f: f.__name__)
def test_a_student_waits_for_nobody(borrow: Callable[[], Any]) -> None:
    x = X[:, :2]
    fast = distill_flat(
        teacher, x, num_steps=4, batch_size=16, seed=0, progress=False, num_samples=7
    )
    expected = fast.dirichlet(x).mean

    def ask() -> Tensor:
        assert fast(x)["obs"].shape == fast(x)["obs"].shape == (7, N)
        assert fast.uncertainty(x).total.isfinite().all() and fast.novelty(x).isfinite().all()
        return fast.dirichlet(x).mean

    assert torch.equal(while_another_holds(borrow, ask), expected)


def test_what_is_borrowed_in_either_order_is_one_lock() -> None:
    start = threading.Barrier(4)

    def both(first: Any, second: Any) -> int:
        start.wait(30)
        for _ in range(100):
            with first(), second():
                pass
        return 1

    network = nn.Linear(1, 1)
    orders = [(preserve_rng, quiet), (quiet, lambda: evaluating(network))]
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(both, *each) for order in orders for each in (order, order[::-1])]
        assert sum(job.result(30) for job in jobs) == 4


def test_a_replaced_function_is_put_back() -> None:
    class Holder:
        @staticmethod
        def one() -> int:
            return 1

    before = vars(Holder)["one"]
    with replaced(Holder, "one", staticmethod(lambda: 2)):
        with replaced(Holder, "one", staticmethod(lambda: 3)):
            assert Holder.one() == 3
        assert Holder.one() == 2
    with pytest.raises(KeyError), replaced(Holder, "one", None):
        raise KeyError
    assert vars(Holder)["one"] is before


@pytest.mark.slow
def test_numpyro_in_two_threads() -> None:
    """Each number of rows is traced anew, under handlers that threads share."""
    numpyro = pytest.importorskip("numpyro")
    import jax.numpy as jnp
    import numpyro.distributions as npdist
    from numpyro.infer import Predictive as NumpyroPredictive

    def model(x: Any, y: Any = None) -> None:
        w = numpyro.sample("w", npdist.Normal(jnp.zeros(D), 1.0).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("obs", npdist.Bernoulli(logits=x @ w), obs=y)

    held = [samples(scale)["w"] for scale in (0.1, 3.0)]
    teachers = [as_teacher(NumpyroPredictive(model, {"w": w.numpy()})) for w in held]

    def ask(number: int) -> list[bool]:
        found = [teachers[number].probs(X[:rows])[..., 1] for rows in range(3, 15)]
        logits = held[number] @ X.T
        right = [torch.sigmoid(logits[:, : each.shape[1]]) for each in found]
        return [torch.allclose(*pair, atol=1e-4) for pair in zip(found, right, strict=True)]

    with ThreadPoolExecutor(2) as pool:
        assert all(map(all, pool.map(ask, (0, 1))))
