"""How novel an input is: shares of fresh rows, known distances, files, programs and threads."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pyro_opu
from pyro_opu import OnePassPredictive, PredictiveDirichlet, PredictiveGuide
from pyro_opu.guides.novelty import (
    Distance,
    Novelty,
    _calibrated,
    _principal,
    answer_and_features,
    fit_novelty,
)

pytestmark = pytest.mark.usefixtures("brief")

WEIGHTS = torch.randn(20, 6, 3, generator=torch.Generator().manual_seed(3))


def teacher(x: Tensor) -> Tensor:
    return (x @ WEIGHTS).softmax(-1)


def rows(count: int, seed: int = 0) -> Tensor:
    """Two groups, with columns that belong together."""
    g = torch.Generator().manual_seed(seed)
    mix = torch.randn(6, 6, generator=torch.Generator().manual_seed(9))
    x = torch.randn(count, 6, generator=g) @ mix
    return x + 4 * (torch.rand(count, 1, generator=g) < 0.3)


@pytest.fixture(scope="module")
def fast() -> OnePassPredictive:
    return pyro_opu.distill(teacher, rows(1500), num_steps=60, seed=0, progress=False)


def test_a_share_of_fresh_rows_lies_above_it(fast: OnePassPredictive) -> None:
    """Four deviations of a share of 20,000 rows, by one of the 1,500 that it is read against."""
    novelty = fast.novelty(rows(20_000, seed=1))
    for share in (0.5, 0.1, 0.05, 0.01):
        allowed = 4 * (share * (1 - share) / 1500) ** 0.5
        assert (novelty > 1 - share).float().mean().item() == pytest.approx(share, abs=allowed)


def test_few_rows_are_held_out_in_turn() -> None:
    """Forty tables of 60 rows and 6 columns: on average right within a point and a half."""
    found = []
    for seed in range(40):
        guide = PredictiveGuide.for_inputs(rows(60, seed), 3, hidden=(8,))
        novelty = fit_novelty(guide, rows(60, seed))
        fresh = rows(500, 1000 + seed)
        found.append(novelty(fresh, guide.trunk(fresh)) > 0.9)
    assert torch.stack(found).float().mean().item() == pytest.approx(0.1, abs=0.015)


def test_far_inputs_stay_in_order(fast: OnePassPredictive) -> None:
    direction = torch.randn(1, 6, generator=torch.Generator().manual_seed(2))
    novelty = fast.novelty(torch.logspace(1, 4, 30)[:, None] * direction)
    assert (novelty.diff() > 0).all() and 0.99 < novelty[0] and novelty[-1] < 1
    assert fast.novelty(1e30 * direction).isfinite().all()


def test_distance_is_that_of_mahalanobis() -> None:
    """With all directions it is (z - m)' (S + ridge)^-1 (z - m), of the nearest class."""
    x, labels = rows(300), (torch.arange(300) % 3)
    x = x + 5 * labels[:, None]
    distance = Distance.fitted(x, labels)
    z = distance.standardize(x).double()
    counts = 100.0
    means = torch.stack([z[labels == c].sum(0) + 3 * z.mean(0) for c in range(3)]) / (counts + 3)
    within = z - means[labels]
    ridge = 1e-3 * within.square().sum() / 300 / 6
    inverse = torch.linalg.inv(within.mT @ within / 300 + ridge * torch.eye(6))
    apart = z[:, None] - means
    slow = torch.einsum("ncd,de,nce->nc", apart, inverse, apart).amin(1).log()
    torch.testing.assert_close(distance(x).double(), slow, rtol=1e-4, atol=1e-4)


def test_what_is_left_of_a_subspace_counts_too() -> None:
    """With 2 of 6 directions the rest has one variance."""
    x = rows(400)
    distance = Distance(6, 1, 2)
    whole = Distance.fitted(x, torch.zeros(400).long())
    distance.standardize = whole.standardize
    z = whole.standardize(x).double()
    z = z - z.mean(0)
    values, directions = _principal(z, 2)
    rest = (z.square().sum() / 400 - values.sum()) / 4
    full = directions @ torch.diag(values) @ directions.mT
    full += rest * (torch.eye(6) - directions @ directions.mT)
    slow = torch.einsum("nd,de,ne->n", z, torch.linalg.inv(full), z).log()
    distance.directions, distance.weights = directions.float(), values.reciprocal().float()
    distance.rest = rest.reciprocal().float()[None]
    torch.testing.assert_close(distance(x).double(), slow, rtol=1e-4, atol=1e-4)


def test_of_few_rows_directions_are_those_of_the_covariance() -> None:
    z = torch.randn(20, 50).double()
    values, directions = _principal(z, 7)
    exact, expected = (found.flip(-1)[..., :7] for found in torch.linalg.eigh(z.mT @ z / 20))
    torch.testing.assert_close(values, exact)
    torch.testing.assert_close(directions @ directions.mT, expected @ expected.mT)


