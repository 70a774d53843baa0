"""Transfer inputs of token ids that are filled up to one length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_opu.transfer.policy import TransferPolicy

__all__ = ["Spans", "padding"]


@dataclass(frozen=True)
class Spans(TransferPolicy):
    """Rows of token ids, each with a span of another row in the place of its own.

    Padding and the id that ends a text stay where they are, and so does what stands at one place
    in all rows: a span holds what both rows have between these. Ids, masks and segments of a row
    take the span of one other row, so that they still belong together.

    Args:
        lengths: Columns of each tensor of ids, side by side in x.
    """

    lengths: Sequence[int] = ()

    @property
    def made(self) -> str:
        return "spans of other rows"

    def _statistics(self, x: Tensor) -> dict[str, Tensor]:
        parts = enumerate(x.split([*self.lengths], 1))
        special = {f"special{number}": x.new_tensor(_special(part)) for number, part in parts}
        return {**super()._statistics(x), **special}

    def _draw(self, n: int) -> Tensor:
        rows, others = self._rows(n).clone(), self._rows(n)
        ends = torch.rand(n, 2, device=rows.device).sort(1).values
        parts = zip(rows.split([*self.lengths], 1), others.split([*self.lengths], 1), strict=True)
        for number, (own, other) in enumerate(parts):
            place = (torch.arange(own.shape[1], device=rows.device) + 0.5) / own.shape[1]
            inside = (place > ends[:, :1]) & (place < ends[:, 1:])
            special = self.buffers[f"special{number}"]
            inside &= ~torch.isin(own, special) & ~torch.isin(other, special)
            own.copy_(torch.where(inside, other, own))
        return rows


def padding(x: Tensor) -> float | None:
    """The id by which rows ``(N, L)`` are filled up, after or before what they hold, if any.

    A single column is a category, not padding.
    """
    for side in (x, x.flip(1)):
        filled = side[:, -1].mode().values
        is_filled = (side == filled).long()
        counts = is_filled.sum(1)
        if bool((is_filled.diff(dim=1) >= 0).all()) and int(counts.max()) > max(
            1, int(counts.min())
        ):
            return float(filled)
    return None


def _special(x: Tensor) -> list[float]:
    """Padding, and what stands beside it in all rows."""
    filled = padding(x)
    if filled is None:
        return []
    held = x != filled
    beside: list[float] = []
    for side, keep in ((x, held), (x.flip(1), held.flip(1))):
        last = x.shape[1] - 1 - keep.flip(1).long().argmax(1)
        ending = side.gather(1, last[:, None])[keep.any(1)].unique()
        beside += ending.tolist() if len(ending) == 1 else []
    return [filled, *beside]
