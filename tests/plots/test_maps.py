"""Decision maps: hue for the classes, darkness for the measure, one scale for several."""

from __future__ import annotations

import itertools

import numpy as np
import pyro
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from plotted import held_teacher, labels, student
from pyro.infer import Predictive
from torch import Tensor
from torch.distributions import Dirichlet

import pyro_opu
from pyro_opu import plots
from pyro_opu.plots.colours import CHROMA, DARK, HUES, LIGHT, SERIES, map_colours

#: Linear sRGB to the cone responses of Oklab, and their cube roots to Oklab (Ottosson, 2020).
CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
OKLAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def oklab(colours: np.ndarray) -> np.ndarray:
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    return np.cbrt(linear @ CONES.T) @ OKLAB.T


def shades(ax, vmin: float, vmax: float) -> np.ndarray:
    """The measure, read from the lightness of the picture."""
    lightness = oklab(np.asarray(ax.images[0].get_array()))[..., 0]
    return vmin + (vmax - vmin) * (LIGHT - lightness) / (LIGHT - DARK)


def test_lightness_is_the_measure_and_hue_the_classes():
    """Neither changes with the other, for every number of classes."""
    for classes in range(2, 8):
        probs = Dirichlet(torch.full((classes,), 0.3).double()).sample((200,)).numpy()
        probs = np.concatenate([np.eye(classes), probs])
        shade = np.random.default_rng(0).random(len(probs))
        shade[:2] = 0, 1
        colours = map_colours(probs, shade)
        assert 0 <= colours.min() and colours.max() <= 1
        found = oklab(colours)
        # 2e-6: the published matrices and their inverses agree to seven digits.
        np.testing.assert_allclose(found[:, 0], LIGHT - (LIGHT - DARK) * shade, atol=2e-6)
        angles = np.deg2rad(HUES[:classes])
        plane = CHROMA * probs @ np.stack([np.cos(angles), np.sin(angles)], -1)
        scaled = found[:, 1:] * LIGHT / found[:, :1]
        np.testing.assert_allclose(scaled, plane, atol=1e-5)  # the same, divided by 0.28 at least


def test_hues_of_the_classes_can_be_told_apart():
    gaps = [abs((one - two + 180) % 360 - 180) for one, two in itertools.combinations(HUES, 2)]
    assert len(HUES) == len(SERIES) and min(gaps) >= 30
    for hue, colour in zip(HUES, SERIES, strict=True):  # near those of dots and legend
        _, a, b = oklab(np.array(to_rgb(colour)))
        assert abs((np.degrees(np.arctan2(b, a)) - hue + 180) % 360 - 180) <= 32


def test_decision_map_paints_what_the_student_says(ax):
    plots.decision_map(student, ((-2, 2), (0, 3)), resolution=5, vmax=1.0, ax=ax)
    across = torch.tensor([-1.6, -0.8, 0.0, 0.8, 1.6])
    up = torch.tensor([0.3, 0.9, 1.5, 2.1, 2.7])
    (image,) = ax.images
    shade = shades(ax, 0.0, 1.0)
    for row, column in itertools.product(range(5), range(5)):
        answer = student(torch.stack([across[column], up[row]])[None])
        expected = pyro_opu.mutual_information(answer)
        assert shade[row, column] == pytest.approx(expected.item(), abs=1e-5)  # float32, matrices
        colour = map_colours(answer.mean.double().numpy(), expected.double().numpy())[0]
        np.testing.assert_allclose(image.get_array()[row, column], colour, atol=1e-6)  # float32
    assert image.get_extent() == [-2, 2, 0, 3] and image.origin == "lower"


def test_decision_map_draws_the_border_the_data_and_the_measure(ax):
    x, y = torch.tensor([[0.5, -0.5], [-0.5, 0.5]]), torch.tensor([0, 1])

    def two(x: Tensor) -> Dirichlet:
        return Dirichlet(x.exp())

    plots.decision_map(
        two, ((-1, 1), (-1, 1)), x=x, y=y, measure="concentration", resolution=8, ax=ax
    )
    border, data = ax.collections
    line = border.get_paths()[0].vertices
    np.testing.assert_allclose(line[:, 0], line[:, 1], atol=1e-6)  # float32: x_1 = x_2
    np.testing.assert_allclose(data.get_offsets(), x)
    np.testing.assert_allclose(data.get_facecolors()[:, :3], [to_rgb(c) for c in SERIES[:2]])
    bar = ax.figure.axes[1]
    assert bar.get_ylabel() == r"$-\log\,\alpha_0$ (concentration)"
    corner = torch.full((2,), 0.875).exp().sum().log()  # the most certain cell
    assert bar.get_ylim()[0] == pytest.approx(-float(corner), rel=1e-5)  # float32
    assert labels(ax.get_legend()) == ["class 0", "class 1"]


