"""Guides from noise: what they make of it, what they are taught by, and what they refuse."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from posteriors import made_of_noise, sure_within
from pyro.infer import Predictive
from quick_distill import quick_wasserstein
from torch import Tensor
from torch.nn.functional import one_hot

from pyro_opu import (
    EnergyDistance,
    OnePassPredictive,
    WassersteinELBO,
    distill,
    fidelity,
    plots,
)
from pyro_opu.distributions.implicit import FromNoise, Implicit
from pyro_opu.distributions.logistic_normal import normal_points
from pyro_opu.guides import ImplicitGuide
from pyro_opu.guides.generator import Generator
from pyro_opu.guides.implicit import ImplicitTableGuide
from pyro_opu.metrics.uncertainty import uncertainty
from pyro_opu.objectives.energy import energy_distance_loss, joint_energy_distance
from pyro_opu.parts import ClassPart, ImplicitTable, by_part

pytestmark = pytest.mark.usefixtures("coarse")

D, L = 3, 4
X = torch.randn(60, D, generator=torch.Generator().manual_seed(0))
SHORT: dict[str, Any] = {"num_steps": 6, "seed": 0, "progress": False}
#: Signs with which labels follow the number that they share.
SIGNS = torch.tensor([1.0, 1.0, -1.0, 1.0])


def draws(x: Tensor) -> Tensor:
    weight = torch.randn(40, D, 3, generator=torch.Generator().manual_seed(1))
    return (x @ weight.to(x.dtype)).softmax(-1)


def dependent(x: Tensor) -> None:
    """Labels of which a number that the posterior does not know decides together."""
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x), dim=-2), pyro.plate("labels", L, dim=-1):
        pyro.sample("obs", dist.Bernoulli(logits=b * SIGNS + 0 * x[:, :1]))


def everything(x: Tensor) -> None:
    """Two labels, a real number, a count and successes of five trials."""
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x), dim=-2), pyro.plate("two", 2, dim=-1):
        pyro.sample("labels", dist.Categorical(logits=x[:, None].expand(-1, 2, -1) + b * SIGNS[:3]))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(10 * x[:, 0] + b, 0.5))
        pyro.sample("count", dist.Poisson((1 + 0.3 * b + 0 * x[:, 0]).exp()))
        pyro.sample("hits", dist.Binomial(5, logits=x[:, 1] + b))


def posterior(model: Any, count: int = 200) -> Predictive:
    points = normal_points(1, 256).float()[:count, 0]
    return Predictive(model, {"b": points})


# What is made of noise -----------------------------------------------------------------------


def test_generator_against_one_row_and_one_draw_at_a_time() -> None:
    made = Generator(3, units=5, noise=2).double()
    shape, noise = torch.randn(4, made.num_inputs).double(), torch.randn(6, 4, 2).double()
    found = made(shape, noise)
    for s, n in product(range(6), range(4)):
        mean, scale, shift = shape[n].split([3, 5, 5])
        scale, shift = (50 * (each / 50).tanh() for each in (scale, shift))
        hidden = scale * (made.directions.mT @ noise[s, n] + shift).clamp_min(0)
        torch.testing.assert_close(found[s, n], mean + made.weight @ hidden)
    alike = noise[:, :1]
    torch.testing.assert_close(made(shape, alike), made(shape, alike.expand(-1, 4, -1)))


def test_moments_are_averages_over_the_fixed_noise_and_near_those_of_draws() -> None:
    answer = made_of_noise(torch.randn(5, 4).log_softmax(-1))
    points = answer.source.fixed().exp()
    torch.testing.assert_close(answer.mean, points.mean(0))
    torch.testing.assert_close(answer.variance, points.var(0, correction=0))
    entropies = torch.special.entr(points.double()).sum(-1).mean(0)
    torch.testing.assert_close(answer.measures().aleatoric, entropies)
    many = answer.sample((200_000,))
    # 128 quasi-random points of one number leave 2e-3; draws 5 standard errors of 1e-3.
    torch.testing.assert_close(answer.mean, many.mean(0), rtol=0, atol=7e-3)
    found = uncertainty(many[:20_000]).epistemic
    torch.testing.assert_close(answer.measures().epistemic.float(), found, rtol=0.03, atol=0)


def test_the_same_input_has_the_same_answer_and_new_draws() -> None:
    guide = ImplicitGuide.for_inputs(X, 3)
    one, other = guide(X), guide(X)
    assert torch.equal(one.log_mean, other.log_mean)
    assert not torch.equal(one.sample((4,)), one.sample((4,)))
    first, second = one.sample((400,))[:, :2].unbind(1)  # rows have noise of their own
    both = torch.stack([first[:, 0], second[:, 0]])
    assert abs(float(torch.corrcoef(both)[0, 1])) < 0.3  # six standard errors


def line_of(slope: float) -> Implicit:
    """Class probabilities on a curve: a number of noise turns from one class to another."""

    def log_probs(noise: Tensor) -> Tensor:
        turn = 2 * noise.expand(-1, 400, -1)
        return torch.cat([turn, slope * turn, 0 * turn], -1).log_softmax(-1)

    return Implicit(FromNoise(log_probs, normal_points(1, 128), 400), 400, 3)


def test_a_curve_is_told_from_another_of_the_same_marginals_by_whole_draws_alone() -> None:
    up, again, down = line_of(1.0), line_of(1.0), line_of(-1.0)
    mine, same = up.sample((40,)), again.sample((30,))
    assert sure_within(joint_energy_distance(mine, same), 0.0)
    # Its second class moves as the other's first: so the two of one row are exchanged.
    other = down.sample((30,))
    of_same = torch.stack([same[..., 0], other[..., 1], same[..., 2]], -1)
    assert sure_within(energy_distance_loss(mine[..., :1], of_same[..., :1]), 0.0)
    assert joint_energy_distance(mine, other).mean() > 0.02


# Several numbers of a row --------------------------------------------------------------------


def of_one_noise(rows: int = 3) -> ImplicitTable:
    """Binary labels whose logits are one number of noise, with a sign each."""

    def values(noise: Tensor) -> list[Tensor]:
        logits = noise.expand(-1, rows, -1) * SIGNS
        both = torch.stack([-logits, logits], -1) / 2
        return [both.log_softmax(-1).reshape(len(noise), -1, 2)]

    source = FromNoise(values, normal_points(1, 128).float(), rows)
    return ImplicitTable([ClassPart("obs", (L,))], source, torch.ones(2 * L), [None])


def enumerated() -> Tensor:
    """Probability of each of 16 rows of labels, by a sum over a normal number."""
    grid = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    weights = (-grid.square() / 2).softmax(0)
    p = torch.sigmoid(grid[:, None] * SIGNS)
    rows = torch.tensor(list(product([0, 1], repeat=L)))
    return torch.stack([weights @ torch.where(y == 1, p, 1 - p).prod(-1) for y in rows])


def codes(labels: Tensor) -> Tensor:
    return (labels * 2 ** torch.arange(L - 1, -1, -1)).sum(-1)


def test_labels_of_a_row_are_drawn_together() -> None:
    expected, count = enumerated(), 40_000
    (labels, probs), *_ = of_one_noise().draw(count, True)
    found = one_hot(codes(labels.reshape(-1, L)), 16).double()
    assert sure_within(found, expected)
    assert probs.shape == (count, 3 * L, 2)
    apart = torch.stack([labels[:, n::L] for n in range(L)], -1)  # of other rows
    mixed = torch.stack([apart[:, (n % 3), n] for n in range(L)], -1)
    assert not sure_within(one_hot(codes(mixed), 16).double(), expected)


def test_marginals_of_several_are_those_of_whole_draws() -> None:
    answer = of_one_noise()
    assert torch.allclose(answer.mean.unflatten(1, (L, 2)), torch.tensor(0.5), atol=1e-3)
    assert answer["obs"].batch_shape == (3, L) and answer["obs"].sample((5,)).shape == (5, 3, L, 2)
    said = answer.said(20_000).exp().unflatten(-1, (L, 2))
    assert sure_within(said[:, 0, 0, 1], 0.5)
    measured = answer["obs"].measures().variance
    torch.testing.assert_close(
        measured, said.var(0).sum(-1).double(), rtol=0.05, atol=0
    )  # of 20,000 draws
    assert answer.matched()["obs"].log_prob(torch.full((3, L, 2), 0.5)).isfinite().all()


# The energy of whole draws -------------------------------------------------------------------


def energy_by_loop(p: Tensor, q: Tensor, weights: Tensor) -> Tensor:
    """Weighted pairs of the students' draws in strata, one pair after another."""
    strata, size = len(weights), len(p) // len(weights)
    each = weights.repeat_interleave(size, 0) / size

    def apart(a: Tensor, b: Tensor) -> Tensor:
        return (a - b).square().sum(-1).sqrt()

    cross = sum(each[i] * apart(p[i], b) for i in range(len(p)) for b in q) / len(q)
    own = torch.zeros(p.shape[1], dtype=p.dtype)
    for k, m in product(range(strata), repeat=2):
        pairs = [
            apart(p[k * size + i], p[m * size + j])
            for i, j in product(range(size), repeat=2)
            if (k, i) != (m, j)
        ]
        own = own + weights[k] * weights[m] * torch.stack(pairs).mean(0)
    theirs = [apart(a, b) for i, a in enumerate(q) for j, b in enumerate(q) if i != j]
    return 2 * cross - own - torch.stack(theirs).mean(0)


