"""Closed forms: draws that are affine in the inputs, for every value of the indices."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from torch import Tensor

import pyro_opu
from pyro_opu import distillation
from pyro_opu.choosing import choice_of
from pyro_opu.distributions import NormalSticks
from pyro_opu.distributions.normal_logits import averaged_logit
from pyro_opu.guides import beginning
from pyro_opu.guides.affine import AffineTrunk
from pyro_opu.inputs import PLAIN
from pyro_opu.judging import ClassJudge, RealJudge
from pyro_opu.teachers.finished import finished_teacher
from pyro_opu.training import tuned
from pyro_opu.training.choose import affine_start, at_rest, choose_guide, head_start
from pyro_opu.training.held_out import label_rows
from pyro_opu.training.options import Request
from pyro_opu.training.run import run_of

S, N, G, H, D = 400, 300, 6, 4, 3
Rows = tuple[Tensor, Tensor, Tensor]


def rows(seed: int = 0, count: int = N) -> Rows:
    """Numbers, groups and another grouping; all pairs of the latter occur."""
    torch.manual_seed(seed)
    both = torch.arange(count) % (G * H)
    return torch.randn(count, D) * torch.tensor([1.0, 5.0, 0.1]) + 2.0, both // H, both % H


def draws(seed: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    sizes: dict[str, tuple[int, ...]] = {
        "a": (G,),
        "b": (G, D),
        "c": (H,),
        "mean": (D,),
        "tau": (),
    }
    found = {k: 0.3 * torch.randn(size) + 0.1 * torch.randn(S, *size) for k, size in sizes.items()}
    return {**found, "tau": found["tau"].exp()}


def model(observed: Callable[[dict[str, Tensor], Tensor, Tensor, Tensor], Any]) -> Any:
    """A model with the latents of :func:`draws`; ``observed`` gives the law of a row."""

    def run(x: Tensor, group: Tensor, other: Tensor) -> None:
        found = {
            "tau": pyro.sample("tau", dist.HalfNormal(1.0)),
            "mean": pyro.sample("mean", dist.Normal(torch.zeros(D), 1.0).to_event(1)),
        }
        with pyro.plate("others", H):
            found["c"] = pyro.sample("c", dist.Normal(0.0, 1.0))
        with pyro.plate("groups", G):
            found["a"] = pyro.sample("a", dist.Normal(0.0, 1.0))
            found["b"] = pyro.sample("b", dist.Normal(torch.zeros(D), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", observed(found, x, group, other))

    return run


def slopes(t: dict[str, Tensor], x: Tensor, group: Tensor) -> Tensor:
    return t["a"][group] + (x * (t["mean"] + t["b"][group])).sum(-1)


#: What no draw changes: three numbers that bend.
NETWORK = torch.nn.Sequential(torch.nn.Linear(D, 8), torch.nn.Tanh(), torch.nn.Linear(8, D))
with torch.no_grad(), torch.random.fork_rng(devices=[]):
    torch.manual_seed(0)
    for weight in NETWORK.requires_grad_(False).parameters():
        torch.nn.init.normal_(weight)

#: What is observed; and the affine numbers, mean and log deviation or log rate, that it reads.
AFFINE: dict[str, Any] = {
    "varying slopes": lambda t, x, g, h: dist.Bernoulli(logits=0.3 * slopes(t, x, g)),
    "crossed": lambda t, x, g, h: dist.Bernoulli(logits=t["a"][g] + t["c"][h] * x[:, 0]),
    "scale times offset": lambda t, x, g, h: dist.Bernoulli(
        logits=t["tau"] * t["a"][g] + 0.3 * (x @ t["mean"])
    ),
    "no index": lambda t, x, g, h: dist.Categorical(
        logits=torch.stack([x @ t["mean"], -0.2 * x[:, 0]], -1)
    ),
    "real": lambda t, x, g, h: dist.Normal(slopes(t, x, g), t["tau"]),
    "noise that varies": lambda t, x, g, h: dist.Normal(
        slopes(t, x, g), (t["c"][h] + 0.1 * x[:, 0]).exp()
    ),
    "noise that is an input": lambda t, x, g, h: dist.Normal(
        1e4 + slopes(t, x, g), 1.0 + 0.1 * (x[:, 1] + 30.0)
    ),
    "Poisson": lambda t, x, g, h: dist.Poisson((t["a"][g] + 0.2 * (x @ t["mean"])).exp()),
    "negative binomial": lambda t, x, g, h: dist.GammaPoisson(
        4.0, 4.0 * (-t["a"][g] - 0.2 * (x @ t["mean"])).exp()
    ),
    "last layer": lambda t, x, g, h: dist.Normal(
        NETWORK(x) @ t["mean"] + t["a"][g], (0.3 * NETWORK(x) @ t["b"][0]).exp()
    ),
    "last layer, counts": lambda t, x, g, h: dist.Poisson((0.2 * NETWORK(x) @ t["mean"]).exp()),
}


def three_classes(t: dict[str, Tensor], x: Tensor, g: Tensor, h: Tensor) -> Any:
    return dist.Categorical(
        logits=torch.stack([t["a"][g] + 0.2 * x[:, 0], t["c"][h], t["b"][g, 0]], -1)
    )


def closed_form(name: str) -> tuple[Any, Rows]:
    x, several = rows(), name == "three classes"
    observed = three_classes if several else AFFINE[name]
    teacher = Predictive(model(observed), draws(), return_sites=("obs",))
    steps = 1 if several else None
    return pyro_opu.distill(teacher, x, num_steps=steps, seed=0, progress=False), x


def teacher_draws(name: str, x: Rows, found: dict[str, Tensor] | None = None) -> Tensor:
    """What every draw says of the rows, ``(S, N, K)``."""
    source = Predictive(model(AFFINE[name]), found or draws())
    return pyro_opu.as_teacher(source).draws(x).double()


@pytest.mark.parametrize("name", AFFINE)
def test_every_affine_model_takes_no_step_and_is_excellent(name: str) -> None:
    fast, x = closed_form(name)
    assert fast.report["start"] in ("closed form", "moments"), fast.report["start_reason"]
    assert fast.report["spent"]["steps"] == 0, str(fast.report)
    assert "closed form kept" in str(fast.report) and "excellent" in str(fast.report)
    new = rows(1, 50)
    answer, said = fast.distribution(new), teacher_draws(name, new)
    if fast.outcome.kind == "classes":
        torch.testing.assert_close(answer.mean.double(), said.mean(0), rtol=0, atol=2e-3)
        return
    mean, scale = said[..., 0].mean(0), said[..., 1].exp()
    torch.testing.assert_close(answer.mean.double(), mean, rtol=3e-3, atol=1e-4)
    epistemic = answer.normal().epistemic.double()
    torch.testing.assert_close(epistemic, said[..., 0].var(0), rtol=0.1, atol=1e-6)
    aleatoric = answer.normal().aleatoric.double()
    torch.testing.assert_close(aleatoric, scale.square().mean(0), rtol=2e-2, atol=1e-6)


def test_moments_of_logits_are_those_of_the_draws_at_pairs_that_x_lacks() -> None:
    """Brute force: the draws' own logits, in float64."""
    x, group, other = rows()
    some = ~((group == 1) & (other == 2))
    source = Predictive(model(AFFINE["crossed"]), draws(), return_sites=("obs",))
    fast = pyro_opu.distill(source, (x[some], group[some], other[some]), seed=0, progress=False)
    trunk = fast.guide.trunk
    assert isinstance(trunk, AffineTrunk)
    lacking = torch.tensor([[0.5, -1.0, 2.0]]), torch.tensor([1]), torch.tensor([2])
    t = draws()
    logits = t["a"][:, 1] + 0.5 * t["c"][:, 2]
    _, mean, variance = trunk.moments_of(fast.form.pack(lacking))
    torch.testing.assert_close(mean.item(), logits.mean().item(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(variance.item(), logits.var().item(), rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore::pyro_opu.FidelityWarning")
def test_several_classes_begin_at_logits_moderated_by_their_variance_and_are_taught() -> None:
    fast, _ = closed_form("three classes")
    assert fast.report["start"] == "moments" and fast.report["spent"]["steps"] == 1
    new, t = rows(1, 50), draws()
    x, g, h = new
    latents = [t["a"][:, g] + 0.2 * x[:, 0], t["c"][:, h], t["b"][:, g, 0]]
    logits = torch.stack(latents, -1).double()
    logits = logits - logits.mean(-1, keepdim=True)
    expected = logits.mean(0) / (1 + torch.pi / 8 * logits.var(0)).sqrt()
    trunk: Any = fast.guide.trunk
    found = trunk(fast.form.pack(new))[:, -3:].double()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore::pyro_opu.FidelityWarning")
def test_many_classes_of_many_columns_are_told_no_variances(monkeypatch: Any) -> None:
    size = D + 1
    monkeypatch.setattr(beginning, "DEPENDENT", 0.0)  # or squares alone are
    for most, told in ((3 * size**2, True), (3 * size**2 - 1, False)):
        monkeypatch.setattr(beginning, "MOST_TOLD", most)
        fast, _ = closed_form("three classes")
        assert isinstance(fast.guide.trunk, AffineTrunk) is told


#: Models whose draws bend, and what the report says of each.
BENT: dict[str, tuple[Any, str]] = {
    "product of inputs": (
        lambda t, x, g, h: dist.Bernoulli(logits=t["a"][g] + t["tau"] * x[:, 0] * x[:, 2]),
        "'obs' is not affine",
    ),
    "one group alone": (
        lambda t, x, g, h: dist.Bernoulli(logits=t["a"][g] + (g == 5) * (x[:, 0].cos())),
        "'obs' is not affine",
    ),
    "clamped": (
        lambda t, x, g, h: dist.Normal((x @ t["mean"]).clamp(-0.5, 0.5), 1.0),
        "'obs' is not affine",
    ),
    "bent far from 0": (
        lambda t, x, g, h: dist.Normal(1e4 + (x @ t["mean"]).sin(), 1.0),
        "'obs' is not affine",
    ),
    "a mean that is no rate": (
        lambda t, x, g, h: dist.Poisson(1.0 + t["tau"] * x[:, 0].square()),
        "'obs' is not affine",
    ),
    "noise of one draw": (
        lambda t, x, g, h: dist.Normal(x @ t["mean"], (t["c"][h] * x[:, 2].square()).exp()),
        "'obs' is not affine",
    ),
    "three classes": (
        lambda t, x, g, h: dist.Categorical(logits=(x * t["mean"]).sin()),
        "'obs' is not affine",
    ),
}


@pytest.mark.parametrize("name", BENT)
def test_what_bends_has_no_closed_form_and_says_why(name: str) -> None:
    law, reason = BENT[name]
    inputs = pyro_opu.Inputs.of(rows())
    teacher = finished_teacher(Predictive(model(law), draws()), inputs.tensor, form=inputs.form)
    found = affine_start(teacher, choice_of(teacher.outcome), inputs.tensor, inputs.form)
    assert found.beginning is None and reason in found.reason


@pytest.mark.filterwarnings("ignore::pyro_opu.FidelityWarning")
def test_draws_that_are_not_normal_are_taught_from_the_closed_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two groups of draws far apart: its moments are right, and the grade says that is not all."""
    monkeypatch.setattr(tuned, "EFFORTS", {"quick": (4, 64), "default": (4, 64)})
    t = draws()
    t["a"] = t["a"] + 3.0 * (torch.arange(S) % 2 - 0.5)[:, None]
    source = Predictive(model(AFFINE["crossed"]), t, return_sites=("obs",))
    fast = pyro_opu.distill(source, rows(), seed=0, progress=False)
    assert fast.report["spent"]["steps"] == 4 and "closed form kept" not in fast.report["kept"]


def test_a_skewed_logit_is_taught_where_its_rows_are_sure() -> None:
    """Its mean and variance are right, and its mutual information is where a row is unsure."""
    torch.manual_seed(0)
    skewed = 1.0 + 0.5 * (torch.distributions.Gamma(2.0, 1.0).sample((2000,)) - 2.0)
    x = torch.cat([torch.randn(200), torch.linspace(3.0, 8.0, 100)])[:, None]
    teacher = pyro_opu.as_teacher(({"w": skewed}, by_weight))
    judge = ClassJudge(x, teacher.probs(x), 2000)
    z = x * skewed.mean(), (x * skewed.std()).square()
    logit, g = averaged_logit(*z)
    said = NormalSticks(torch.cat([-logit, logit], 1).mul(0.5).log_softmax(-1), g.squeeze(1))
    assert not judge.fits_by_certainty(said)
    normal = 1.0 + 0.5 * 2**0.5 * torch.randn(2000)
    teacher = pyro_opu.as_teacher(({"w": normal}, by_weight))
    logit, g = averaged_logit(x * normal.mean(), (x * normal.std()).square())
    said = NormalSticks(torch.cat([-logit, logit], 1).mul(0.5).log_softmax(-1), g.squeeze(1))
    assert ClassJudge(x, teacher.probs(x), 2000).fits_by_certainty(said)


def by_weight(draw: dict[str, Tensor], x: Tensor) -> Tensor:
    p = torch.sigmoid(x[:, 0] * draw["w"])
    return torch.stack([1 - p, p], -1)


def test_the_first_rank_decides_whether_to_rest() -> None:
    source = Predictive(model(AFFINE["varying slopes"]), draws(), return_sites=("obs",))
    with run_of(source, rows(), 0) as run, run.random.borrowed():
        inputs = run.inputs
        teacher = finished_teacher(source, inputs.tensor, form=inputs.form)
        choice = choice_of(teacher.outcome)
        judge = label_rows(teacher, inputs.tensor, 2**16, "", device=run.device)
        chosen = choose_guide(Request(), teacher, choice, judge, run)
    guide: Any = chosen.guide
    ranks: Any = SimpleNamespace(broadcast=lambda mine: not mine)
    assert not at_rest(chosen, judge, True, ranks)[0]
    assert guide.law == "dirichlet"
    assert at_rest(chosen, judge, True)[0] and guide.law == "sticks"


def test_a_student_that_does_not_rest_is_scored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scored = []

    def train(*args: object) -> None:
        raise StopIteration

    def scores(self: RealJudge, guide: Any) -> dict[str, float]:
        scored.append(guide)
        return own(self, guide)

    own = RealJudge.scores
    monkeypatch.setattr(RealJudge, "scores", scores)
    monkeypatch.setattr(distillation, "train", train)
    t = draws()
    t["a"] = t["a"] + 3.0 * (torch.arange(S) % 2 - 0.5)[:, None]
    source = Predictive(model(AFFINE["real"]), t, return_sites=("obs",))
    with pytest.raises(StopIteration):
        pyro_opu.distill(source, rows(), seed=0, progress=False)
    assert len(scored) == 1


def test_it_takes_the_steps_that_are_asked_for() -> None:
    source = Predictive(model(AFFINE["crossed"]), draws(), return_sites=("obs",))
    fast = pyro_opu.distill(source, rows(), seed=0, progress=False, num_steps=3)
    assert fast.report["start"] == "closed form" and fast.report["spent"]["steps"] == 3


@pytest.mark.parametrize(
    "name",
    ["varying slopes", "three classes", "noise that varies", "negative binomial", "last layer"],
)
def test_it_is_saved_and_answers_the_same(name: str, tmp_path: Path) -> None:
    fast, x = closed_form(name)
    fast.save(tmp_path / "fast.safetensors")
    again = pyro_opu.OnePassPredictive.load(tmp_path / "fast.safetensors")
    one, two = (each.distribution(x).as_tensors() for each in (fast, again))
    assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["varying slopes", "three classes", "noise that varies", "Poisson", "last layer"]
)
def test_it_is_exported_for_any_number_of_rows(name: str, tmp_path: Path) -> None:
    """The export compares itself with the student, far from the data too."""
    fast, x = closed_form(name)
    outputs = None if name == "three classes" else ["mean", "epistemic"]
    fast.export(tmp_path / "fast.pt2", outputs=outputs)
    program = torch.export.load(tmp_path / "fast.pt2").module()
    found = program(*(part[:7] for part in x))
    torch.testing.assert_close(found["mean"], fast.distribution([part[:7] for part in x]).mean)


def test_a_guide_that_draws_afresh_has_a_closed_form_too() -> None:
    def regression(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Normal(x @ w, 0.5))

    def guide(x: Tensor) -> None:
        pyro.sample("w", dist.Normal(torch.tensor([1.0, -2.0]), 0.3).to_event(1))

    source = Predictive(regression, guide=guide, num_samples=200, return_sites=("obs",))
    torch.manual_seed(0)
    x = torch.randn(200, 2)
    fast = pyro_opu.distill(source, x, seed=0, progress=False)
    assert fast.report["start"] == "closed form" and fast.report["spent"]["steps"] == 0
    answer = fast.distribution(x)
    torch.testing.assert_close(answer.mean, x @ torch.tensor([1.0, -2.0]), rtol=0, atol=0.1)
    torch.testing.assert_close(answer.epistemic, 0.09 * x.square().sum(-1), rtol=0.15, atol=1e-4)
    assert math.isclose(float(answer.aleatoric.mean()), 0.25, rel_tol=1e-4)


def last_layer(w: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Draws ``(S, 4)`` of the last layer of a network of images, and a function of them."""
    torch.manual_seed(0)
    trunk = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.SiLU(), torch.nn.AdaptiveAvgPool2d(1)
    )
    trunk = trunk.requires_grad_(False).to(dtype)
    return {"w": w.to(dtype)}, lambda draw, x: (trunk(x).flatten(1) @ draw["w"], 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_function_of_the_last_layer_of_images_is_exact(dtype: torch.dtype) -> None:
    """Against the function under every draw, at images that are new."""
    torch.manual_seed(1)
    w = torch.randn(4) + torch.randn(S, 4) @ torch.randn(4, 4)
    posterior, function = last_layer(w, dtype)
    x, new = torch.randn(200, 1, 6, 6, dtype=dtype), torch.randn(20, 1, 6, 6, dtype=dtype)
    fast = pyro_opu.distill((posterior, function), x, seed=0, progress=False)
    assert fast.report["spent"]["steps"] == 0, str(fast.report)
    assert "a fixed network computes" in fast.report["start_reason"]
    f = torch.stack([function({"w": each}, new)[0] for each in posterior["w"]]).double()
    answer = fast.distribution(new)
    torch.testing.assert_close(answer.mean.double(), f.mean(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(answer.epistemic.double(), f.var(0), rtol=1e-3, atol=1e-6)


def test_a_posterior_over_two_layers_has_no_closed_form() -> None:
    torch.manual_seed(0)
    posterior = {"v": torch.randn(50, D, 4), "w": torch.randn(50, 4)}
    source = (posterior, lambda t, x: ((x @ t["v"]).tanh() @ t["w"], 0.1))
    teacher = finished_teacher(source, torch.randn(100, D))
    found = head_start(
        teacher.plug_ins(torch.randn(100, D)),
        choice_of(teacher.outcome),
        torch.randn(100, D),
        PLAIN,
    )
    assert found is None


@pytest.mark.parametrize("name", ["real", "last layer", "last layer, counts"])
def test_an_earlier_student_takes_the_moments_of_now(name: str) -> None:
    before, x = closed_form(name)
    t = draws()
    t["mean"] = 2.0 + t["mean"]
    source = Predictive(model(AFFINE[name]), t, return_sites=("obs",))
    fast = pyro_opu.distill(source, x, seed=0, progress=False, start=before, num_steps=1)
    assert fast.report["earlier"]["draws"] < 1 and fast.report["draws"] > S
    said = teacher_draws(name, x, t)[..., 0].mean(0)
    torch.testing.assert_close(fast.distribution(x).mean.double(), said, rtol=2e-2, atol=2e-2)