def test_the_colour_bar_is_the_darkness_of_the_map(ax):
    plots.decision_map(student, ((-2, 2), (0, 3)), resolution=5, vmin=0.1, vmax=0.2, ax=ax)
    bar = ax.figure.axes[1]
    assert bar.get_ylim() == (0.1, 0.2)
    scale = bar._colorbar.mappable
    for value, lightness in ((0.0, LIGHT), (0.1, LIGHT), (0.2, DARK), (0.9, DARK)):
        found = oklab(np.array(scale.to_rgba(value)[:3]))
        np.testing.assert_allclose(found, [lightness, 0, 0], atol=2e-6)  # the matrices' digits
    assert 0.1 <= shades(ax, 0.1, 0.2).min() + 1e-5  # clipped to the range


def test_colour_bar_and_legend_can_be_left_out(ax):
    plots.decision_map(
        student, ((-1, 1), (-1, 1)), resolution=3, colorbar=False, legend=False, ax=ax
    )
    assert ax.figure.axes == [ax] and ax.get_legend() is None


def test_the_legend_covers_no_input():
    figure = Figure(figsize=(5.6, 4.6), layout="constrained")
    ax = figure.subplots()
    plots.decision_map(student, ((-1, 1), (-1, 1)), resolution=3, ax=ax)
    figure.draw_without_rendering()
    legend = ax.get_legend().get_window_extent()
    assert not legend.overlaps(ax.get_window_extent())
    assert not legend.overlaps(ax.xaxis.label.get_window_extent())
    assert figure.bbox.y0 <= legend.y0


def test_decision_map_of_a_teacher(ax):
    x = torch.zeros(1, 2, dtype=torch.float64)
    settings = {"resolution": 3, "vmax": 1.0, "ax": ax}
    plots.decision_map(held_teacher, ((-1, 1), (-1, 1)), x=x.float(), **settings)
    middle = pyro_opu.mutual_information(held_teacher(x)).item()
    # 1e-5: float32 at the centre of the map, which is the input 0, and the matrices' digits.
    assert shades(ax, 0.0, 1.0)[1, 1] == pytest.approx(middle, abs=1e-5)


def drawn_by_a_function(x: Tensor, num_draws: int) -> Tensor:
    return torch.randn(num_draws, 1, 3).softmax(-1).expand(-1, len(x), -1)


def drawn_by_a_guide() -> Predictive:
    def guide(x: Tensor, y: Tensor | None = None) -> None:
        pyro.sample("w", pyro.distributions.Normal(torch.zeros(3), 1.0).to_event(1))

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", pyro.distributions.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            logits = w + 0 * x[:, :1]
            return pyro.sample("obs", pyro.distributions.Categorical(logits=logits), obs=y)

    return Predictive(model, guide=guide, num_samples=9)


class DrawnByDropout(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(torch.ones(len(x), 3), 0.5)


@pytest.mark.parametrize("kind", ["function", "guide", "dropout"])
def test_decision_map_has_one_set_of_draws(ax, kind):
    """A posterior that says the same everywhere, but is drawn afresh: one colour, no seam."""
    teachers = {"function": drawn_by_a_function, "dropout": DrawnByDropout()}
    teacher = drawn_by_a_guide() if kind == "guide" else teachers[kind]
    plots.decision_map(teacher, ((-1, 1), (-1, 1)), resolution=40, num_draws=9, seed=0, ax=ax)
    for image in ax.images:
        painted = image.get_array()
        # 1e-6: float32 sums over draws in blocks of several sizes.
        expected = np.broadcast_to(painted[0, 0], painted.shape)
        np.testing.assert_allclose(painted, expected, atol=1e-6)


# Several maps


def test_maps_have_one_scale_one_bar_and_one_legend(agg):
    def sure(x: Tensor) -> Dirichlet:
        return Dirichlet(50 * student(x).concentration)

    sources = {"a": student, "b": sure, "c": held_teacher}
    figure = plots.decision_maps(sources, ((-1, 1), (-1, 1)), resolution=5, columns=2)
    figure.draw_without_rendering()
    panels = [ax for ax in figure.axes if ax.images]
    (bar,) = [ax for ax in figure.axes if ax.get_ylabel().startswith("mutual")]
    assert [panel.get_title() for panel in panels] == ["a", "b", "c"]
    assert [panel.get_legend() for panel in panels] == [None] * 3
    (legend,) = figure.legends
    assert labels(legend) == ["class 0", "class 1", "class 2"]
    low, high = bar.get_ylim()
    grid = torch.cartesian_prod(*[torch.linspace(-0.8, 0.8, 5)] * 2).flip(-1)
    largest = 0.0
    for panel, source in zip(panels, sources.values(), strict=True):
        expected = pyro_opu.mutual_information(source(grid)).reshape(5, 5).numpy()
        largest = max(largest, float(expected.max()))
        np.testing.assert_allclose(shades(panel, low, high), expected, atol=2e-5)  # float32
    assert low == 0.0 and high == pytest.approx(largest, rel=1e-5)  # float32
    extents = [panel.get_window_extent() for panel in panels]
    assert not any(legend.get_window_extent().overlaps(extent) for extent in extents)


def test_maps_ask_every_teacher_for_the_same_draws(agg):
    sources = {"once": drawn_by_a_function, "again": drawn_by_a_function}
    figure = plots.decision_maps(sources, ((-1, 1), (-1, 1)), resolution=3, num_draws=9)
    one, two = (ax.images[0].get_array() for ax in figure.axes if ax.images)
    np.testing.assert_array_equal(one, two)