def test_of_many_features_directions_are_found_at_random() -> None:
    """A subspace of 3 strong directions in 1,100 features, the same at every call."""
    strong = torch.linalg.qr(torch.randn(1100, 3))[0].double()
    z = torch.randn(200, 3).double() * 9 @ strong.mT + 0.01 * torch.randn(200, 1100).double()
    values, directions = _principal(z, 3)
    assert (directions.mT @ strong).square().sum().item() == pytest.approx(3, abs=1e-3)
    assert torch.equal(directions, _principal(z, 3)[1])
    exact = torch.linalg.svdvals(z)[:3].square() / 200
    torch.testing.assert_close(values, exact, rtol=1e-3, atol=0)


def test_rows_that_are_alike_calibrate() -> None:
    knots, levels, tail = _calibrated(torch.zeros(50).double())
    assert (knots.diff() > 0).all() and (levels.diff() > 0).all() and tail > 0


def test_it_is_in_the_table_and_is_no_measure_of_draws(fast: OnePassPredictive) -> None:
    x = rows(7)
    found = fast.uncertainty(x)
    assert torch.equal(found.novelty, fast.novelty(x)) and torch.equal(
        found["novelty"], found.novelty
    )
    plain = pyro_opu.uncertainty(fast.distribution(x))
    assert plain.novelty is None and "novelty" not in dict(plain) and "novelty" in dict(found)
    assert all(torch.equal(found[name], plain[name]) for name in plain.keys())


def test_a_file_keeps_it(fast: OnePassPredictive, tmp_path: Path) -> None:
    fast.save(tmp_path / "s.safetensors")
    again = OnePassPredictive.load(tmp_path / "s.safetensors")
    assert torch.equal(again.novelty(rows(50, 5)), fast.novelty(rows(50, 5)))
    torch.testing.assert_close(
        fast.fuse().novelty(rows(50, 5)), fast.novelty(rows(50, 5)), rtol=1e-3, atol=1e-4
    )


def test_a_student_without_it_says_how_to_get_it(tmp_path: Path) -> None:
    x = rows(100)
    plain = OnePassPredictive(PredictiveGuide.for_inputs(x, 3), (6,), 3)
    plain.save(tmp_path / "s.safetensors")
    plain = OnePassPredictive.load(tmp_path / "s.safetensors")
    with pytest.raises(ValueError, match=r"fit_novelty\(fast.guide, x\)"):
        plain.novelty(x)
    assert plain.uncertainty(x).novelty is None
    plain.detector = fit_novelty(plain.guide, x)
    assert plain.novelty(x).median().item() == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("change", [{"columns": [0, 1]}, {"knots": 3}, {"inputs": [6, 2, 6]}, None])
def test_a_file_with_another_form_is_refused(
    fast: OnePassPredictive, tmp_path: Path, change: dict | None
) -> None:
    kept = fast.detector.config
    try:
        fast.detector.config = None if change is None else {**kept, **change}
        fast.save(tmp_path / "s.safetensors")
    finally:
        fast.detector.config = kept
    with pytest.raises(ValueError, match="description"):
        OnePassPredictive.load(tmp_path / "s.safetensors")


@pytest.mark.parametrize("suffix", [pytest.param(".onnx", marks=pytest.mark.slow), ".pt2"])
def test_programs_say_it(fast: OnePassPredictive, tmp_path: Path, suffix: str) -> None:
    if suffix == ".onnx":
        pytest.importorskip("onnxscript")
    path, x = tmp_path / f"s{suffix}", torch.cat([rows(20, 5), 50 * rows(5, 6)])
    fast.export(path, outputs=["novelty", "mean"])
    if suffix == ".pt2":
        found = torch.export.load(path).module()(x)["novelty"]
    else:
        session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
        assert [each.name for each in session.get_outputs()] == ["novelty", "mean"]
        found = torch.as_tensor(session.run(None, {"x": x.numpy()})[0])
    torch.testing.assert_close(found, fast.novelty(x), rtol=1e-3, atol=1e-4)


def test_a_pass_is_heard_without_touching_the_guide(fast: OnePassPredictive) -> None:
    """Threads with their own rows get their own novelty."""
    parts = [rows(3 + n, 20 + n) for n in range(8)]
    expected, found = [fast.novelty(x) for x in parts], [None] * 8

    def ask(n: int) -> None:
        for _ in range(20):
            found[n] = fast.novelty(parts[n])

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert not any(type(each).__name__ == "_Keeps" for each in fast.guide.modules())


