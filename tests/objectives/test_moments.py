"""The closed-form loss of the moments: its parts, what it is least at, and its weights."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from posteriors import MEAN, dirichlet_draws, sure_within
from torch import Tensor

from pyro_opu import MomentMatching, PredictiveDirichlet
from pyro_opu.objectives.moments import (
    LEAST_GINI,
    gini_index,
    gini_parts,
)
from pyro_opu.objectives.table import TableMoments
from pyro_opu.parts import ClassPart

C = 3


def gini_by_loop(draws: Tensor) -> tuple[Tensor, Tensor]:
    count = len(draws)
    squares = torch.stack([(pi * pi).sum(-1) for pi in draws]).mean(0)
    pairs = [(draws[s] * draws[t]).sum(-1) for s, t in itertools.permutations(range(count), 2)]
    return squares - torch.stack(pairs).mean(0), 1 - squares


@pytest.mark.parametrize("num_draws", [2, 3, 9])
def test_gini_parts_against_a_loop(num_draws: int) -> None:
    draws = dirichlet_draws(2.0, num_draws, 4)
    for found, expected in zip(gini_parts(draws), gini_by_loop(draws), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("num_draws", [2, 5])
@pytest.mark.parametrize("concentration", [0.05, 1.0, 50.0])
def test_gini_parts_are_unbiased(num_draws: int, concentration: float) -> None:
    draws = dirichlet_draws(concentration, num_draws, 20_000)
    between, within = gini_parts(draws)
    gini, share = float(1 - MEAN.square().sum()), 1 / (concentration + 1)
    assert sure_within(between, gini * share)
    assert sure_within(within, gini * (1 - share))


def test_gini_parts_keep_their_digits_in_float32() -> None:
    spread = 1e-6 * torch.randn(50, 4, dtype=torch.float64)
    mean = torch.tensor([0.9, 0.1], dtype=torch.float64)
    draws = mean + torch.stack([spread, -spread], -1)
    exact, _ = gini_parts(draws)
    # Draws near 0.9 are rounded by up to 3e-8, 3 % of the spread: 0.5 % of the variance of 50.
    torch.testing.assert_close(gini_parts(draws.float())[0].double(), exact, rtol=0.02, atol=0)


@pytest.mark.parametrize("weights", ["share", "variance"])
@pytest.mark.parametrize("num_draws", [2, 4, 32])
@pytest.mark.parametrize("largest", [0.5, 0.9, 0.99, 0.999])
def test_moments_are_consistent_for_few_draws_and_sure_inputs(
    largest: float, num_draws: int, weights: str
) -> None:
    """The expected slope of the loss at the teacher's own Dirichlet is zero."""
    rows, concentration = 20_000, 2.0
    mean = torch.tensor([largest, 0.7 * (1 - largest), 0.3 * (1 - largest)], dtype=torch.float64)
    draws = torch.distributions.Dirichlet((concentration * mean).expand(rows, C)).sample(
        (num_draws,)
    )
    g = torch.full((rows,), math.log(concentration), dtype=torch.float64, requires_grad=True)
    d = PredictiveDirichlet(mean.log().expand(rows, C), g)
    loss = MomentMatching(weights).parts(d, draws, draws[0])["moments"] * rows
    (slopes,) = torch.autograd.grad(loss, g)
    assert slopes.abs().max() > 0
    assert sure_within(slopes, 0.0)


@pytest.mark.parametrize("largest", [0.4, 0.9, 0.99, 0.9999])
def test_share_weights_divide_by_the_students_gini_index(largest: float) -> None:
    log_mean = torch.tensor([[largest, 1 - largest]], dtype=torch.float64).log().requires_grad_()
    gini = gini_index(log_mean.detach())
    torch.testing.assert_close(gini, 1 - log_mean.detach().exp().square().sum(-1))
    d = PredictiveDirichlet(log_mean, torch.tensor([0.7], dtype=torch.float64))
    draws = torch.distributions.Dirichlet(d.concentration.detach()).sample((3,))
    share, variance = (
        MomentMatching(weights).parts(d, draws, draws[0])["moments"]
        for weights in ("share", "variance")
    )
    torch.testing.assert_close(share, (variance / gini.clamp_min(LEAST_GINI)).squeeze())
    # The weight pulls at nothing: h learns from the cross-entropy alone.
    assert not share.requires_grad


