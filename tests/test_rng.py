"""Random numbers of several threads: none waits, none repeats, and each job has its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from flat import distill_flat
from taught import X, teacher
from torch import Tensor, nn

from pyro_opu import OnePassPredictive, PredictiveDirichlet
from pyro_opu.distributions import DirichletMixture, Empirical, LogisticNormal, NormalSticks
from pyro_opu.distributions.normal import PredictiveNormal
from pyro_opu.rng import FairLock, RandomStream, drawing, preserve_rng, seeded

QUICK: dict[str, Any] = {
    "loss": "energy",
    "num_steps": 12,
    "batch_size": 16,
    "num_draws": 4,
    "evaluate_every": 6,
    "seed": 0,
    "progress": False,
}


class Dropout(nn.Module):
    """A network whose dropout draws from torch's generator, whatever thread asks it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def elsewhere(work: Callable[[], Any]) -> Any:
    """What another thread finds."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(30)


def weights(fast: OnePassPredictive) -> list[Tensor]:
    return list(fast.guide.state_dict().values())


# Torch's generator, lent ---------------------------------------------------------------------


def test_what_was_drawn_elsewhere_is_not_drawn_again() -> None:
    def draw() -> float:
        with drawing() as generator:
            return float(torch.rand((), generator=generator))

    torch.manual_seed(0)
    with seeded(1):
        inside = [elsewhere(draw) for _ in range(3)]
        mine = torch.rand(2)
    with seeded(1):
        assert torch.equal(mine, torch.rand(2))  # the others have not moved these numbers
        inside += [elsewhere(draw) for _ in range(3)]
    outside = [draw() for _ in range(3)]
    assert len({*inside, *outside}) == 9


def test_alone_a_thread_draws_from_torchs_own_generator() -> None:
    torch.manual_seed(3)
    with drawing() as generator:
        assert generator is None
        found = torch.rand(2)
    with preserve_rng(), seeded(5), drawing() as generator:
        assert generator is None  # borrowed by this thread itself
    torch.manual_seed(3)
    assert torch.equal(found, torch.rand(2))


def test_two_borrowers_take_turns() -> None:
    going, seen = threading.Event(), []

    def other() -> None:
        with seeded(2):
            seen.append(("other", going.is_set(), float(torch.rand(()))))

    with seeded(1):
        thread = threading.Thread(target=other)
        thread.start()
        time.sleep(0.05)
        seen.append(("first", False, float(torch.rand(()))))
        going.set()
    thread.join(10)
    with seeded(1):
        one = float(torch.rand(()))
    with seeded(2):
        two = float(torch.rand(()))
    assert seen == [("first", False, one), ("other", True, two)]


def test_turns_are_in_the_order_of_asking() -> None:
    lock, order = FairLock(), []

    def take(number: int) -> None:
        lock.acquire()
        order.append(number)
        lock.release()

    lock.acquire()
    threads = [threading.Thread(target=take, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    assert elsewhere(lambda: lock.acquire(wait=False)) is False
    lock.acquire()  # again by the one that has it
    lock.release()
    assert order == []
    lock.release()
    for thread in threads:
        thread.join(10)
    assert order == [0, 1, 2, 3]


def test_an_error_inside_gives_the_generator_back() -> None:
    before = torch.get_rng_state()
    with pytest.raises(KeyError), RandomStream(0).borrowed(), seeded(4):
        torch.rand(3)
        raise KeyError
    assert torch.equal(torch.get_rng_state(), before)
    assert elsewhere(lambda: float(torch.rand(())) >= 0)
    with seeded(0):
        pass


def test_a_stream_goes_on_where_it_was() -> None:
    with seeded(7):
        whole = torch.randn(5)
    stream, parts = RandomStream(7), []
    for count in (2, 3):
        with stream.borrowed():
            parts.append(torch.randn(count))
        torch.rand(9)
    assert torch.equal(torch.cat(parts), whole) and stream.seed == 7


ANSWERS: dict[str, Callable[[], Tensor]] = {
    "dirichlet": lambda: PredictiveDirichlet(torch.full((5, 3), 1 / 3).log(), torch.ones(5)).sample(
        (4,)
    ),
    "mixture": lambda: DirichletMixture(
        torch.zeros(5, 2), torch.zeros(5, 2, 3), torch.ones(5, 2)
    ).sample((4,)),
    "logistic normal": lambda: LogisticNormal(
        torch.zeros(5, 3), torch.zeros(5, 3), torch.ones(5, 3, 1)
    ).sample((4,)),
    "points": lambda: Empirical(torch.randn(9, 5, 3, generator=FIXED).log_softmax(-1)).sample((4,)),
    "normal": lambda: PredictiveNormal(*torch.zeros(3, 5)).components().draw(4)[1],
    "sticks": lambda: NormalSticks(torch.full((5, 3), 1 / 3).log(), torch.ones(5)).sample((4,)),
}
FIXED = torch.Generator().manual_seed(0)


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_every_answer_draws_elsewhere_while_the_generator_is_lent(
    answer: Callable[[], Tensor],
) -> None:
    with seeded(1):
        expected = torch.rand(3)
    with seeded(1):
        FIXED.manual_seed(0)
        one = elsewhere(answer)
        FIXED.manual_seed(0)
        two = elsewhere(answer)
        assert torch.equal(torch.rand(3), expected)
    assert one.isfinite().all() and not torch.equal(one, two)


# While a distillation runs -------------------------------------------------------------------


def test_answers_while_another_thread_distils_do_not_repeat() -> None:
    fast = distill_flat(teacher, X, **QUICK, num_samples=20)
    done, answers = threading.Event(), []

    def ask() -> None:
        while not done.is_set() and len(answers) < 3000:
            answers.append(fast(X[:10])["obs"])
            time.sleep(1e-3)  # leaves the machine to the other

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        distill_flat(teacher, X, **QUICK)
        done.set()
        asking.result(30)
    assert len(answers) > 10
    assert len({answer.numpy().tobytes() for answer in answers}) == len(answers)


@pytest.mark.parametrize(
    "source", [teacher, pytest.param(Dropout(), marks=pytest.mark.slow)], ids=["held", "dropout"]
)
def test_distillations_in_four_threads_are_those_of_one(source: Any) -> None:
    x, settings = X[:16], {**QUICK, "num_steps": 4, "evaluate_every": 2}
    alone = weights(distill_flat(source, x, **settings))
    before = torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(distill_flat, source, x, **settings) for _ in range(4)]
        found = [weights(job.result(60)) for job in jobs]
    assert torch.equal(torch.get_rng_state(), before)
    for each in found:
        assert all(map(torch.equal, each, alone))


def test_the_callers_generator_after_an_error_of_the_teacher() -> None:
    calls = 0

    def breaking(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 4:
            raise KeyError("the user's own")
        return teacher(x)

    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="the user's own"):
        distill_flat(breaking, X, **QUICK)
    assert calls == 5 and torch.equal(torch.get_rng_state(), before)
    assert elsewhere(lambda: distill_flat(teacher, X, **QUICK)) is not None  # nobody holds it