class Own(nn.Module):
    """A guide without a trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> PredictiveDirichlet:
        return PredictiveDirichlet(self.layer(x).log_softmax(-1), x.new_full((len(x),), 2.0))


def test_of_a_guide_without_a_trunk_inputs_are_read() -> None:
    guide = Own()
    assert answer_and_features(guide, rows(4))[1] is None
    fast = pyro_opu.distill(teacher, rows(300), guide=guide, num_steps=60, seed=0, progress=False)
    assert fast.detector.features is None
    assert fast.novelty(30 * rows(5, 3)).min() > 0.99 > 0.9 > fast.novelty(rows(300)).mean()


def test_of_a_real_y_and_of_several_sites() -> None:
    w = torch.randn(20, 6, 1, generator=torch.Generator().manual_seed(1))
    real = pyro_opu.distill(
        lambda x: ((x @ w)[..., 0], torch.ones(20, len(x))),
        rows(300),
        num_steps=60,
        seed=0,
        progress=False,
    )
    assert str(real.outcome) == "a real y"
    x = torch.cat([rows(5, 3), 40 * rows(5, 4)])
    assert torch.equal(real.uncertainty(x).novelty, real.novelty(x))
    assert (real.novelty(x)[5:] > 0.99).all()


def test_an_index_is_no_number() -> None:
    """Only the other columns are read as numbers; what is learnt of the index is a feature."""
    table = torch.randn(20, 4, 3)
    x = {"x": rows(300), "group": torch.randint(4, (300,))}

    def grouped(x: Tensor, group: Tensor) -> Tensor:
        return (x @ WEIGHTS + table[:, group]).softmax(-1)

    fast = pyro_opu.distill(grouped, x, num_steps=60, seed=0, progress=False)
    assert len(fast.detector.columns) == 6
    assert fast.novelty({"x": 40 * rows(3, 4), "group": torch.arange(3)}).min() > 0.99


def test_the_same_rows_give_the_same(fast: OnePassPredictive) -> None:
    one, other = (fit_novelty(fast.guide, rows(500)).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_nothing_to_read_gives_none(fast: OnePassPredictive) -> None:
    assert fit_novelty(fast.guide, rows(3)) is None
    assert fit_novelty(Own(), rows(9), indices=range(6)) is None
    assert isinstance(fit_novelty(fast.guide, rows(4)), Novelty)


class Asked(nn.Module):
    """A guide that says how many rows it was asked at first, and ends there."""

    def forward(self, x: Tensor) -> PredictiveDirichlet:
        raise InterruptedError(f"{len(x)} rows")


def test_of_many_rows_some_thousands_are_looked_at_and_of_large_ones_few() -> None:
    seen: list[int] = []
    guide = Own()
    guide.register_forward_hook(lambda module, args, answer: seen.append(len(args[0])))
    fit_novelty(guide, rows(20_000))
    assert 5_000 < sum(seen) < 10_000
    with pytest.raises(InterruptedError, match="^64 rows$"):  # of 34 MB together
        fit_novelty(Asked(), torch.zeros(1, 1).expand(1000, 2**17))


def test_products_of_a_distance_are_bounded_by_fewer_directions() -> None:
    for size, most in ((100, 100), (1200, 60)):
        distance = Distance.fitted(torch.randn(250, size), torch.zeros(250).long())
        assert 0.8 * most < distance.sizes[2] <= most and distance.sizes[0] == size


def test_of_fewer_rows_than_columns_the_rest_has_its_mean_variance() -> None:
    x = rows(10).repeat(1, 2) + 0.3 * torch.randn(
        10, 12, generator=torch.Generator().manual_seed(4)
    )
    distance = Distance.fitted(x, torch.zeros(10).long())
    z = distance.standardize(x).double()
    values, directions = torch.linalg.eigh(z.mT @ z / 10)
    ridge = 1e-3 * values.mean()
    values[:7] = values[:7].mean()  # all but five directions, a half of the rows
    slow = ((z @ directions).square() / (values + ridge)).sum(-1).log()
    torch.testing.assert_close(distance(x).double(), slow, rtol=1e-4, atol=1e-4)


def test_the_tail_falls_by_half_over_a_half_of_the_rows_in_it(fast: OnePassPredictive) -> None:
    far = torch.randn(1000, generator=torch.Generator().manual_seed(0)).exp().double()
    knots, levels, tail = _calibrated(far)
    beyond = far[far > knots[-1]]
    assert len(beyond) == 5 and int((beyond > knots[-1] + tail).sum()) == 2
    novelty, x = fast.detector, 9 * rows(50, 8)
    t = novelty.distance(x, fast.guide.trunk(x))
    assert (t > novelty.knots[-1]).any()
    slow = (1 - novelty.levels[-1]) / (1 + (t - novelty.knots[-1]).clamp_min(0) / novelty.tail)
    above = t > novelty.knots[-1]
    torch.testing.assert_close(1 - fast.novelty(x)[above], slow[above], rtol=1e-3, atol=0)


@pytest.mark.parametrize(("last", "least", "most"), [(1.0, 0.1, 0.5), (1.0001, 0.005, 0.1)])
def test_a_tail_of_rows_that_are_alike_is_short_and_no_cliff(last, least, most) -> None:
    """In units of how far they lie from the median, whether or not they lie beyond a knot."""
    far = torch.cat([torch.linspace(0, 1, 995), torch.full((5,), last)]).double()
    knots, _, tail = _calibrated(far)
    assert least < float(tail / (knots[-1] - far.median())) < most
