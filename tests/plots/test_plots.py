"""Plots: what the artists hold against known answers and slow loops, and what is left alone."""

from __future__ import annotations

import sys
from io import BytesIO

import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.figure import Figure
from plotted import held_teacher, labels, record, student
from scipy.stats import spearmanr
from torch import Tensor
from torch.distributions import Dirichlet

import pyro_opu
from pyro_opu import plots
from pyro_opu.distributions import DirichletMixture, Empirical
from pyro_opu.plots.colours import SERIES

pytestmark = pytest.mark.usefixtures("brief")

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
    figures = {"decision_maps", "three_classes", "training_curves", "use_style"}
    assert set(plots.__all__) == {*CALLS, *figures}


def test_style_is_pyplots_and_can_be_undone():
    with pyplot.rc_context():
        plots.use_style()
        assert pyplot.figure().dpi >= 120
        assert pyplot.rcParams["axes.prop_cycle"].by_key()["color"] == list(SERIES)
        pyplot.close()


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "pyro_opu\[plots\]"'):
        plots.reliability(PROBS, Y)
    with pytest.raises(ImportError, match=r'pip install "pyro_opu\[plots\]"'):
        plots.training_curves(HISTORY)
