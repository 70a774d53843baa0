"""The simplex: corners, draws, means and regions that hold the shares they say."""

from __future__ import annotations

import itertools
from io import BytesIO

import numpy as np
import pytest
import torch
from plotted import labels
from torch import Tensor
from torch.distributions import Dirichlet

from pyro_opu import PredictiveDirichlet, plots
from pyro_opu.distributions import DirichletMixture, LogisticNormal
from pyro_opu.plots.triangle import CORNERS, SHARES


def in_plane(points: Tensor) -> np.ndarray:
    return (points.double() @ torch.tensor(CORNERS, dtype=torch.float64)).numpy()


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