@pytest.mark.parametrize("strata", [1, 2, 3])
def test_joint_energy_distance_against_a_loop(strata: int) -> None:
    p, q = torch.randn(6, 4, 3).double(), torch.randn(5, 4, 3).double()
    weights = torch.rand(strata, 4).double().softmax(0)
    given = None if strata == 1 else weights
    plain = torch.ones(1, 4).double() if strata == 1 else weights
    torch.testing.assert_close(joint_energy_distance(p, q, given), energy_by_loop(p, q, plain))
    if strata == 1:  # of one number both ground metrics are one
        torch.testing.assert_close(
            joint_energy_distance(p[..., :1], q[..., :1]),
            energy_distance_loss(p[..., :1], q[..., :1]),
        )


def test_gradient_of_the_energy_through_the_generator() -> None:
    made = Generator(3, units=3, noise=2).double()
    noise, teacher = torch.randn(4, 2, 2).double(), torch.randn(3, 2, 3).double().softmax(-1)
    shape = torch.randn(2, made.num_inputs).double().requires_grad_()

    def loss(shape: Tensor, directions: Tensor, weight: Tensor) -> Tensor:
        own = {"directions": directions, "weight": weight}
        values = torch.func.functional_call(made, own, (shape, noise))
        return joint_energy_distance(values.softmax(-1), teacher)

    leaves = [each.detach().requires_grad_() for each in (made.directions, made.weight)]
    assert torch.autograd.gradcheck(loss, (shape, *leaves))


