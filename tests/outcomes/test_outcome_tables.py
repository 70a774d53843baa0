"""Several numbers of every row: read as the loop reads them, learnt, drawn, saved and exported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch
from flat import distill_flat
from pyro import poutine
from pyro.infer import MCMC, NUTS, Predictive
from torch import Tensor

import pyro_opu
from pyro_opu import OnePassPredictive, as_teacher, distill, fidelity
from pyro_opu.guides.table import TableGuide
from pyro_opu.metrics.uncertainty import moment_concentration
from pyro_opu.parts import ClassPart, CountPart, Part, RealPart, TrialsPart
from pyro_opu.teachers.finished import finished_teacher

pytestmark = pytest.mark.usefixtures("brief")

S, D, L = 30, 3, 2
X = torch.randn(40, D, generator=torch.Generator().manual_seed(0))
Model = Callable[..., None]


def weights(*shape: int) -> Tensor:
    return pyro.sample("w", dist.Normal(torch.zeros(D, *shape), 1.0).to_event(1 + len(shape)))


def columns(x: Tensor, fn: dist.Distribution) -> None:
    """Numbers beside each other, ``(N, L)``."""
    with pyro.plate("data", len(x), dim=-2), pyro.plate("numbers", L, dim=-1):
        pyro.sample("obs", fn)


def single(x: Tensor, fn: dist.Distribution) -> None:
    with pyro.plate("data", len(x)):
        pyro.sample("obs", fn)


def labels(x: Tensor) -> None:
    columns(x, dist.Bernoulli(logits=x @ weights(L)))


def rows(x: Tensor) -> None:
    """Numbers below each other, ``(L, N)``."""
    logits = (x @ weights(L)).T
    with pyro.plate("numbers", L, dim=-2), pyro.plate("data", len(x), dim=-1):
        pyro.sample("obs", dist.Bernoulli(logits=logits))


def event(x: Tensor) -> None:
    single(x, dist.Bernoulli(probs=(x @ weights(L)).sigmoid()).to_event(1))


def classes(x: Tensor) -> None:
    columns(x, dist.Categorical(logits=torch.einsum("nd,dlc->nlc", x, weights(L, 3))))


def onehot(x: Tensor) -> None:
    columns(x, dist.OneHotCategorical(logits=torch.einsum("nd,dlc->nlc", x, weights(L, 3))))


def vector(x: Tensor) -> None:
    single(x, dist.Normal(x @ weights(L), 0.5).to_event(1))


def correlated(x: Tensor) -> None:
    covariance = torch.tensor([[0.5, 0.2], [0.2, 0.3]])
    single(x, dist.MultivariateNormal(x @ weights(L), covariance))


def count(x: Tensor) -> None:
    single(x, dist.Poisson((0.5 * x @ weights()).exp()))


def overdispersed(x: Tensor) -> None:
    single(x, dist.GammaPoisson(2.0, 2 * (0.5 * x @ weights()).exp()))


def negative_binomial(x: Tensor) -> None:
    single(x, dist.NegativeBinomial(3.0, logits=0.5 * x @ weights()))


def trials(x: Tensor) -> None:
    single(x, dist.Binomial(7, logits=x @ weights()))


def two_sites(x: Tensor) -> None:
    w = weights(2)
    mean = pyro.deterministic("mean", x @ w[:, 0])
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(mean, 0.3))
        pyro.sample("label", dist.Bernoulli(logits=x @ w[:, 1]))


#: Name -> a model, the shape of its weights, and the parts that it observes.
MODELS: dict[str, tuple[Model, tuple[int, ...], list[Part]]] = {
    "labels": (labels, (L,), [ClassPart("obs", (L,))]),
    "rows": (rows, (L,), [ClassPart("obs", (L,))]),
    "event": (event, (L,), [ClassPart("obs", (L,))]),
    "classes": (classes, (L, 3), [ClassPart("obs", (L,), 3)]),
    "onehot": (onehot, (L, 3), [ClassPart("obs", (L,), 3)]),
    "vector": (vector, (L,), [RealPart("obs", (L,))]),
    "correlated": (correlated, (L,), [RealPart("obs", (L,))]),
    "count": (count, (), [CountPart("obs")]),
    "overdispersed": (overdispersed, (), [CountPart("obs")]),
    "negative binomial": (negative_binomial, (), [CountPart("obs")]),
    "trials": (trials, (), [TrialsPart("obs", (), trials=7)]),
    "two sites": (two_sites, (2,), [RealPart("y"), ClassPart("label")]),
}


def source(name: str, **options: object) -> Predictive:
    model, shape, _ = MODELS[name]
    torch.manual_seed(1)
    return Predictive(model, {"w": torch.randn(S, D, *shape)}, **options)


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_teacher_reads_what_a_loop_reads(name: str) -> None:
    model, _, parts = MODELS[name]
    predictive = source(name)
    teacher = finished_teacher(predictive, X)
    assert list(teacher.outcome.parts) == parts
    draws = teacher.draws(X)
    expected = []
    for s in range(S):
        with poutine.condition(data={"w": predictive.posterior_samples["w"][s]}):
            nodes = poutine.trace(model).get_trace(X).nodes
        said = []
        for part in parts:
            mean = nodes[part.site]["fn"].mean
            if part.kind == "classes" and name in ("classes", "onehot"):
                base = nodes[part.site]["fn"]
                read = base.probs.flatten(1)
            elif part.on_simplex:
                share = mean / getattr(part, "trials", 1)
                p = share.T if name == "rows" else share
                p = p.reshape(len(X), -1)
                read = torch.stack([1 - p, p], -1).flatten(1)
            else:
                variance = nodes[part.site]["fn"].variance
                read = torch.stack([mean, variance.log() / 2], -1).reshape(len(X), -1)
            said.append(read)
        expected.append(torch.cat(said, 1))
    # float32 sums in another order
    assert torch.allclose(draws, torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_the_drop_in_has_the_sites_of_the_predictive(name: str, tmp_path: Path) -> None:
    predictive = source(name)
    fast = distill(predictive, X, num_steps=3, seed=0, progress=False)
    assert fast.outcome.kind == "table"
    expected = predictive(X)
    found = fast(X)
    assert {k: (v.shape, v.dtype) for k, v in found.items()} == {
        k: (v.shape, v.dtype) for k, v in expected.items()
    }
    fast.save(tmp_path / "student.safetensors")
    again = OnePassPredictive.load(tmp_path / "student.safetensors")
    assert again.outcome == fast.outcome
    mine, theirs = (each.answer(X).as_tensors() for each in (fast, again))
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    fewer = fast.fuse().answer(X).as_tensors()
    assert all(torch.allclose(fewer[key], mine[key], rtol=1e-4, atol=1e-5) for key in mine)
    report = fidelity(fast, predictive, X, num_draws=10, seed=0)
    assert len(report.sets) == len(fast.outcome.parts)
    numbers = [part.columns * len(X) for part in fast.outcome.parts]
    assert [each.num_inputs for each in report.sets.values()] == numbers


@pytest.mark.parametrize("name", ["labels", "counts", "vectors"])
def test_a_run_of_mcmc_judges_the_student_that_it_teaches(name: str) -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        f = x @ pyro.sample("w", dist.Normal(torch.zeros(D, L), 1.0).to_event(2))
        observed = {
            "labels": dist.Bernoulli(logits=f).to_event(1),
            "counts": dist.Poisson(f[:, 0].exp()),
            "vectors": dist.Normal(f, 1.0).to_event(1),
        }
        with pyro.plate("data", len(x)):
            pyro.sample("obs", observed[name], obs=y)

    pyro.set_rng_seed(0)
    run = MCMC(NUTS(model), num_samples=S, warmup_steps=5, disable_progbar=True)
    run.run(X[:4], torch.ones(4) if name == "counts" else torch.ones(4, L))
    fast = distill(run, X, num_steps=3, seed=0, progress=False)
    predictive = Predictive(model, run.get_samples())
    found, expected = (fidelity(fast, each, X, num_draws=9, seed=0) for each in (run, predictive))
    assert str(found) == str(expected)


def test_a_site_by_name_is_answered_alone() -> None:
    fast = distill_flat(source("two sites"), X, site="label", num_steps=3, seed=0, progress=False)
    assert set(fast(X)) == {"label"} and fast.num_classes == 2


def test_deterministic_sites_show_the_mean_that_y_was_drawn_with() -> None:
    predictive = source("two sites", return_sites=("mean", "y", "label"))
    fast = distill(predictive, X, num_steps=200, seed=0, progress=False)
    drawn = fast(X)
    noise = (drawn["y"] - drawn["mean"].reshape(S, -1)).var()
    assert 0.5 * 0.09 < noise < 2 * 0.09  # a student of 200 steps; y without its mean has 2


def test_a_site_that_another_depends_on_is_no_outcome() -> None:
    def model(x: Tensor) -> None:
        w = weights()
        with pyro.plate("data", len(x)):
            noise = pyro.sample("noise", dist.Normal(x @ w, 1.0))
            pyro.sample("obs", dist.Bernoulli(logits=noise))

    teacher = finished_teacher(Predictive(model, {"w": torch.randn(S, D)}), X)
    assert teacher.outcome.kind == "classes" and teacher.observed == ("obs",)


def test_trials_may_be_an_input() -> None:
    def model(x: Tensor, total: Tensor) -> None:
        w = weights()
        with pyro.plate("data", len(x)):
            pyro.sample("hits", dist.Binomial(total, logits=x @ w))

    total = torch.arange(1.0, 41.0)
    predictive = Predictive(model, {"w": 0.5 * torch.randn(S, D)})
    fast = distill(predictive, (X, total), num_steps=300, seed=0, progress=False)
    assert fast.outcome.parts[0].trials_column == D
    drawn = fast(X, total)["hits"]
    assert (drawn <= total).all() and drawn[:, -1].float().mean() > 1
    twice = fast.distribution((X, 2 * total))
    assert torch.equal(twice.trials, 2 * total)

    def changing(x: Tensor) -> None:
        single(x, dist.Binomial(1 + x[:, 0].abs().round() % 5, logits=x @ weights()))

    with pytest.raises(ValueError, match="same total_count in all rows, or one that is an input"):
        distill(Predictive(changing, {"w": torch.randn(S, D)}), X, progress=False)


@pytest.mark.parametrize("first", [0.0, 1.0, 5.0])
def test_trials_are_told_by_all_rows(first: float) -> None:
    """Also where those of the first rows are alike, one each or none."""

    def model(x: Tensor) -> None:
        single(x[:, :D], dist.Binomial(x[:, D], logits=x[:, :D] @ weights()))

    total = torch.cat([torch.full((32,), first), torch.full((8,), 9.0)])
    x = torch.cat([torch.randn(40, D), total[:, None]], 1)
    teacher = finished_teacher(Predictive(model, {"w": torch.randn(S, D)}), x)
    assert teacher.outcome.parts[0] == TrialsPart("obs", (), trials_column=D)
    with pytest.raises(TypeError, match=r"outcome is obs \(trials\)"):
        as_teacher(Predictive(model, {"w": torch.randn(S, D)})).probs(x)


def test_trials_of_rows_that_were_not_looked_at() -> None:
    def model(x: Tensor) -> None:
        single(x, dist.Binomial(1 + 3 * (x[:, 0] > 5), logits=x @ weights()))

    x = torch.randn(40, D).clamp(-2, 2)
    predictive = Predictive(model, {"w": torch.randn(S, D)})
    for kind in (finished_teacher(predictive, x), as_teacher(predictive)):
        assert kind.draws(x).shape == (S, 40, 2)
        with pytest.raises(ValueError, match="total_count"):
            kind.draws(x + 9)
    predictive.model = lambda x: single(x, dist.Binomial(4 + (x[:, 0] > 5), logits=x @ weights()))
    teacher = finished_teacher(predictive, x)
    assert teacher.draws(x).shape == (S, 40, 2)
    with pytest.raises(ValueError, match="the same total_count in all rows"):
        teacher.draws(x + 9)


@pytest.mark.slow
def test_the_exported_program_has_the_measures_of_every_site(tmp_path: Path) -> None:
    fast = distill(source("two sites"), X, num_steps=3, seed=0, progress=False)
    fast.export(tmp_path / "student.pt2", outputs=["label.epistemic", "y.total"])
    program = torch.export.load(tmp_path / "student.pt2").module()
    found = program(X[:5])
    own = fast.uncertainty(X[:5])
    assert torch.allclose(found["label.epistemic"], own["label"].epistemic, rtol=1e-4, atol=1e-6)
    assert torch.allclose(found["y.total"], own["y"].total, rtol=1e-4)


@pytest.mark.slow
def test_the_exported_program_has_the_measures_of_every_label(tmp_path: Path) -> None:
    fast = distill(source("classes"), X, num_steps=3, seed=0, progress=False)
    fast.export(tmp_path / "one.pt2", outputs=["mean", "epistemic"])
    found = torch.export.load(tmp_path / "one.pt2").module()(X[:5])
    assert found["mean"].shape == (5, L, 3) and found["epistemic"].shape == (5, L)


@pytest.mark.slow
def test_students_are_near_their_teachers() -> None:
    """Labels beside a count, each within what a posterior of 60 draws can tell."""

    def model(x: Tensor) -> None:
        w = weights(3)
        with pyro.plate("rows", len(x)):
            pyro.sample("count", dist.Poisson((0.3 * x @ w[:, 2]).exp()))
        columns(x, dist.Bernoulli(logits=x @ w[:, :2]))

    torch.manual_seed(0)
    x = torch.randn(300, D)
    predictive = Predictive(model, {"w": torch.randn(D, 3) + 0.3 * torch.randn(60, D, 3)})
    fast = distill(predictive, x, effort="quick", num_steps=600, seed=0, progress=False)
    report = fidelity(fast, predictive, torch.randn(200, D), seed=0)
    assert all(each.kl_ratio < 2 for each in report.sets.values())
    assert str(fast.report).count("\n") == 10 and "count" in str(fast.report)  # two of bounds
    assert pyro_opu.uncertainty(fast.distribution(x)["obs"]).epistemic.shape == (300, L)


def test_a_guide_of_a_table_begins_at_the_moments_of_rows_that_are_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    alike = (L,)
    parts = [
        RealPart("y", alike),
        CountPart("n", alike),
        ClassPart("label", alike, 3),
        TrialsPart("wins", alike, 7),
    ]
    said = [torch.randn(S, 1, L, part.width, generator=generator) for part in parts]
    said[1][..., 0] = 5 * said[1][..., 0].exp()  # rates
    said[1][..., 1] += 1.0
    said[2], said[3] = said[2].softmax(-1), (0.5 * said[3]).softmax(-1)
    guide = TableGuide.for_inputs(X, parts, hidden=(8,))
    guide.start_at([each.expand(-1, len(X), -1, -1) for each in said])
    torch.nn.init.zeros_(guide.head.weight)
    answers = guide(X[:1])
    for number in (0, 1):
        (f, log_scale), found = said[number][:, 0].unbind(-1), answers.answers[number]
        torch.testing.assert_close(found.mean, f.mean(0))
        torch.testing.assert_close(found.log_aleatoric.exp(), (2 * log_scale).exp().mean(0))
        torch.testing.assert_close(found.log_epistemic.exp(), f.var(0))
    for number in (2, 3):
        draws, found = said[number][:, 0], answers.answers[number]
        torch.testing.assert_close(found.mean, draws.mean(0))
        expected = moment_concentration(draws)
        torch.testing.assert_close(found.log_concentration.exp(), expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize("mean", [1e-6, 1.0, 1e6])
def test_rare_and_frequent_counts_are_within_the_range_of_a_guide(mean: float) -> None:
    guide = TableGuide(torch.nn.Flatten(), D, [CountPart("n")])
    f, log_scale = torch.tensor([0.5, 1.5, 1.0]) * mean, torch.tensor(3 * mean).log() / 2
    guide.start_at([torch.stack([f, log_scale.expand(3)], -1)[:, None, None]])
    torch.nn.init.zeros_(guide.head.weight)
    (answer,) = guide(X[:1]).answers
    assert float(answer.mean) == pytest.approx(mean, rel=0.01)
    assert float(answer.log_aleatoric.exp()) == pytest.approx(3 * mean, rel=0.01)
    assert float(answer.log_epistemic.exp()) == pytest.approx(0.25 * mean**2, rel=0.01)