def test_the_loss_of_g_weighs_what_is_asked() -> None:
    draws = torch.rand(4, 5, C, dtype=torch.float64)
    draws = draws / draws.sum(-1, keepdim=True)
    d = PredictiveDirichlet(MEAN.log().expand(5, C), torch.ones(5, dtype=torch.float64))
    half, whole = (
        MomentMatching(concentration=weight).parts(d, draws, draws[0]) for weight in (0.5, 1.0)
    )
    torch.testing.assert_close(2 * half["moments"], whole["moments"])
    torch.testing.assert_close(half["cross_entropy"], whole["cross_entropy"])
    for wrong in (0.0, -1.0, math.inf, "0.1"):
        with pytest.raises(ValueError, match="`concentration` must be a positive finite number"):
            MomentMatching(concentration=wrong)  # type: ignore[arg-type]


def test_gini_index_of_a_sure_mean_keeps_its_digits() -> None:
    log_mean = torch.tensor([-1e-12, math.log(1e-12)], dtype=torch.float64)[None].float()
    torch.testing.assert_close(gini_index(log_mean), torch.tensor([2e-12]), rtol=1e-5, atol=0)


def test_concentrations_of_labels_count_whole() -> None:
    """By a tenth, as of one label, the epistemic parts of single numbers are off by a quarter."""
    draws = torch.rand(9, 5, 2, generator=torch.Generator().manual_seed(0))
    both = torch.stack([1 - draws, draws], -1)
    torch.manual_seed(0)
    answer = PredictiveDirichlet(torch.randn(10, 2).log_softmax(-1), torch.randn(10))
    part = ClassPart("obs", (2,))
    objective = TableMoments([part])
    alone = MomentMatching(concentration=1.0).parts(answer, both.flatten(1, 2), torch.ones(10, 1))
    found = objective.losses[0].parts(answer, both.flatten(1, 2), torch.ones(10, 1))
    assert found.keys() == alone.keys()
    assert all(torch.equal(found[name], value) for name, value in alone.items())


def test_inputs_count_alike_until_they_are_very_sure() -> None:
    """Down to a Gini index of 0.01, at a mean of 0.995; beyond it they count by their index."""
    gini = torch.tensor([0.5, 0.1, 0.011, 0.009, 1e-3, 1e-5], dtype=torch.float64)
    rare = gini / (1 + (1 - 2 * gini).sqrt())  # of two classes
    log_mean = torch.stack([(-rare).log1p(), rare.log()], -1)
    torch.testing.assert_close(gini_index(log_mean), gini)
    g = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    told = {"mean": log_mean.exp(), "between": 0.2 * gini, "within": 0.8 * gini}
    loss = MomentMatching().parts_at(PredictiveDirichlet(log_mean, g), told, torch.ones(6, 1))
    (pull,) = torch.autograd.grad(loss["moments"], g)
    torch.testing.assert_close(pull[:3], pull[:1].expand(3))
    torch.testing.assert_close(pull[3:] / gini[3:], (pull[3:4] / gini[3:4]).expand(3))


def test_an_error_of_g_bends_what_h_reads_by_a_fraction_of_one_of_h() -> None:
    """Errors of one in log alpha_0 and in every logit, at draws that are worth three labels."""
    generator = torch.Generator().manual_seed(0)
    logits, off = torch.randn(2, 500, C, generator=generator)
    wrong = (logits + off).requires_grad_()
    g = (math.log(3.0) + torch.randn(500, generator=generator)).requires_grad_()
    mean = logits.softmax(-1)
    gini = 1 - mean.square().sum(-1)
    told = {"mean": mean, "between": gini / 4, "within": 3 * gini / 4}
    student = PredictiveDirichlet(wrong.log_softmax(-1), g)
    loss = MomentMatching().parts_at(student, told, torch.ones(500, 1))
    (of_h,) = torch.autograd.grad(loss["cross_entropy"], wrong, retain_graph=True)
    (of_g,) = torch.autograd.grad(loss["moments"], g)
    assert 1 / 30 < float(of_g.norm() / of_h.norm()) < 1 / 5