def test_a_few_draws_of_each_inputs_own_are_kept() -> None:
    every = torch.arange(100.0)[:, None, None].expand(-1, 400, 2) + torch.arange(2)
    energy = EnergyDistance(8, ground="l2")
    kept = energy.statistics(every)["draws"]
    assert energy.sufficient and kept.shape == (400, 32, 2)
    assert torch.equal(kept[..., 1], kept[..., 0] + 1)  # whole draws
    assert all(len(row.unique()) == 32 for row in kept[..., 0])
    counts = torch.bincount(kept[..., 0].flatten().long(), minlength=100)
    assert (counts - 128).abs().max() < 60  # six deviations of a draw's count
    assert torch.equal(energy.statistics(every[:20])["draws"], every[:20].movedim(1, 0))
    assert not EnergyDistance().sufficient


# Students ------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [None, "energy", "wasserstein", quick_wasserstein(energy=1.0)])
def test_every_loss_of_draws_is_taken_and_the_student_is_whole(loss: Any, tmp_path: Path) -> None:
    fast = distill(draws, X, guide="implicit", loss=loss, **SHORT)
    assert type(fast.guide) is ImplicitGuide and fast.report["family"] == "Implicit"
    assert fast.probs(X[:5], 7).shape == (7, 5, 3)
    assert torch.equal(fast.probs(X[:5], 7, seed=1), fast.probs(X[:5], 7, seed=1))
    assert fast(X[:5])["obs"].shape == (fast.num_samples, 5)
    fast.save(tmp_path / "a.safetensors")
    again = OnePassPredictive.load(tmp_path / "a.safetensors")
    for mine, other in zip(*(dict(s.uncertainty(X)).values() for s in (fast, again)), strict=True):
        assert torch.equal(mine, other)
    assert torch.equal(fast.probs(X, 3, seed=2), again.probs(X, 3, seed=2))
    assert fidelity(fast, draws, X, num_draws=20)["kl"].student > 0


def test_a_sum_of_the_bound_and_the_energy_of_whole_draws() -> None:
    both, x = WassersteinELBO(energy=2.0, likelihood=0.0), X[:6]
    both.prepare(x, 3)
    parts = both.parts(ImplicitGuide.for_inputs(X, 3)(x), draws(x), x)
    assert parts.keys() == {"wasserstein", "energy"}
    assert "energy" in repr(both)


