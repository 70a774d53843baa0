"""Plots: what the artists hold against known answers and slow loops, and what is left alone."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from io import BytesIO

import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.figure import Figure
from plotted import held_teacher, labels, student
from scipy.stats import spearmanr
from torch import Tensor
from torch.distributions import Dirichlet

import pyro_opu
from pyro_opu import PredictiveDirichlet, plots
from pyro_opu.distributions import DirichletMixture, Empirical, LogisticNormal
from pyro_opu.metrics.scores import expected_calibration_error
from pyro_opu.plots.colours import SERIES
from pyro_opu.plots.triangle import CORNERS, SHARES


def in_plane(points: Tensor) -> np.ndarray:
    return (points.double() @ torch.tensor(CORNERS, dtype=torch.float64)).numpy()


# The simplex


def test_simplex_puts_corners_draws_and_means_where_they_belong(ax):
    draws = torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0], [0.5, 0.5, 0.0]])
    plots.simplex(draws=draws, labels=["a", "b", "c"], ax=ax)
    (triangle,) = ax.patches
    np.testing.assert_array_equal(triangle.get_xy()[:3], CORNERS)
    sides = np.linalg.norm(np.diff(triangle.get_xy(), axis=0), axis=1)
    np.testing.assert_allclose(sides, 1.0, rtol=1e-12)  # rounding
    dots, mean = ax.collections
    np.testing.assert_allclose(dots.get_offsets(), [*CORNERS, (0.5, 0.0)], atol=1e-12)  # rounding
    np.testing.assert_allclose(mean.get_offsets(), in_plane(draws.mean(0)[None]), atol=1e-12)
    assert [(text.get_text(), text.xy) for text in ax.texts] == list(
        zip("abc", CORNERS, strict=True)
    )
    assert labels(ax.get_legend()) == ["teacher's draws", "teacher's mean"]


def test_simplex_regions_hold_the_shares_they_say(ax):
    answer = Dirichlet(torch.tensor([9.0, 7.0, 6.0]))
    plots.simplex(answer, ax=ax)
    outlines = ax.collections[1].get_paths()
    fresh = in_plane(answer.sample((20_000,)))
    found = [path.contains_points(fresh).mean() for path in outlines]
    # 0.025: the thresholds come from 4,000 draws (deviation at most 0.008), the shares from 20,000.
    np.testing.assert_allclose(found, SHARES, atol=0.025)


def test_simplex_region_of_a_line_stays_on_it(ax):
    """All mass on the edge between 0 and 1, where the density is infinite."""
    plots.simplex(PredictiveDirichlet.from_alpha(torch.tensor([2.0, 2.0, 1e-3])), ax=ax)
    filled = np.concatenate([path.vertices for path in ax.collections[0].get_paths()])
    # From the edge up: one step of the grid, a hundredth, and at most three in the middle, where
    # the density, which falls as 1 / p there, is three times that at the region's ends.
    assert 0 <= filled[:, 1].min() and 0.005 < filled[:, 1].max() < 0.03
    assert filled[:, 0].min() < 0.1 and filled[:, 0].max() > 0.9


def test_simplex_region_of_a_corner_can_be_seen(ax):
    plots.simplex(PredictiveDirichlet.from_alpha(torch.tensor([1e-3, 1e-3, 1e4])), ax=ax)
    filled = np.concatenate([path.vertices for path in ax.collections[0].get_paths()])
    # About one step of the grid, a hundredth, and at most two.
    reach = np.linalg.norm(filled - CORNERS[2], axis=1).max()
    assert 0.009 < reach < 0.02


def test_simplex_of_a_uniform_density_is_one_region(ax):
    plots.simplex(Dirichlet(torch.ones(3)), ax=ax)
    assert len(ax.collections[0].get_paths()) == 1


@pytest.mark.parametrize(
    "answer",
    [
        Dirichlet(torch.tensor([3.0, 1.0, 2.0])),
        PredictiveDirichlet.from_alpha(torch.tensor([[1e5, 0.5, 1e-3]])),
        DirichletMixture(torch.zeros(1, 2), torch.randn(1, 2, 3), torch.full((1, 2), 3.0)),
        LogisticNormal(torch.zeros(1, 3), torch.zeros(1, 3), torch.zeros(1, 3, 1)),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_simplex_takes_every_family(ax, answer):
    draws, random = answer.sample((30,)), torch.get_rng_state()
    plots.simplex(answer, draws, ax=ax)
    assert torch.equal(random, torch.get_rng_state())
    whole = 5  # regions, outlines, the draws, two means
    assert len(ax.collections) in (whole, 2 * whole)
    mean = ax.collections[2].get_offsets()
    np.testing.assert_allclose(mean, in_plane(answer.mean.reshape(1, 3)), atol=1e-6)  # float32
    ax.figure.savefig(BytesIO(), format="png")


def test_simplex_legends_leave_the_triangle_alone(ax):
    answer = Dirichlet(torch.tensor([9.0, 7.0, 6.0]))
    ax.figure.set(size_inches=(5.0, 4.2), layout_engine="constrained")
    plots.simplex(answer, answer.sample((30,)), labels=["T-shirt", "pullover", "boot"], ax=ax)
    ax.figure.draw_without_rendering()
    triangle = ax.transData.transform_path(ax.patches[0].get_path())
    boxes = [child.get_window_extent() for child in ax.get_children() if hasattr(child, "texts")]
    words = [text.get_window_extent() for text in ax.texts]
    assert len(boxes) == 2
    assert not any(triangle.intersects_bbox(box) for box in [*boxes, *words])
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes + words, 2))


def test_three_classes_of_a_dirichlet_is_the_law_of_renormalised_draws():
    alpha = torch.tensor([[5.0, 0.5, 3.0, 2.0], [1.0, 1.0, 1.0, 7.0]], dtype=torch.float64)
    whole = Dirichlet(alpha)
    part = plots.three_classes(whole, [3, 0, 2])
    torch.testing.assert_close(part.concentration, alpha[:, [3, 0, 2]])
    torch.testing.assert_close(part.log_mean.exp().sum(-1), torch.ones(2).double())
    draws = plots.three_classes(whole.sample((20_000,)), [3, 0, 2])
    # 0.01: Monte Carlo of 20,000 draws, whose deviation is at most 0.002.
    torch.testing.assert_close(draws.mean(0), part.mean, atol=0.01, rtol=0.0)
    torch.testing.assert_close(draws.var(0), part.variance, atol=0.01, rtol=0.0)


# Reliability, and risk against coverage


def test_reliability_equals_the_loop_and_the_ece(ax):
    probs = Dirichlet(torch.tensor([0.5, 1.0, 2.0])).sample((400,))
    y = torch.distributions.Categorical(probs).sample()
    named = {"one": probs, "two": probs.square() / probs.square().sum(-1, True)}
    plots.reliability(named, y, equal_mass=False, ax=ax)
    confidence, predicted = probs.double().max(-1)
    expected = []
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            right = (predicted == y)[inside].double().mean()
            expected.append([float(confidence[inside].mean()), float(right)])
    line = ax.lines[1]
    np.testing.assert_allclose(line.get_xydata(), expected, rtol=1e-12)  # rounding
    ece = expected_calibration_error(probs, y)
    share = (ax.collections[0].get_sizes() - 12) / 150
    gaps = np.abs(np.diff(line.get_xydata(), axis=1)[:, 0])
    assert (share * gaps).sum() == pytest.approx(ece, rel=1e-9)  # rounding
    assert labels(ax.get_legend())[1] == f"one (ECE {ece:.3f})"
    assert ax.lines[1].get_color() != ax.lines[2].get_color()


def test_reliability_by_bins_of_equal_mass_equals_the_loop(ax):
    probs = Dirichlet(torch.tensor([0.5, 1.0, 2.0])).sample((403,))
    y = torch.distributions.Categorical(probs).sample()
    plots.reliability(probs, y, bins=10, ax=ax)
    confidence, predicted = probs.double().max(-1)
    order = confidence.argsort()
    expected, ends, error = [], [], 0.0
    for b in range(10):
        part = order[[i for i in range(403) if i * 10 // 403 == b]]
        right = (predicted == y)[part].double()
        expected.append([float(confidence[part].mean()), float(right.mean())])
        interval = proportion(int(right.sum()), len(part))
        ends.append(interval)
        error += len(part) / 403 * abs(expected[-1][0] - expected[-1][1])
    np.testing.assert_allclose(ax.lines[1].get_xydata(), expected, rtol=1e-12)  # rounding
    drawn = [segment[:, 1] for segment in ax.collections[1].get_segments()]
    np.testing.assert_allclose(drawn, ends, rtol=1e-6, atol=1e-9)  # 1.959964 has seven digits
    assert labels(ax.get_legend())[1] == f"model (ECE {error:.3f})"


def proportion(right: int, count: int) -> tuple[float, float]:
    from scipy.stats import binomtest

    found = binomtest(right, count).proportion_ci(0.95, "wilson")
    return found.low, found.high


def test_reliability_of_one_input(ax):
    plots.reliability(torch.tensor([[0.3, 0.7]]), torch.tensor([1]), bins=4, ax=ax)
    np.testing.assert_allclose(ax.lines[1].get_xydata(), [[0.7, 1.0]], rtol=1e-6)  # float32 input
    assert labels(ax.get_legend())[1] == "model (ECE 0.300)"


def aurc(legend_text: str) -> float:
    return float(re.search(r"AURC (.*)\)", legend_text).group(1))


def test_risk_coverage_equals_the_loop(ax):
    scores = torch.rand(50)
    wrong = torch.rand(50) < 0.3
    plots.risk_coverage({"random": scores}, wrong, ax=ax)
    order = scores.argsort()
    expected = [wrong[order[: n + 1]].double().mean().item() for n in range(50)]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), expected, rtol=1e-12)  # rounding
    np.testing.assert_allclose(ax.lines[0].get_xdata(), np.arange(1, 51) / 50)
    # 0.5 %: three digits in the legend.
    assert aurc(labels(ax.get_legend())[0]) == pytest.approx(np.mean(expected), rel=5e-3)


def test_risk_coverage_of_a_perfect_ranking_is_the_oracle(ax):
    wrong = torch.tensor([False, False, True, False, True])
    plots.risk_coverage({"perfect": torch.tensor([0.1, 0.3, 5.0, 0.2, 4.0])}, wrong, ax=ax)
    perfect, oracle = (line.get_ydata() for line in ax.lines)
    np.testing.assert_allclose(perfect, [0, 0, 0, 1 / 4, 2 / 5])
    np.testing.assert_allclose(oracle, perfect)
    assert [aurc(text) for text in labels(ax.get_legend())] == [0.13, 0.13]


def test_risk_coverage_averages_over_the_orders_of_ties(ax):
    scores, wrong = torch.tensor([0.0, 1.0, 1.0, 1.0, 2.0]), torch.tensor([0, 1, 0, 0, 1]).bool()
    plots.risk_coverage({"tied": scores}, wrong, ax=ax)
    curves = []
    for middle in itertools.permutations([1, 2, 3]):
        errors = wrong[[0, *middle, 4]].double()
        curves.append((errors.cumsum(0) / torch.arange(1, 6)).numpy())
    np.testing.assert_allclose(ax.lines[0].get_ydata(), np.mean(curves, axis=0))


def test_risk_coverage_of_two_classifiers_has_two_oracles(ax):
    scores = {"teacher": torch.rand(4), "student": torch.rand(4).numpy()}
    wrong = {"teacher": torch.tensor([0, 0, 0, 1]).bool(), "student": np.array([0, 0, 1, 1]) > 0}
    plots.risk_coverage(scores, wrong, ax=ax)
    assert [line.get_ydata()[-1] for line in ax.lines] == [0.25, 0.25, 0.5, 0.5]
    assert [re.sub(r" \(.*", "", text) for text in labels(ax.get_legend())] == [
        "teacher",
        "teacher, oracle",
        "student",
        "student, oracle",
    ]


# Histograms


def heights(polygon) -> set[float]:
    return {round(float(height), 9) for height in polygon.get_xy()[:, 1]}


def test_histograms_count_shares_of_the_log(ax):
    alpha = torch.tensor([100.0, 100.0, 100.0, 1.0])[:, None] * torch.tensor([[0.5, 0.25, 0.25]])
    one = Dirichlet(torch.full((1, 3), 10.0 / 3))
    mixture = DirichletMixture(torch.zeros(2, 2), torch.randn(2, 2, 3), torch.full((2, 2), 1.0))
    answers = {"inside": Dirichlet(alpha), "one": one, "mixture": mixture}
    plots.concentration_histograms(answers, bins=4, ax=ax)
    outline = ax.patches[1]
    assert heights(outline) == {0.0, 0.25, 0.75}
    edges = sorted(set(outline.get_xy()[:, 0]))
    # 1e-6: float32. From 10^0 to 10^2.
    np.testing.assert_allclose(edges, [0.0, 0.5, 1.0, 1.5, 2.0], atol=1e-6)
    assert heights(ax.patches[3]) == {0.0, 1.0}
    assert ax.get_xlabel() == r"$\log_{10}$ concentration $\alpha_0$"
    assert labels(ax.get_legend()) == ["inside (N = 4)", "one (N = 1)", "mixture (N = 2)"]


def test_histograms_of_other_measures_and_sources(ax):
    draws = student(torch.randn(30, 2)).sample((50,))
    read = pyro_opu.uncertainty(student(torch.randn(20, 2)))
    sure = Empirical(torch.randn(1, 5, 3).log_softmax(-1))  # mutual information exactly 0
    answers = {"draws": draws, "read": read, "sure": sure}
    plots.concentration_histograms(answers, measure="mutual_information", bins=10, ax=ax)
    edges = sorted(set(ax.patches[5].get_xy()[:, 0]))
    assert edges[0] == -6 and heights(ax.patches[5]) == {0.0, 1.0}
    largest = max(pyro_opu.mutual_information(draws).max(), read.mutual_information.max())
    assert edges[-1] == pytest.approx(float(largest.log10()), rel=1e-5)  # float32


# Training curves


def record(phase: str, step: int, energy: float, **parts: float) -> dict:
    return {**parts, "phase": phase, "step": step, "energy_distance": energy, "kl": energy / 2}


def test_training_curves_count_steps_on_and_mark_what_was_kept():
    history = [
        record("start", 0, 1.0),
        record("warm start", 10, 0.2, moments=0.5),
        record("warm start", 15, 0.1, moments=0.4),
        record("objective", 5, 0.05, wasserstein=-0.1),
        record("objective", 10, 0.06, wasserstein=-0.2),
    ]
    above, below = plots.training_curves(
        {"history": history, "kept": "refinement kept: 0.1 -> 0.05"}, axes=Figure().subplots(2)
    )
    energy, kl, star = above.lines
    assert list(energy.get_xdata()) == [0, 10, 15, 20, 25]
    assert list(energy.get_ydata()) == [1.0, 0.2, 0.1, 0.05, 0.06]
    assert list(kl.get_ydata()) == [value / 2 for value in energy.get_ydata()]
    assert list(star.get_xydata()[0]) == [20, 0.05]
    moments, wasserstein = below.lines
    assert moments.get_xydata().tolist() == [[10, 0.5], [15, 0.4]]
    assert wasserstein.get_xydata().tolist() == [[20, -0.1], [25, -0.2]]
    (shade,) = above.patches
    assert (shade.get_x(), shade.get_x() + shade.get_width()) == (15, 25)
    assert above.get_yscale() == "log" and above.get_title() == "refinement kept\n0.1 -> 0.05"
    history.append(record("objective", 15, -1e-5, wasserstein=0.0))
    above, _ = plots.training_curves({"history": history}, axes=Figure().subplots(2))
    assert above.get_yscale() == "symlog" and above.lines[2].get_xydata()[0, 0] == 30
    history[3]["kept"] = history[4]["kept"] = True  # level, and the last of them is kept
    above, _ = plots.training_curves({"history": history}, axes=Figure().subplots(2))
    assert above.lines[2].get_xydata().tolist() == [[25, 0.06]]


def test_training_curves_of_a_distillation(agg):
    settings = {"num_steps": 20, "evaluate_every": 5, "seed": 0, "progress": False}
    # So slow a warm start leaves something to refine.
    fast = pyro_opu.distill(held_teacher, torch.randn(40, 2), learning_rate=1e-5, **settings)
    above, below = plots.training_curves(fast)
    assert above.lines[0].get_xdata()[-1] == 20
    energies = [entry["energy_distance"] for entry in fast.report["history"]]
    assert above.lines[2].get_ydata()[0] == fast.report["energy_distance"] == min(energies)
    assert len(pyplot.get_fignums()) == 1 and above.figure is below.figure


# Fidelity


@pytest.mark.parametrize("measure", ["mutual_information", "concentration", "max_probability"])
def test_fidelity_scatter_equals_the_measures_of_both(ax, measure):
    x = torch.randn(25, 2)
    plots.fidelity_scatter(student, held_teacher, x, measure=measure, ax=ax)
    theirs = pyro_opu.uncertainty(held_teacher(x))[measure]
    mine = pyro_opu.uncertainty(student(x))[measure]
    halves, points = ax.collections
    drawn = held_teacher(x)
    own = [pyro_opu.uncertainty(half)[measure] for half in (drawn[::2], drawn[1::2])]
    expected = torch.stack(own, -1).double()
    np.testing.assert_allclose(halves.get_offsets(), expected, rtol=1e-4, atol=1e-6)  # float32
    expected = torch.stack([theirs, mine], -1).double()
    np.testing.assert_allclose(points.get_offsets(), expected, rtol=1e-4, atol=1e-6)  # float32
    rank = spearmanr(theirs, mine).statistic
    assert ax.get_title() == f"rank correlation {rank:.3f} (N = 25)"
    assert ax.get_xlim() == ax.get_ylim() == tuple(ax.lines[0].get_xdata())  # the diagonal
    assert ax.get_xscale() == ("linear" if measure == "max_probability" else "log")
    assert ax.get_xlabel().startswith("teacher: ") and ax.get_ylabel().startswith("student: ")
    ax.figure.savefig(BytesIO(), format="png")


def test_fidelity_scatter_of_less_than_a_power_of_ten_is_linear(ax):
    """There a scale by powers writes all its smaller ticks out, one over the other."""

    def narrow(x: Tensor) -> Dirichlet:
        return Dirichlet(2 + x.sigmoid())

    def teacher(x: Tensor, num_draws: int) -> Tensor:
        return narrow(x).sample((num_draws,))

    plots.fidelity_scatter(narrow, teacher, torch.randn(5, 3), seed=0, ax=ax)
    assert ax.get_xscale() == ax.get_yscale() == "linear"


def test_fidelity_scatter_of_a_student_that_knows_no_spread(ax):
    """All zeros: drawn at the floor, and nothing to rank."""

    def point(x: Tensor) -> Empirical:
        return Empirical(torch.zeros(1, len(x), 3).log_softmax(-1))

    plots.fidelity_scatter(point, held_teacher, torch.randn(5, 2), ax=ax)
    np.testing.assert_array_equal(ax.collections[1].get_offsets()[:, 1], np.full(5, 1e-6))
    assert ax.get_title() == "rank correlation nan (N = 5)"
    ax.figure.savefig(BytesIO(), format="png")


def test_fidelity_scatter_of_fresh_draws_is_reproducible_and_leaves_the_generator():
    def teacher(x: Tensor, num_draws: int) -> Tensor:
        return student(x).sample((num_draws,))

    x, state = torch.randn(6, 2), torch.get_rng_state()
    first, second = (
        plots.fidelity_scatter(student, teacher, x, num_draws=10, seed=3, ax=Figure().subplots())
        for _ in range(2)
    )
    np.testing.assert_array_equal(*(ax.collections[1].get_offsets() for ax in (first, second)))
    assert torch.equal(state, torch.get_rng_state())
    again = plots.fidelity_scatter(teacher, teacher, x, seed=3, ax=Figure().subplots())
    asked = again.collections[1].get_offsets()
    assert (asked[:, 0] != asked[:, 1]).all()  # asked a second time, the teacher draws afresh


@pytest.mark.parametrize("labelled", [True, False])
def test_a_page_has_words_and_charts(labelled):
    x = torch.randn(40, 2)
    settings = {"num_steps": 10, "seed": 0, "progress": False}
    fast = pyro_opu.distill(held_teacher, x, **settings)
    y = fast.dirichlet(x).mean.argmax(-1) if labelled else None
    figure = plots.report(fast, held_teacher, x, y, seed=0)
    words, charts = figure.subfigs
    shown = " ".join(text.get_text() for text in words.texts)
    assert "x attainable held out" in shown and "coverage, central 90 %" in shown
    titles = [ax.get_xlabel() for ax in charts.axes if ax.axison]
    assert any("mutual information" in title for title in titles)
    assert any("confidence" in title for title in titles) == labelled
    figure.savefig(BytesIO(), format="png")
    pyplot.close(figure)


# What all have in common

X, Y = torch.zeros(4, 2), torch.tensor([0, 1, 2, 0])
PROBS = torch.full((4, 3), 1 / 3)
WRONG = torch.tensor([True, False, False, True])
HISTORY = {"history": [record("start", 0, 1.0), record("warm start", 5, 0.5, moments=1.0)]}
BOUNDS = ((0, 1), (0, 1))
CALLS = {
    "simplex": lambda **on: plots.simplex(Dirichlet(torch.ones(3)), PROBS, **on),
    "decision_map": lambda **on: plots.decision_map(student, BOUNDS, resolution=4, **on),
    "reliability": lambda **on: plots.reliability(PROBS, Y, **on),
    "risk_coverage": lambda **on: plots.risk_coverage({"a": torch.rand(4)}, WRONG, **on),
    "concentration_histograms": lambda **on: plots.concentration_histograms(
        {"a": student(X)}, **on
    ),
    "fidelity_scatter": lambda **on: plots.fidelity_scatter(
        student, held_teacher, torch.randn(4, 2), **on
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_axes_in_axes_out(ax, name):
    settings = dict(pyplot.rcParams)
    assert CALLS[name](ax=ax) is ax
    assert name == "simplex" or (ax.get_xlabel() and ax.get_ylabel())
    assert dict(pyplot.rcParams) == settings
    ax.figure.savefig(BytesIO(), format="png")


@pytest.mark.parametrize("name", CALLS)
def test_without_axes_one_new_figure(agg, name):
    found = CALLS[name]()
    assert [pyplot.figure(number) for number in pyplot.get_fignums()] == [found.figure]


def test_public_names_are_tested():
    figures = {"decision_maps", "report", "three_classes", "training_curves", "use_style"}
    assert set(plots.__all__) == {*CALLS, *figures}


def test_style_is_pyplots_and_can_be_undone():
    with pyplot.rc_context():
        plots.use_style()
        assert pyplot.figure().dpi >= 120
        assert pyplot.rcParams["axes.prop_cycle"].by_key()["color"] == list(SERIES)
        pyplot.close()


def draw_simplex(**given):
    return lambda: plots.simplex(**given)


def draw_map(*args, **given):
    return lambda: plots.decision_map(*args, **given)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (draw_simplex(), ValueError, "`distribution` or `draws` must be given"),
        (draw_simplex(distribution=PROBS), TypeError, "`distribution` must be a Dirichlet .* Tens"),
        (draw_simplex(distribution=student(X)), ValueError, r"of one input, .* got \(4,\)"),
        (draw_simplex(distribution=Dirichlet(torch.ones(5))), ValueError, "got 5. Pick three"),
        (
            draw_simplex(distribution=Empirical(torch.zeros(2, 1, 3).log_softmax(-1))),
            ValueError,
            "must have a density; Empirical has none",
        ),
        (draw_simplex(draws=[0.2, 0.3, 0.5]), TypeError, "`draws` must be a torch.Tensor"),
        (draw_simplex(draws=torch.rand(3, 4)), ValueError, r"shape \(S, 3\).* got \(3, 4\)"),
        (draw_simplex(draws=torch.rand(5, 2, 3)), ValueError, r"shape \(S, 3\).* got \(5, 2, 3\)"),
        (draw_simplex(draws=torch.ones(5, 3)), ValueError, "sum to 1; got a smallest"),
        (draw_simplex(draws=PROBS, labels="ab"), ValueError, "`labels` must name the 3 classes"),
        (draw_simplex(draws=PROBS, zoom=0.5), ValueError, "`zoom` must be 'auto'.* got 0.5"),
        (draw_simplex(draws=PROBS, zoom="in"), ValueError, "`zoom` must be 'auto'.* got 'in'"),
        (draw_simplex(draws=PROBS, zoom=True), ValueError, "`zoom` must be 'auto'.* got True"),
        (draw_simplex(draws=PROBS, ax="axes"), TypeError, "`ax` must be a matplotlib Axes .* str"),
        (lambda: plots.three_classes([1.0], [0, 1, 2]), TypeError, "`source` must be a Dirichlet"),
        (lambda: plots.three_classes(PROBS, [0, 1, 1]), ValueError, r"0 to 2; got \[0, 1, 1\]"),
        (lambda: plots.three_classes(PROBS, [0, 1, 3]), ValueError, r"0 to 2; got \[0, 1, 3\]"),
        (
            lambda: plots.three_classes(torch.tensor([[0, 0, 0, 1.0]]), [0, 1, 2]),
            ValueError,
            "none at 1 of 1",
        ),
        (draw_map(student, ((1, 0), (0, 1))), ValueError, "`bounds` must be .* left < right"),
        (draw_map(student, (0, 1)), ValueError, "`bounds` must be"),
        (draw_map(student, "ab"), ValueError, "`bounds` must be .* got 'ab'"),
        (draw_map(student, BOUNDS, resolution=1), ValueError, "at least 2; got 1"),
        (draw_map(student, BOUNDS, measure="size"), ValueError, "`measure` must be .* got 'size'"),
        (draw_map(student, BOUNDS, vmin=2.0), ValueError, "`vmin` must be less than `vmax`"),
        (draw_map(student, BOUNDS, vmax=float("nan")), ValueError, "both finite.* got 0 and nan"),
        (lambda: plots.decision_maps(student, BOUNDS), TypeError, "`sources` must be a dict"),
        (lambda: plots.decision_maps({}, BOUNDS), ValueError, "`sources` must hold at least one"),
        (
            lambda: plots.decision_maps({"a": student}, BOUNDS, columns=0),
            ValueError,
            "`columns` must be a positive integer; got 0",
        ),
        (draw_map(student, BOUNDS, y=Y), ValueError, "`y` needs `x`"),
        (draw_map(student, BOUNDS, x=torch.zeros(4, 3)), ValueError, r"\(N, 2\).* got \(4, 3\)"),
        (draw_map(student, BOUNDS, x=X, y=Y[:2]), ValueError, "one label per row of `x`, 4; got 2"),
        (draw_map(student, BOUNDS, x=X, y=Y + 1), ValueError, "labels from 1 to 3"),
        (
            draw_map(lambda x: Dirichlet(torch.ones(len(x), 8)), BOUNDS),
            ValueError,
            "at most 7 classes.* got 8",
        ),
        (
            draw_map(
                lambda x: Empirical(torch.zeros(1, len(x), 3).log_softmax(-1)),
                BOUNDS,
                measure="concentration",
            ),
            ValueError,
            "'concentration' is not at 10000 of 10000",
        ),
        (lambda: plots.reliability(PROBS, Y, bins=0), ValueError, "`bins` must be a positive"),
        (lambda: plots.reliability(PROBS[None], Y), ValueError, r"\(N, C\); got \(1, 4, 3\)"),
        (lambda: plots.reliability({"a": 3}, Y), TypeError, r"`probs\['a'\]` .* got int"),
        (lambda: plots.reliability({}, Y), ValueError, "must hold 1 to 7 entries.* got 0"),
        (lambda: plots.reliability(PROBS, Y.float()), TypeError, "tensor of integer labels"),
        (lambda: plots.risk_coverage(X[:, 0], WRONG), TypeError, "must be a dict .* got Tensor"),
        (lambda: plots.risk_coverage({"a": X[:, 0]}, Y), TypeError, "`wrong` must be boolean"),
        (lambda: plots.risk_coverage({"a": X[:3, 0]}, WRONG), ValueError, r"4 inputs.*\(3,\)"),
        (lambda: plots.risk_coverage({"a": X[:, 0] / 0}, WRONG), ValueError, "with NaN"),
        (lambda: plots.risk_coverage({"a": X[:0, 0]}, WRONG[:0]), ValueError, "N >= 1"),
        (
            lambda: plots.risk_coverage({"a": X[:, 0]}, {"b": WRONG}),
            ValueError,
            r"names of the scores, \['a'\]; got \['b'\]",
        ),
        (
            lambda: plots.concentration_histograms({"a": held_teacher}),
            TypeError,
            r"`answers\['a'\]` must be .* got function",
        ),
        (
            lambda: plots.concentration_histograms({"a": student(X)}, bins=2.5),
            ValueError,
            "`bins` must be a positive integer; got 2.5",
        ),
        (
            lambda: plots.concentration_histograms({str(k): student(X) for k in range(8)}),
            ValueError,
            "1 to 7 entries.* got 8",
        ),
        (lambda: plots.training_curves(3), TypeError, "`report` must be .* got int"),
        (lambda: plots.training_curves({"seed": 0}), ValueError, "'history' of evaluations"),
        (lambda: plots.training_curves(HISTORY, axes=[1]), ValueError, "two axes.* got 1"),
        (
            lambda: plots.fidelity_scatter(student, held_teacher, X[:1]),
            ValueError,
            "at least 2 inputs",
        ),
        (
            lambda: plots.fidelity_scatter(student, held_teacher, X, measure="mi"),
            ValueError,
            "`measure` must be one of",
        ),
    ],
)
def test_failures(call, error, message):
    before = pyplot.get_fignums()
    with pytest.raises(error, match=message):
        call()
    assert pyplot.get_fignums() == before  # checked before anything is drawn


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "pyro_opu\[plots\]"'):
        plots.reliability(PROBS, Y)
    with pytest.raises(ImportError, match=r'pip install "pyro_opu\[plots\]"'):
        plots.training_curves(HISTORY)


def test_import_leaves_matplotlib_alone():
    code = (
        "import sys, pyro_opu; print('pyro_opu.plots' in sys.modules); "
        "from pyro_opu import plots; print('matplotlib' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]
