"""The enlarged part of the simplex: which part, where it is drawn, and what is in it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.distributions import Dirichlet

from pyro_opu import PredictiveDirichlet, plots
from pyro_opu.plots.triangle import SHARES
from pyro_opu.plots.zoom import CORNERS, SIDE, SMALL, WHOLE, window
from pyro_opu.rng import seeded


@pytest.fixture
def ax():
    return Figure(figsize=(5.0, 4.2), layout="constrained").subplots()


def drawn(alpha: list[float], count: int = 2000) -> Tensor:
    return Dirichlet(torch.tensor(alpha).double()).sample((count,))


SURE = [[500.0, 0.3, 0.2], [0.5, 1.0, 3000.0], [3.0, 9e4, 1.0], [1e6, 9e5, 2.0], [4e4, 4e4, 4e4]]


@pytest.mark.parametrize("alpha", SURE, ids=str)
def test_a_window_holds_the_points_and_no_more_than_need_be(alpha):
    points = drawn(alpha)
    found = window(points)
    assert float(found.floor.min()) >= 0
    assert float(found.floor.sum()) + found.width == pytest.approx(1, abs=1e-12)  # rounding
    assert len(found.inside(points)) >= 0.95 * len(points)
    # The narrowest of the widths 1, 2, 5, 10: half as wide, it would not hold 95 % anywhere near.
    far = (points.median(0).values - points).amax(-1).sort().values[: int(0.95 * len(points))]
    assert found.width <= 2.5 * 3 * float(far.max())


def test_a_window_holds_each_of_several_sets_however_large():
    few, many = drawn([30.0, 1.0, 1.0], 100), drawn([3e4, 1.0, 1.0], 4000)
    found = window(few, many)
    assert found is not None and len(found.inside(few)) >= 95
    assert window(many).width < found.width / 50


@pytest.mark.parametrize("alpha", SURE, ids=str)
def test_an_enlarged_triangle_is_in_the_whole_one_and_not_on_what_it_shows(alpha):
    found = window(drawn(alpha))
    place = torch.maximum(found.place, found.floor).sum()
    assert place >= 1  # no point in common
    assert found.place.min() >= 0 and found.place.sum() == pytest.approx(1 - SIDE)
    corners = found.corners().numpy()
    sides = np.linalg.norm(corners - np.roll(corners, 1, axis=0), axis=1)
    np.testing.assert_allclose(sides, SIDE, rtol=1e-9)  # rounding
    real = found.corners(drawn=False).numpy()
    sides = np.linalg.norm(real - np.roll(real, 1, axis=0), axis=1)
    np.testing.assert_allclose(sides, found.width, rtol=1e-6)  # rounding of 1e-5 in 1
    assert found.times == pytest.approx(SIDE / found.width)


def test_points_all_over_are_not_enlarged():
    assert window(drawn([2.0, 1.0, 1.0])) is None
    assert window(drawn([500.0, 0.3, 0.2]), zoom=None) is None


@pytest.mark.parametrize("extent", [0.19, 0.21])
def test_what_is_enlarged_is_at_most_a_fifth_of_a_side(extent):
    points = torch.tensor([[1 - extent, extent, 0.0], [1.0, 0.0, 0.0]]).repeat(50, 1)
    found = window(points)
    assert (found is not None) == (extent <= SMALL)


def test_one_answer_for_all_draws_is_shown_at_the_narrowest_window():
    found = window(torch.tensor([[0.25, 0.25, 0.5]]).repeat(9, 1))
    assert found.width == pytest.approx(1e-5) and len(found.inside(torch.eye(3))) == 0


def test_a_window_too_narrow_for_all_draws_is_where_most_are():
    """Nearly all at a corner and a few far from it: enlarged as much as a surer answer's are."""
    points = torch.cat([drawn([1e6, 1.0, 1.0], 490), drawn([30.0, 1.0, 1.0], 10)])
    found = window(points, zoom=5000.0)
    assert len(found.inside(points)) >= 490
    assert found.floor.tolist() == pytest.approx([1 - 1e-4, 0, 0], abs=2e-6)  # draws at 1e-6


def test_a_number_of_times_is_kept(ax):
    points = drawn([9.0, 7.0, 6.0])
    assert window(points, zoom=10.0).times == pytest.approx(10)
    plots.simplex(draws=points.float(), zoom=10, ax=ax)
    assert ax.texts[-1].get_text().startswith("inner triangle: 10 times as large")


def test_a_teacher_at_999_can_be_seen(ax):
    """A thousandth from the corner: its draws take no pixel of the whole triangle, but a wide part
    of the enlarged one."""
    points = drawn([3000.0, 2.0, 1.0], 300).float()
    plots.simplex(draws=points, labels=["cat", "dog", "cow"], ax=ax)
    whole, _, inner, mean = (c.get_offsets() for c in ax.collections)
    assert np.ptp(whole, axis=0).max() < 0.01 and len(whole) == 300
    assert np.ptp(inner, axis=0).min() > 0.1  # of 0.5
    found = window(points)
    assert len(inner) >= 285
    np.testing.assert_allclose(inner, found.places(found.inside(points)))
    np.testing.assert_allclose(mean, found.places(points.double().mean(0)[None]), atol=1e-12)
    words = ax.texts[-1].get_text()
    assert (
        words == f"inner triangle: {found.times:g} times as large,\ncat above {1 - found.width:g}"
    )


def test_without_zoom_there_is_the_whole_triangle_alone(ax):
    plots.simplex(draws=drawn([3000.0, 2.0, 1.0], 300), zoom=None, ax=ax)
    assert len(ax.collections) == 2 and len(ax.patches) == 1 and len(ax.texts) == 3


def test_regions_of_the_enlarged_part_hold_the_shares_they_say(ax):
    answer = PredictiveDirichlet.from_alpha(torch.tensor([4000.0, 9.0, 6.0]))
    plots.simplex(answer, ax=ax)
    outlines = ax.collections[4].get_paths()  # regions, outlines, mean; the same enlarged
    fresh = Dirichlet(answer.concentration.double()).sample((20_000,))
    with seeded(0):
        own = answer.sample((4000,))
    found = window(own)
    places = found.places(fresh)
    shares = [path.contains_points(places).mean() for path in outlines]
    # 0.03: the thresholds come from 4,000 draws (deviation at most 0.008); the outer region may be
    # cut by the window, beyond which a few of a hundred draws lie.
    np.testing.assert_allclose(shares, SHARES, atol=0.03)


def test_words_and_legends_leave_each_other_alone(ax):
    answer = PredictiveDirichlet.from_alpha(torch.tensor([4000.0, 9.0, 6.0]))
    plots.simplex(answer, drawn([4000.0, 9.0, 6.0], 50), labels=["T-shirt", "bag", "boot"], ax=ax)
    ax.figure.draw_without_rendering()
    words = [text.get_window_extent() for text in ax.texts]
    boxes = [child.get_window_extent() for child in ax.get_children() if hasattr(child, "texts")]
    every = words + boxes
    assert len(words) == 4 and len(boxes) == 2
    pairs = [(i, j) for i in range(6) for j in range(i) if every[i].overlaps(every[j])]
    assert not pairs


def test_the_whole_is_a_window_too():
    points = drawn([1.0, 2.0, 3.0], 9)
    expected = points @ torch.tensor(CORNERS, dtype=torch.float64)
    torch.testing.assert_close(WHOLE.places(points), expected)
    assert len(WHOLE.inside(points)) == 9 and WHOLE.times == 1