@pytest.mark.parametrize("model", [dependent, everything])
def test_several_numbers_of_a_row(model: Any, tmp_path: Path) -> None:
    predictive = posterior(model)
    fast = distill(predictive, X, guide="implicit", **SHORT)
    assert type(fast.guide) is ImplicitTableGuide
    found, expected = fast(X[:5]), predictive(X[:5])
    for name in fast.answer(X).by_site():
        assert found[name].shape == expected[name].shape
        assert found[name].dtype == expected[name].dtype
    drawn = fast.draws(X[:5], 7)
    assert drawn.shape == (7, 5, fast.outcome.num_outputs)
    for part, of_part in zip(fast.outcome.parts, by_part(drawn, fast.outcome.parts), strict=True):
        if part.on_simplex:
            torch.testing.assert_close(of_part.sum(-1), torch.ones(7, 5 * part.columns))
    fast.save(tmp_path / "a.safetensors")
    again = OnePassPredictive.load(tmp_path / "a.safetensors")
    assert torch.equal(fast.draws(X, 3, seed=2), again.draws(X, 3, seed=2))
    assert torch.equal(fast.answer(X).mean, again.answer(X).mean)
    assert fidelity(fast, predictive, X, num_draws=50).to_dict()


def test_a_real_y_has_normals_that_noise_places(tmp_path: Path) -> None:
    slopes = torch.randn(40, D)
    source = lambda x: (slopes @ x.mT, torch.full((40, len(x)), 0.3))  # noqa: E731
    fast = distill(source, X, guide="implicit", **SHORT)
    answer = fast.distribution(X[:5])
    assert fast.report["loss"] == "NormalCRPS" and answer.components().mean.shape == (5, 32)
    torch.testing.assert_close(answer.mean, answer.components().mean.mean(-1))
    between = answer.components().mean.var(-1, correction=0)
    torch.testing.assert_close(answer.epistemic, between, rtol=1e-4, atol=0)
    fast.save(tmp_path / "a.safetensors")
    again = OnePassPredictive.load(tmp_path / "a.safetensors")
    assert torch.equal(fast.normal(X).mean, again.normal(X).mean)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_exported_programs_hold_the_fixed_noise(suffix: str, tmp_path: Path) -> None:
    fast = distill(posterior(everything), X, guide="implicit", **SHORT)
    fast.export(tmp_path / f"a{suffix}", outputs="all")
    own = fast.uncertainty(X)
    if suffix == ".pt2":
        found = torch.export.load(tmp_path / "a.pt2").module()(X)
    else:
        runtime = pytest.importorskip("onnxruntime")
        session = runtime.InferenceSession(tmp_path / "a.onnx")
        names = [each.name for each in session.get_outputs()]
        values = session.run(None, {"x": X.numpy()})
        found = dict(zip(names, map(torch.from_numpy, values), strict=True))
    for site, measures in own.items():
        for name, value in measures.to_dict().items():
            if name != "novelty":
                torch.testing.assert_close(found[f"{site}.{name}"], value, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_students_learn_what_labels_of_a_row_have_in_common() -> None:
    """Their joint likelihood against that of the posterior and of independent labels."""
    predictive = posterior(dependent, 256)
    options = {"seed": 0, "progress": False}
    fast = distill(predictive, X, guide="implicit", num_steps=400, **options)
    plain = distill(predictive, X, num_steps=400, **options)
    truth = enumerated()
    own = float((truth * truth.log()).sum())

    def lost(labels: Tensor) -> float:
        share = one_hot(codes(labels.reshape(-1, L).long()), 16).double().mean(0)
        return float((truth * share.clamp_min(1e-9).log()).sum()) / own - 1

    assert lost(fast(X.repeat(20, 1))["obs"]) < 0.02
    assert lost(plain(X.repeat(20, 1))["obs"]) > 0.02


# Refused -------------------------------------------------------------------------------------


def test_what_needs_a_density_is_refused_with_what_has_one() -> None:
    answer = ImplicitGuide.for_inputs(X, 3)(X)
    with pytest.raises(NotImplementedError, match="`log_prob` needs a density.*Call .matched()"):
        answer.log_prob(torch.full((60, 3), 1 / 3))
    assert answer.matched().log_prob(torch.full((60, 3), 1 / 3)).isfinite().all()
    with pytest.raises(ValueError, match="must have a density; Implicit has none. Pass draws"):
        plots.simplex(ImplicitGuide.for_inputs(X, 3)(X[:1]))
    assert math.isfinite(float(answer.entropy().detach().sum()))


def test_a_critic_of_several_sites_is_refused() -> None:
    with pytest.raises(ValueError, match='`loss` must be "energy".*several'):
        distill(posterior(dependent), X, guide="implicit", loss="wasserstein", **SHORT)
