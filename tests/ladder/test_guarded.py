"""A student and exact answers as one: which rows go where, what comes back, budgets, threads."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from torch import Tensor

import pyro_opu
from pyro_opu.checks.errors import ArgumentError
from pyro_opu.ladder.base import Exact
from pyro_opu.ladder.guarded import Guarded

pytestmark = pytest.mark.usefixtures("brief")

S = 30
W = torch.randn(S, 3, generator=torch.Generator().manual_seed(1)) / 2


def rows(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))


def model(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        p = pyro.deterministic("p", torch.sigmoid(x @ w))
        pyro.sample("obs", dist.Bernoulli(p), obs=y)


predictive = Predictive(model, {"w": W}, return_sites=["obs", "p"])


def quick(source: Any, x: Any = None, **options: Any) -> Any:
    x = rows(400) if x is None else x
    return pyro_opu.distill(source, x, **{"num_steps": 20, "seed": 0, "progress": False} | options)


@pytest.fixture(scope="module")
def both() -> Guarded:
    return pyro_opu.guarded(quick(predictive), predictive)


def new() -> Tensor:
    """Rows like those taught at, five far off, and five that are hardly decided."""
    x = rows(200, seed=1)
    x[:5] *= 30
    mean = W.mean(0)
    x[5:10] -= (x[5:10] @ mean / mean.square().sum())[:, None] * mean
    return x


def must(both: Guarded, x: Tensor) -> Tensor:
    """The rule, written out."""
    fast = both.fast
    p = fast.distribution(x).mean.double()
    if p.shape[1] == 2:
        lead = (p[:, 1] - 0.5).abs()
    else:
        two = p.topk(2).values
        lead = two[:, 0] - two[:, 1]
    return (fast.novelty(x) > 0.99) | (lead <= fast.bound(of="margin"))


def test_exactly_the_rows_without_a_certificate_are_exact(both: Guarded) -> None:
    x = new()
    wanted, before = must(both, x), both.routed
    assert wanted[:5].all() and 5 < wanted.sum() < 100
    assert torch.equal(both.outside(x), wanted) and both.routed == before
    exact = pyro_opu.exact(predictive)
    probs, table = both.probs(x), both.uncertainty(x)
    torch.testing.assert_close(probs[:, wanted], exact.probs(x)[:, wanted])
    theirs, mine = exact.uncertainty(x), both.fast.uncertainty(x)
    # In the pass that novelty hears no weights are merged, so its last digits are others.
    (heard,) = both.fast._tables_of(*both.fast._answer_and_novelty(x)).values()
    for name in ("mean", "total", "aleatoric", "epistemic", "max_probability"):
        torch.testing.assert_close(table[name][wanted], theirs[name][wanted], rtol=1e-4, atol=1e-6)
        if name != "mean":
            assert torch.equal(table[name][~wanted], heard[name][~wanted])
            torch.testing.assert_close(table[name][~wanted], mine[name][~wanted])
    assert torch.equal(table.novelty, mine.novelty)
    torch.testing.assert_close(table.mean[~wanted], both.fast.distribution(x).mean[~wanted])
    draws = both(x)
    assert {name: value.shape for name, value in draws.items()} == {
        name: value.shape for name, value in predictive(x).items()
    }
    held = exact(x)["p"]
    torch.testing.assert_close(draws["p"][:, wanted], held[:, wanted])
    assert not torch.isclose(draws["p"][:, ~wanted], held[:, ~wanted]).all()
    after, count = both.routed, int(wanted.sum())
    assert after.last == count
    assert (after.exact - before.exact, after.rows - before.rows) == (3 * count, 600)


def test_a_lead_of_several_classes_is_settled_by_its_margin() -> None:
    weights = torch.randn(25, 3, 3, generator=torch.Generator().manual_seed(2))

    def three(x: Tensor) -> Tensor:
        return (x @ weights).softmax(-1)

    guard = pyro_opu.guarded(quick(three), three, 0.9)
    x = rows(300, seed=3)
    p = guard.fast.distribution(x).mean.topk(2).values
    wanted = (p[:, 0] - p[:, 1] <= guard.fast.bound(0.9, of="margin")) | (
        guard.fast.novelty(x) > 0.99
    )
    assert torch.equal(guard.outside(x), wanted) and wanted.any()
    torch.testing.assert_close(guard.probs(x, 25)[:, wanted], three(x)[:, wanted])


def test_decisions_are_the_exact_ones_as_often_as_promised(both: Guarded) -> None:
    """The margin covers 95 % of rows; about 40 kept rows leave room for its Beta variate."""
    x = rows(5000, seed=4)
    found = both.uncertainty(x).mean[:, 1] > 0.5
    same = (found == (pyro_opu.exact(predictive).uncertainty(x).mean[:, 1] > 0.5)).double().mean()
    assert same > 0.95


def test_without_exact_answers_such_rows_are_refused(both: Guarded) -> None:
    alone, x = pyro_opu.guarded(both.fast, None), new()
    with pytest.raises(ArgumentError, match=r"5 of 200 are novel|of 200 are novel and"):
        alone(x)
    kept = x[~alone.outside(x)]
    assert alone(kept)["obs"].shape == (S, len(kept)) and alone.routed.last == 0
    assert alone.probs(kept).shape == (S, len(kept), 2)


def test_a_budget_is_of_all_rows_and_the_most_novel_come_first(both: Guarded) -> None:
    x = new()
    tight = pyro_opu.guarded(both.fast, both.exact, budget=0.02)
    with pytest.warns(UserWarning, match="as the budget of 0.02 of all rows is spent"):
        tight.probs(x)
    wanted = int(must(both, x).sum())
    assert tight.routed == (4, 4, wanted - 4, 200)
    novel = both.fast.novelty(x).topk(4).indices
    exact = pyro_opu.exact(predictive).probs(x)
    torch.testing.assert_close(tight.probs(x)[:, novel], exact[:, novel])
    assert tight.routed.exact == 8 == int(0.02 * tight.routed.rows)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_rows_may_all_be_exact(both: Guarded, count: int) -> None:
    x = 30 * rows(count, seed=5)
    torch.testing.assert_close(both.probs(x), pyro_opu.exact(predictive).probs(x))
    assert both.routed.last == count
    near = rows(60, seed=6)
    near = near[~both.outside(near)][:1]
    both.probs(near)
    assert both.routed.last == 0


def test_several_inputs_and_sites_go_as_they_came() -> None:
    bias = torch.randn(S, 4, generator=torch.Generator().manual_seed(7))

    def grouped(x: Tensor, group: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        b = pyro.sample("b", dist.Normal(torch.zeros(4), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("ill", dist.Bernoulli(logits=x @ w + b[group]))
            dose = pyro.deterministic("dose", x @ w)
            pyro.sample("taken", dist.Normal(dose, 0.5))

    source = Predictive(grouped, {"w": W, "b": bias}, return_sites=["ill", "taken", "dose"])
    x, group = rows(300), torch.arange(300) % 4
    guard = pyro_opu.guarded(quick(source, (x, group)), source)
    far = 40 * rows(6, seed=8)
    found = guard(far, group[:6])
    expected = pyro_opu.exact(source)(far, group[:6])
    assert guard.routed.last == 6 and set(found) == {"ill", "taken", "dose"}
    torch.testing.assert_close(found["dose"], expected["dose"])
    table = guard.uncertainty((far, group[:6]))
    mean = expected["dose"].mean(0)
    torch.testing.assert_close(table["taken"].mean, mean, rtol=1e-4, atol=1e-3)


def test_threads_count_every_row_once(both: Guarded) -> None:
    guard, x = pyro_opu.guarded(both.fast, both.exact), new()
    expected = both.probs(x)
    wanted = both.outside(x)

    def ask(_: int) -> int:
        found = guard.probs(x)
        torch.testing.assert_close(found[:, wanted], expected[:, wanted])
        return guard.routed.last

    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(ask, range(24)))
    assert counts == [int(wanted.sum())] * 24
    assert guard.routed.exact == sum(counts) and guard.routed.rows == 24 * len(x)


def test_a_student_without_a_bound_says_why() -> None:
    few = quick(predictive, rows(60))
    with pytest.raises(ArgumentError, match="it takes 190 transfer inputs"):
        pyro_opu.guarded(few, predictive)
    with pytest.raises(ArgumentError, match="40 rows were kept for it"):
        pyro_opu.guarded(quick(predictive), predictive, 0.99)


def test_other_numbers_of_draws_are_refused(both: Guarded) -> None:
    other = pyro_opu.guarded(both.fast, Predictive(model, {"w": W[:7]}, return_sites=["obs", "p"]))
    with pytest.raises(ArgumentError, match="`exact` must give as many draws as the student, 30"):
        other(30 * rows(3))


# Files


def router_of(folder: Path) -> Any:
    """``router.py`` as a program of its own, which knows nothing of this package."""
    text = (folder / "router.py").read_text()
    assert "import pyro_opu" not in text and "import torch" not in text
    assert len([line for line in text.splitlines() if line.startswith("    ")]) <= 11
    spec = importlib.util.spec_from_file_location("router", folder / "router.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def same_answers(guard: Guarded, folder: Path, x: Any, *parts: Tensor) -> None:
    """The router's rows and numbers are the pair's own."""
    mean, epistemic, away = router_of(folder).answer(*(part.numpy() for part in parts))
    wanted, table = guard.outside(x), guard.uncertainty(x)
    assert np.array_equal(away, wanted.numpy()) and away.any() and not away.all()
    np.testing.assert_allclose(mean, table.mean, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(epistemic, table.epistemic, rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def pair(both: Guarded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("files") / "pair"
    both.export(folder, new())
    return folder


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of students and of draws are there, and are not written again."""
    for kind in (pyro_opu.OnePassPredictive, Exact):
        monkeypatch.setattr(kind, "export", lambda *args, **options: None)


