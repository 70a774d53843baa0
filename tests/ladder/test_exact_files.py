"""Exact answers as a file: the same, for any number of rows, from a program without Pyro."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from posteriors import OUTCOMES, SIGMAS, SOURCES, C, D, S, X, model, network, samples
from pyro.infer import Predictive
from torch import Tensor, nn

from pyro_opu import exact, uncertainty
from pyro_opu.export.formats import METADATA
from pyro_opu.export.program import trace
from pyro_opu.ladder.base import Exact
from pyro_opu.ladder.files import FEW, OUTPUTS, ExactProgram, labels_by, nearest_draws, uniform

#: Outputs of each kind of outcome.
ALL = (
    "mean, total, aleatoric, epistemic, max_probability, variance, expected_pairwise_kl, "
    "concentration, quantile_0.1, draws"
)
KINDS: dict[str, tuple[Callable[[], Any], str]] = {
    **{name: (SOURCES[name][0], ALL) for name in ("samples", "guide", "ensemble", "pair")},
    "dropout": (lambda: network([nn.Dropout()]), ALL),
    "real": (OUTCOMES["real"], "mean, total, aleatoric, epistemic, quantile_0.5, draws"),
}
BEYOND = torch.randn(300, D, generator=torch.Generator().manual_seed(5))


def expected(posterior: Exact, name: str, x: Tensor) -> Tensor:
    if name == "draws":
        return posterior.draws(x)
    if name.startswith("quantile"):
        found: Tensor = posterior.uncertainty(x, quantiles=[float(name[9:])]).quantiles[0]
        return found
    value: Tensor = posterior.uncertainty(x)[name]
    return value


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_says_what_exact_says(kind: str) -> None:
    make, outputs = KINDS[kind]
    posterior = exact(make())
    posterior.draws(X)
    program, lost = posterior._program(X, outputs, None)
    assert program.outputs == tuple(outputs.split(", ")) and not lost
    for rows in (1, 7, 300):
        for name, value in program(BEYOND[:rows]).items():
            torch.testing.assert_close(
                value, expected(posterior, name, BEYOND[:rows]), rtol=2e-3, atol=1e-5
            )
            assert len(program.shapes[name]) == value.dim()


def test_labels_by_a_seed() -> None:
    posterior = exact(Predictive(model, samples()))
    probs = posterior.probs(BEYOND).double()
    program, _ = posterior._program(BEYOND, "labels", None)
    one, again, other = (program(BEYOND, torch.tensor([seed]))["labels"] for seed in (3, 3, 4))
    assert torch.equal(one, again) and not torch.equal(one, other)
    error = (probs * (1 - probs)).sum((0, 1)).sqrt()
    counts = (one[..., None] == torch.arange(C)).double().sum((0, 1))
    assert ((counts - probs.sum((0, 1))).abs() <= SIGMAS * error).all()


def test_labels_of_several_sites_are_drawn_apart() -> None:
    def two(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            for site in "ab":
                pyro.sample(site, dist.Bernoulli(logits=x @ w))

    posterior = exact(Predictive(two, {"w": 0.3 * torch.randn(S, D)}))
    posterior.draws(BEYOND)
    program, _ = posterior._program(BEYOND, "a.labels, b.labels", None)
    found = program(BEYOND, torch.tensor([3]))
    p = posterior.draws(BEYOND)[..., 1].double()
    same = (found["a.labels"] == found["b.labels"]).double() - (p**2 + (1 - p) ** 2)
    assert abs(float(same.mean())) < SIGMAS * 0.5 / same.numel() ** 0.5


def test_a_traced_program_is_for_any_number_of_rows() -> None:
    posterior = exact(Predictive(model, samples()))
    program, _ = posterior._program(posterior._look(X), "mean, epistemic, labels", None)
    run = trace(program, tuple(program.inputs(X).values())).module()
    for rows in (1, 7, 300):
        found = run(BEYOND[:rows], torch.tensor([0]))
        torch.testing.assert_close(found["mean"], posterior.uncertainty(BEYOND[:rows]).mean)


@pytest.mark.slow
def test_a_torch_file(tmp_path: Path) -> None:
    posterior = exact(Predictive(model, samples()))
    posterior(X)  # which tells the shape of the inputs
    found = posterior.export(tmp_path / "exact.pt2", outputs="mean, epistemic, labels")
    assert str(found).startswith(f"{tmp_path}/exact.pt2") and found.num_draws == S
    assert found.size == (tmp_path / "exact.pt2").stat().st_size
    extra = {METADATA: ""}
    run = torch.export.load(tmp_path / "exact.pt2", extra_files=extra).module()
    assert json.loads(extra[METADATA])["num_classes"] == C
    table = posterior.uncertainty(BEYOND)
    for rows in (0, 1, 7, 300):
        value = run(BEYOND[:rows], torch.tensor([3]))
        torch.testing.assert_close(value["mean"], table.mean[:rows])
        torch.testing.assert_close(value["epistemic"], table.epistemic[:rows], rtol=0, atol=1e-6)
        assert value["labels"].shape == (S, rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["samples", "dropout"])
def test_an_onnx_file(kind: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    make, outputs = KINDS[kind]
    posterior = exact(make())
    posterior.export(tmp_path / "exact.onnx", X, outputs=f"{outputs}, labels")
    session = runtime.InferenceSession(str(tmp_path / "exact.onnx"))
    assert [each.name for each in session.get_inputs()] == ["x", "seed"]
    for rows in (0, 1, 7, 300):
        given = {"x": BEYOND[:rows].numpy(), "seed": torch.tensor([0]).numpy()}
        names = [each.name for each in session.get_outputs()]
        found = dict(zip(names, session.run(None, given), strict=True))
        assert found["mean"].shape == (rows, C)
        for name in outputs.split(", ") if rows else ():
            value = torch.as_tensor(found[name])
            wanted = expected(posterior, name, BEYOND[:rows])
            torch.testing.assert_close(value, wanted, rtol=2e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_an_onnx_file_with_an_index(dtype: torch.dtype, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    draws = {"w": torch.randn(S, D, C), "a": torch.randn(S, 4, C)}

    def said(draw: Any, x: Tensor, group: Tensor) -> Tensor:
        return (x @ draw["w"] + draw["a"][group]).softmax(-1)

    group = (torch.arange(len(X)) % 4).to(dtype)
    posterior = exact((draws, said))
    posterior.export(tmp_path / "exact.onnx", (X, group), outputs="mean, labels")
    session = runtime.InferenceSession(str(tmp_path / "exact.onnx"))
    assert [each.name for each in session.get_inputs()] == ["x", "group", "seed"]
    given = {"x": X[:7], "group": group[:7], "seed": torch.tensor([1])}
    mean, _ = session.run(None, {name: value.numpy() for name, value in given.items()})
    wanted = posterior.uncertainty((X, group)).mean[:7]
    torch.testing.assert_close(torch.as_tensor(mean), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_an_onnx_file_keeps_the_tails_of_a_sigmoid(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    draws = {"w": torch.tensor([1.0, 0.9])}
    posterior = exact((draws, lambda t, x: (x[:, 0], 1 / (t["w"] * x[:, 0]).sigmoid().sqrt())))
    x = torch.tensor([-60.0, -25.0, -15.0, -10.0, 0.0, 10.0, 25.0])[:, None]
    posterior.export(tmp_path / "exact.onnx", x, outputs="aleatoric")
    session = runtime.InferenceSession(str(tmp_path / "exact.onnx"))
    found = torch.as_tensor(session.run(None, {"x": x.numpy()})[0]).double()
    expected = (1 + (-draws["w"][:, None].double() * x[:, 0]).exp()).mean(0)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


def test_several_inputs_and_sites() -> None:
    def grouped(x: Tensor, group: Tensor, y: Tensor | None = None) -> None:
        a = pyro.sample("a", dist.Normal(torch.zeros(4), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("bought", dist.Bernoulli(logits=a[group] + x[:, 0]))
            pyro.sample("spent", dist.Normal(a[group] * x[:, 1], 0.5))

    group = torch.arange(len(X)) % 4
    posterior = exact(Predictive(grouped, {"a": torch.randn(S, 4)}))
    posterior(X, group)
    names = ["bought.mean", "spent.epistemic"]
    program, _ = posterior._program(posterior._example(None), names, None)
    found = program(X[:5], group[:5])
    table = posterior.uncertainty((X[:5], group[:5]))
    torch.testing.assert_close(found["bought.mean"], table["bought"].mean)
    torch.testing.assert_close(found["spent.epistemic"], table["spent"].epistemic)
    program, _ = posterior._program(posterior._example(None), OUTPUTS, None)
    assert program.outputs == tuple(f"{k}.{name}" for name in OUTPUTS for k in ("bought", "spent"))
    assert posterior.file_size((X, group)) == program.size


def test_a_negative_index_has_no_answer() -> None:
    draws = {"a": torch.randn(S, 4, C)}
    posterior = exact((draws, lambda draw, x, g: (draw["a"][g] * x[:, :1]).softmax(-1)))
    group = torch.arange(7) % 4
    program, _ = posterior._program(posterior._look((X[:7], group)), "mean, labels", None)
    group[3] = -1
    found = program(X[:7], group, torch.zeros(1, dtype=torch.int64))
    assert found["mean"].isnan().any(1).tolist() == (group < 0).tolist()
    assert ((found["labels"] == -1) == (group < 0)).all()


def test_fewer_draws_are_those_that_come_nearest() -> None:
    posterior = exact(Predictive(model, samples(400)))
    posterior.draws(BEYOND)
    whole, few = posterior.uncertainty(BEYOND), 20
    program, lost = posterior._program(BEYOND, "mean, epistemic", few)
    assert program.count == few and program.size < 400 * (D + 1) * C * 4
    found = program(BEYOND)
    at_random = [uncertainty(posterior.probs(BEYOND, few)).epistemic for _ in range(20)]
    error = (found["epistemic"] - whole.epistemic).abs().mean()
    theirs = torch.stack([(each - whole.epistemic).abs().mean() for each in at_random])
    assert error < theirs.mean()
    # Draws with the nearest mean alone have a fifth less mutual information.
    assert abs(float(found["epistemic"].mean() / whole.epistemic.mean()) - 1) < 0.1
    means = [(posterior.probs(BEYOND, few).mean(0) - whole.mean).abs().mean() for _ in range(20)]
    assert (found["mean"] - whole.mean).abs().mean() < 0.7 * torch.stack(means).mean()
    judged = slice(1, 2 * FEW, 2)
    gap = (found["mean"] - whole.mean)[judged].abs().max()
    assert lost["mean"] == pytest.approx(float(gap), rel=1e-3)
    assert nearest_draws(torch.randn(9, 3), 9).tolist() == list(range(9))


def test_nearest_draws_vary_as_all_do() -> None:
    """Those whose mean alone is nearest lie at the mean."""
    numbers = torch.randn(1000, 1, generator=torch.Generator().manual_seed(0)).double()
    some = numbers[nearest_draws(numbers, 10)]
    assert abs(float(some.mean() - numbers.mean())) < 0.1 and 0.8 < float(some.std()) < 1.2


def test_uniform_numbers() -> None:
    """They fail by chance never: they are the same in every run."""
    like = torch.zeros(200, 300, 1)
    u = uniform(torch.tensor([7]), like).double()
    shares = u.flatten().histc(20, 0, 1) / u.numel()
    assert ((shares - 0.05).abs() < 5 * (0.05 * 0.95 / u.numel()) ** 0.5).all()
    v = uniform(torch.tensor([8]), like).double()
    for one, two in ((u, v), (u[1:], u[:-1]), (u[:, 1:], u[:, :-1])):
        pairs = torch.stack([one.flatten(), two.flatten()])
        assert abs(float(torch.corrcoef(pairs)[0, 1])) < 5 / one.numel() ** 0.5


def test_a_label_without_weight_is_never_drawn() -> None:
    """Sums of probabilities are rounded, and so is a number that is nearly 1."""
    weights = torch.rand(2000, 7)
    for probs in (weights / weights.sum(-1, keepdim=True), torch.tensor([[0.5, 0.5]])):
        for u in (1.0, 1.0 - 2.0**-24):
            found = labels_by(nn.functional.pad(probs, (0, 1)), torch.full((len(probs), 1), u))
            assert (found < probs.shape[1]).all()


def test_size_is_said_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    posterior = exact(Predictive(model, samples()))
    posterior.draws(X)
    size = posterior._program(X, "mean", None)[0].size
    assert size == S * (D * C + C) * 4
    monkeypatch.setattr("pyro_opu.ladder.files.LARGE", size - 1)
    with pytest.warns(UserWarning, match="num_draws=39 would"):
        posterior._program(X, "mean", None)[0].check_size("exact.pt2")
    monkeypatch.setattr("pyro_opu.ladder.files.MOST", size)
    with pytest.raises(ValueError, match="below 2 GB"):
        posterior.export(tmp_path / "exact.onnx", X)
    assert not list(tmp_path.iterdir())


def single(real: bool) -> Any:
    """A posterior of one draw."""
    weights = {"w": torch.randn(1, D) if real else torch.randn(1, D, C)}
    if real:
        return weights, lambda draw, x: (x @ draw["w"], torch.ones(len(x)))
    return weights, lambda draw, x: (x @ draw["w"]).softmax(-1)


@pytest.mark.parametrize("real", [False, True])
def test_one_draw_has_no_spread(real: bool) -> None:
    posterior = exact(single(real))
    with pytest.raises(ValueError, match="at least 2 draws, to say how they differ"):
        posterior.uncertainty(X)
    with pytest.raises(ValueError, match="at least 2 draws for .*epistemic"):
        posterior._program(X, OUTPUTS, None)
    program, _ = posterior._program(X, "mean, aleatoric, quantile_0.5", None)
    said = posterior.draws(X)[0]
    torch.testing.assert_close(program(X)["mean"], said[:, 0] if real else said)


def test_quantiles_at_the_ends_and_rows_without_numbers() -> None:
    posterior = exact(Predictive(model, samples()))
    names = "quantile_0, quantile_1, quantile_1.0, quantile_.5, labels, mean"
    posterior.draws(X)
    program, _ = posterior._program(X, names, None)
    rows = X.clone()
    rows[2] = torch.nan
    found = program(rows, torch.tensor([1]))
    probs = posterior.probs(X)
    kept = torch.arange(len(X)) != 2
    torch.testing.assert_close(found["quantile_0"][kept], probs.amin(0)[kept])
    torch.testing.assert_close(found["quantile_1"][kept], probs.amax(0)[kept])
    assert torch.equal(found["quantile_1"][kept], found["quantile_1.0"][kept])
    for name in ("mean", "quantile_0", "quantile_.5"):
        assert found[name].isnan().any(1).tolist() == (~kept).tolist()
    assert ((found["labels"] == -1) == ~kept).all()


def local(x: Tensor) -> None:
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Gamma(1.0, 1.0))
        pyro.sample("obs", dist.Bernoulli(logits=x[:, 0] - z))


def alone(x: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Bernoulli(logits=x[:, 0] * w + (len(x) == 1)))


def beside(x: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Bernoulli(logits=(x - x.mean(0)) @ w))


TWO: dict[str, Tensor] = {"w": torch.randn(2, D, C)}


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize(
    ("make", "options", "says"),
    [
        (SOURCES["function"][0], {}, "no program of tensors"),
        (lambda: Predictive(local, num_samples=S), {}, "draws at random under a draw"),
        (lambda: Predictive(alone, {"w": torch.randn(S)}), {}, "inputs of length 1 in another way"),
        (lambda: Predictive(beside, {"w": TWO["w"][..., 0]}), {}, "whatever rows .* alone they"),
        (lambda: Predictive(beside, {"w": TWO["w"][..., 0]}), {"x": X[:1]}, "alone they"),
        (SOURCES["pair"][0], {"outputs": "mean, nothing"}, "`outputs` must name some of mean"),
        (SOURCES["pair"][0], {"num_draws": S + 1}, "`num_draws` must be at most"),
        (SOURCES["pair"][0], {"path": "exact.txt"}, "`path` must end in"),
        (SOURCES["pair"][0], {"outputs": ""}, "`outputs` must name some of mean"),
        (SOURCES["pair"][0], {"outputs": "mean, mean"}, "each once"),
        (SOURCES["pair"][0], {"outputs": "quantile_1.5"}, "or a quantile such as"),
        (
            lambda: (TWO, lambda draw, x, seed: (x @ draw["w"] + seed[:, None]).softmax(-1)),
            {"x": (X, X[:, 0]), "outputs": "labels"},
            "take an input 'seed'",
        ),
        (
            lambda: (TWO, lambda draw, x, mean: (x @ draw["w"] + mean[:, None]).softmax(-1)),
            {"x": (X, X[:, 0]), "path": "exact.onnx"},
            "inputs of other names than its outputs",
        ),
    ],
    ids=[
        *(
            "function",
            "random rows",
            "one row",
            "rows beside",
            "an example of one",
            "output",
            "draws",
            "suffix",
            "no output",
            "twice",
            "level",
        ),
        *("seed", "name"),
    ],
)
def test_refusals(
    make: Callable[[], Any], options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path = tmp_path / options.pop("path", "exact.pt2")
    with pytest.raises(ValueError, match=says):
        exact(make()).export(path, options.pop("x", X), **options)


def test_an_example_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it has not been called yet"):
        exact(network([nn.Dropout()])).export(tmp_path / "exact.pt2")


def test_captured_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the compiler makes is tested with students; here it cannot compile."""
    monkeypatch.setattr("pyro_opu.export.capture._compiled", lambda *_: 1 / 0)
    exact(network([nn.Dropout()])).capture(X[:1])  # one row is enough of an example
    posterior = exact(Predictive(model, samples()))
    captured = posterior.capture(X, outputs="mean, epistemic")
    assert captured.kind == "eager"
    with pytest.raises(ValueError, match="`outputs` must be without labels"):
        posterior.capture(X, outputs="mean, labels")
    found, table = captured(BEYOND), posterior.uncertainty(BEYOND)
    torch.testing.assert_close(found["mean"], table.mean)
    torch.testing.assert_close(found["epistemic"], table.epistemic, rtol=0, atol=1e-6)


def test_the_usual_outputs_can_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    posterior = exact(Predictive(model, samples()))
    captured = posterior.capture(X)
    assert captured.kind == "compiled", captured.reason
    found, table = captured(BEYOND), posterior.uncertainty(BEYOND)
    for name in OUTPUTS:
        torch.testing.assert_close(found[name], table[name], rtol=1e-4, atol=1e-6)


def test_programs_are_modules() -> None:
    posterior = exact(Predictive(model, samples()))
    posterior.draws(X)
    program, _ = posterior._program(X, "mean", None)
    assert isinstance(program, ExactProgram) and not list(program.parameters())
