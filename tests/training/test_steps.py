"""Draws and inputs of a step of a distillation, whose turn it is, and its learning rate."""

from __future__ import annotations

import itertools

import pytest
import torch
from flat import distill_flat
from quick_distill import QUICK, C, inputs, quick_wasserstein, teacher, truth
from torch import Tensor, nn

from pyro_opu import PredictiveGuide, distill
from pyro_opu.models.neural_network import perceptron
from pyro_opu.teachers import BaseTeacher, FunctionTeacher, as_teacher, finished
from pyro_opu.training.batches import Batches
from pyro_opu.training.descent import Descent, cosine
from pyro_opu.training.fit import Phase
from pyro_opu.training.phases import by_share, distillation_phase
from pyro_opu.training.plan import Plan
from pyro_opu.transfer import HeldOut

pytestmark = pytest.mark.usefixtures("brief")


class Counting:
    """A posterior of 200 draws, or of any number, that writes down how many are asked for."""

    num_classes = C

    def __init__(self, held: int | None, cost: int | None) -> None:
        self.held, self.cost, self.asked = held, cost, []

    def teacher(self) -> BaseTeacher:
        counting = self

        class Watched(FunctionTeacher):
            max_draws = counting.held

            def operations(self, x: Tensor) -> int | None:
                return counting.cost

        return Watched(self.probs)

    def probs(self, x: Tensor, num_draws: int) -> Tensor:
        self.asked.append((num_draws, len(x)))
        return truth(x).sample((num_draws,))


@pytest.mark.parametrize(
    ("held", "cost", "given", "rows", "warm", "refine"),
    [
        (200, 4, None, 16, 200, 32),  # a logistic regression: all
        (20, 4, None, 16, 20, 20),  # all of a small posterior in both
        (None, 4, None, 16, 500, 32),  # as many as one wants, but no more than 500
        (None, 0, None, 16, 500, 32),  # no matrix product at all
        (None, 2**24, None, 16, 455, 32),  # 2^40 operations for the 144 inputs of 9 steps
        (None, 2**28, None, 16, 32, 32),  # a large network: no more than in the refinement
        (None, 4, None, 1024, 500, 32),  # in blocks of 512
        (None, None, None, 16, 32, 32),  # a function, of unknown cost
        (200, 4, 7, 16, 7, 7),  # what is asked for
    ],
)
def test_draws_of_a_step(held, cost, given, rows, warm, refine, monkeypatch) -> None:
    monkeypatch.setattr(finished, "check_alone", lambda *_: None)
    counting = Counting(held, cost)
    settings = {**QUICK, "num_draws": given, "batch_size": rows, "num_steps": 10}
    distill_flat(counting.teacher(), inputs(), **settings)
    # All inputs of 9 warm steps are labelled first, in blocks; the step of the objective asks for
    # its four blocks whole with all draws that are held, or where the warm start may take as many.
    pool, refined = 9 * rows, (refine, rows // 4)
    expected = [(warm, min(512, pool))] * max(1, pool // 512)
    cheap = cost is not None and cost * rows * 4 * refine <= 2**26 and not given and held != refine
    if refine == held:
        expected += [(refine, rows)]
    elif cheap and 4 * refine <= min(held or 500, 2**18 // (rows * C)):
        expected += [(4 * refine, rows)]
    else:
        expected += [refined] * 4
    sizes = {size for _, size in expected}
    assert [each for each in counting.asked if each[1] in sizes] == expected


@pytest.mark.parametrize("warm", [12, 11], ids=["asked at once", "asked block by block"])
def test_blocks_of_a_batch_have_draws_of_their_own(warm: int) -> None:
    asked = itertools.count()

    def numbered(x: Tensor, num_draws: int) -> Tensor:
        """Number of the draw, and the input, so that what belongs together can be seen."""
        number = torch.tensor([float(next(asked)) for _ in range(num_draws)])
        return torch.stack([number[:, None].expand(-1, len(x)), x[:, 0].expand(num_draws, -1)], -1)

    plan = Plan(10, 10, 10, warm, 3, 1e-3, 5)
    policy = HeldOut().fit(inputs())
    x, draws = Batches(numbered, policy, plan, torch.device("cpu")).batch(3)
    assert draws.shape == (3, 10, 2)
    assert torch.equal(draws[..., 1], x[:, 0].expand(3, -1))
    blocks = [set(block[..., 0].flatten().tolist()) for block in draws.split([3, 3, 3, 1], 1)]
    assert [len(block) for block in blocks] == [3] * 4
    assert len(set.union(*blocks)) == 12


def objective_phase(guide: PredictiveGuide) -> Phase:
    objective, x = quick_wasserstein(), inputs()
    objective.prepare(x, C)
    plan = Plan(0, 10, 16, 4, 4, 1e-3, 5)
    feed = Batches(as_teacher(teacher()).probs, HeldOut().fit(x), plan, torch.device("cpu"))
    return distillation_phase("objective", objective, guide, feed, steps=10, rate=1e-2, num_draws=4)


def test_a_network_is_moved_by_a_tenth_of_the_rate() -> None:
    """The first step of Adam is the rate itself, whatever the gradient."""
    torch.manual_seed(0)
    members = [perceptron((2, 8, C)) for _ in range(3)]
    fast = distill(members, inputs(), num_steps=1, seed=0, progress=False)
    assert fast.report["start"] == "network"
    network = {id(weight) for weight in fast.guide.trunk.network.parameters()}
    weights = list(fast.guide.requires_grad_(True).parameters())
    before = [weight.detach().clone() for weight in weights]
    adam = torch.optim.Adam(by_share(fast.guide), lr=1.0)

    def losses() -> tuple[dict[str, Tensor], None]:
        return {"sum": torch.stack([weight.sum() for weight in weights]).sum()}, None

    Descent(losses, adam, rate=lambda step: 0.01).step(0)
    for now, then in zip(weights, before, strict=True):
        moved = 0.001 if id(now) in network else 0.01
        torch.testing.assert_close(then - now, torch.full_like(now, moved), rtol=1e-3, atol=1e-6)


def test_a_student_from_scratch_has_one_rate() -> None:
    """Whatever a part of it is called: that of an index has a `network` of its own."""
    for guide in (PredictiveGuide.for_inputs(inputs(), C), nn.Module()):
        guide.network = nn.Linear(2, 2)
        (group,) = by_share(guide)
        assert len(group["params"]) == len(list(guide.parameters())) and group["share"] == 1


def test_critic_then_h_and_g_are_stepped() -> None:
    guide = PredictiveGuide.for_inputs(inputs(), C, shared=False, hidden=(8,))
    phase = objective_phase(guide)
    (critic,) = phase.critics
    stepped = [
        *guide.parameters(),
        *(p for g in critic.optimizer.param_groups for p in g["params"]),
    ]
    before = [p.detach().clone() for p in stepped]
    parts = phase.step(0)
    assert not any(torch.equal(p, old) for p, old in zip(stepped, before, strict=True))
    assert {"wasserstein", "log_likelihood", "critic gain", "critic penalty"} == parts.keys()


def test_schedule_rises_and_falls() -> None:
    factors = [cosine(1.0, 1000)(step) for step in range(1000)]
    assert factors[0] == 1 / 50 and max(factors) == factors[50] == 1.0
    assert factors[50:] == sorted(factors[50:], reverse=True)
    assert 0.01 <= factors[-1] < 0.011
    assert all(0 < cosine(1.0, steps)(step) <= 1 for steps in (1, 2, 9) for step in range(steps))