def test_files_route_and_answer_as_the_pair_does(both: Guarded, pair: Path) -> None:
    assert sorted(each.name for each in pair.iterdir()) == ["exact.onnx", "fast.onnx", "router.py"]
    same_answers(both, pair, new(), new())


@pytest.mark.usefixtures("written")
def test_a_router_has_the_numbers_of_its_pair(both: Guarded, pair: Path) -> None:
    other = pyro_opu.guarded(both.fast, both.exact, 0.9, threshold=0.3, novelty=0.9)
    other.export(pair)
    same_answers(other, pair, new(), new())


@pytest.mark.usefixtures("written")
def test_a_router_says_what_it_does_not(both: Guarded, pair: Path, tmp_path: Path) -> None:
    tight = pyro_opu.guarded(both.fast, both.exact, budget=0.02)
    with pytest.warns(UserWarning, match=r"router.py has no budget; this pair has 0.02"):
        tight.export(pair)
    (tmp_path / "fast.onnx").write_bytes((pair / "fast.onnx").read_bytes())
    pyro_opu.guarded(both.fast, None).export(tmp_path)
    assert not (tmp_path / "exact.onnx").exists()
    wanted = both.outside(new())
    with pytest.raises(ValueError, match=f"no certificate for {int(wanted.sum())} rows"):
        router_of(tmp_path).answer(new().numpy())
    mean, _, away = router_of(tmp_path).answer(new()[~wanted].numpy())
    assert not away.any() and mean.shape == (int((~wanted).sum()), 2)
    (tmp_path / "router.py").write_text("mine = 1")
    with pytest.raises(ArgumentError, match="no router.py of somebody else's"):
        both.export(tmp_path, new())
    assert (tmp_path / "router.py").read_text() == "mine = 1"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["three classes", "real"])
def test_files_of_other_outcomes(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    weights = torch.randn(25, 3, 3, generator=torch.Generator().manual_seed(2))

    def other(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3, 3), 1.0).to_event(2))
        with pyro.plate("data", len(x)):
            if kind == "real":
                pyro.sample("obs", dist.Normal((x @ w)[:, 0], 1.0))
            else:
                pyro.sample("obs", dist.Categorical(logits=x @ w))

    source = Predictive(other, {"w": weights})
    guard = pyro_opu.guarded(quick(source), source, 0.9)
    guard.export(tmp_path, new())
    same_answers(guard, tmp_path, new(), new())
