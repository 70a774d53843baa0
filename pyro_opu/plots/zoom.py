"""Windows on the simplex of three classes: the whole triangle, and a small one enlarged."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

#: Corners of the classes 0, 1 and 2: left, right, top; sides of length 1.
CORNERS = ((0.0, 0.0), (1.0, 0.0), (0.5, math.sqrt(3) / 2))
#: Side of the enlarged triangle.
SIDE = 0.5
#: Points that take less of a side than this are enlarged.
SMALL = 0.2
#: The narrowest window; float32 tells a few hundred points of its side apart.
_NARROWEST = 1e-5
#: Share of each set of points that a window holds, as the outer region of a density does.
_HELD = 0.95


class Window(NamedTuple):
    r"""A part of the simplex, :math:`\pi_k \ge a_k`, which is a triangle, and where it is drawn.

    Attributes:
        floor: The bounds :math:`a`, ``(3,)``, float64.
        width: Its side, :math:`1 - \sum_k a_k` of the whole triangle's.
        place: The least probabilities ``(3,)`` of the triangle that it is drawn as.
        side: The side of that one.
    """

    floor: Tensor
    width: float
    place: Tensor
    side: float

    @property
    def times(self) -> float:
        """How many times as large it is drawn."""
        return self.side / self.width

    def places(self, points: Tensor) -> Tensor:
        """Places ``(M, 2)`` in the plane of points ``(M, 3)`` of the simplex."""
        shares = (points.detach().double().cpu() - self.floor) / self.width
        return (self.place + self.side * shares) @ torch.tensor(CORNERS, dtype=torch.float64)

    def inside(self, points: Tensor) -> Tensor:
        """The points that it shows."""
        slack = 1e-6 * self.width
        return points[(points.detach().double().cpu() >= self.floor - slack).all(-1)]

    def corners(self, drawn: bool = True) -> Tensor:
        """Its corners ``(3, 2)`` in the plane, as drawn or where they really are."""
        vertices = self.floor + self.width * torch.eye(3, dtype=torch.float64)
        return self.places(vertices) if drawn else WHOLE.places(vertices)


WHOLE = Window(torch.zeros(3, dtype=torch.float64), 1.0, torch.zeros(3, dtype=torch.float64), 1.0)


def checked_zoom(zoom: Any) -> float | Literal["auto"] | None:
    """A name, a number of times, or None."""
    if zoom is None or zoom == "auto":
        return zoom
    if isinstance(zoom, bool) or not isinstance(zoom, (int, float)) or not 1 <= zoom <= 5e4:
        raise ValueError(
            "`zoom` must be 'auto', None, or how many times as large to draw, from 1 to 50,000; "
            f"got {zoom!r}."
        )
    return float(zoom)


def window(*parts: Tensor, zoom: float | Literal["auto"] | None = "auto") -> Window | None:
    """The window on sets of points, ``(M, 3)`` each, that is drawn enlarged; None without one.

    For "auto" its side is the least of 1, 2 or 5 times a power of ten in which 95 % of each set
    have room, those that are nearest to its median; there is none if they take more than a fifth
    of the whole triangle's. A number of times fixes the side instead.
    """
    if zoom is None:
        return None
    points = [part.detach().double().cpu() for part in parts]
    middle = points[0].median(0).values  # a mean would follow a few draws far away
    middle = middle / middle.sum()
    low = torch.stack([_lowest(each) for each in points]).amin(0)
    extent = max(1 - float(low.sum()), 1e-9)
    width = _round_up(extent) if zoom == "auto" else SIDE / zoom
    if zoom == "auto" and width > SMALL:
        return None
    reach = (middle - low).clamp_min(1e-12)
    if width < extent:  # too narrow for all: some room on each side of the middle
        reach = reach.clamp_min(0.2 * float(reach.max()))
    floor = _within(middle - width * reach / reach.sum(), width)
    likeliest = int(low.argmax())
    if low[likeliest] >= 1 - width:  # the corner itself has room for all
        floor = (1 - width) * torch.eye(3, dtype=torch.float64)[likeliest]
    return Window(floor, width, _free_place(floor), SIDE)


def _lowest(points: Tensor) -> Tensor:
    """The least probability of each class among the points nearest to the median, ``(3,)``."""
    far = (points.median(0).values - points).amax(-1)
    return points[far <= far.quantile(_HELD, interpolation="higher")].amin(0)


def _round_up(extent: float) -> float:
    least = max(extent, _NARROWEST) * (1 - 1e-9)
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least)


def _within(floor: Tensor, width: float) -> Tensor:
    """The floor moved into the simplex: none below 0, all together one less the width."""
    floor = floor.clamp_min(0.0)
    while (excess := float(floor.sum()) - (1 - width)) > 1e-15:
        largest = int(floor.argmax())
        floor[largest] -= min(excess, float(floor[largest]))
    return floor


def _free_place(floor: Tensor) -> Tensor:
    """The middle of the triangle, or the corner of a class, where the window does not lie."""
    middle = torch.full((3,), (1 - SIDE) / 3, dtype=torch.float64)
    corners = (1 - SIDE) * torch.eye(3, dtype=torch.float64)[floor.argsort()]
    for place in (middle, *corners):
        # Two such triangles have no point in common if the larger bounds sum to 1 or more.
        if torch.maximum(place, floor).sum() >= 1:
            return place
    return corners[0]
