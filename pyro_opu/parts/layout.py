"""How one site of a student's answer is laid out, as in ``Predictive``."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["SiteLayout"]


@dataclass(frozen=True)
class SiteLayout:
    """One site of the answer.

    Attributes:
        name: The site's name.
        kind: "label" (class indices), "onehot", "probs" (draws of class probabilities) or "prob1"
            (draws of the second class's probability); "value" (of y) or "mean" (draws of its mean).
        dtype: Name of the torch dtype, such as "int64".
        shape: Shape after the S axis, -1 where N stands.
        of: The observed site that it is, or whose parameters it shows, in a table.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    of: str = ""

    @classmethod
    def from_config(
        cls, config: dict[str, Any], kinds: Collection[str], sizes_of: dict[str, tuple[int, int]]
    ) -> SiteLayout:
        """The layout that ``dataclasses.asdict`` gave.

        ``sizes_of`` has the width of each observed site, and its numbers per row; "" is the only
        one.
        """
        layout = cls(**{**config, "shape": tuple(config["shape"])})
        texts = (layout.name, layout.kind, layout.dtype, layout.of)
        if not all(type(each) is str for each in texts):
            raise TypeError(f"a site is {config!r:.80}")
        num_classes, columns = sizes_of[layout.of]
        numbers = columns * (num_classes if layout.kind in ("onehot", "probs") else 1)
        sizes = all(type(size) is int and (size > 0 or size == -1) for size in layout.shape)
        if (
            layout.kind not in kinds
            or not isinstance(getattr(torch, layout.dtype, None), torch.dtype)
            or not sizes
            or (layout.shape.count(-1), math.prod(layout.shape)) != (1, -numbers)
        ):
            raise ValueError(f"a site is {config!r:.80}")
        return layout

    @property
    def shows_parameters(self) -> bool:
        """Whether the site shows the draws of class probabilities, or of means, themselves."""
        return self.kind in ("probs", "prob1", "mean")

    def fill(self, values: Tensor) -> Tensor:
        """Lay out draws ``(S, N)``, or ``(S, N, C)``, as this site."""
        rows = self.shape.index(-1)
        first = values.shape[:2] + self.shape[:rows] + self.shape[rows + 1 :]
        return values.to(getattr(torch, self.dtype)).reshape(first).movedim(1, 1 + rows)
