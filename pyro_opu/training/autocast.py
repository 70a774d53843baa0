"""Half precision in a student's trunk while it is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["checked_precision", "in_precision"]

#: A trunk's name in a guide.
TRUNKS = ("trunk", "concentration_trunk")


def checked_precision(precision: torch.dtype | None, guide: nn.Module) -> str | None:
    """Check that a guide's trunk can run in this precision, and return its name.

    float16 is refused: the penalty on a critic's slope, parts stepped in turn and clipped gradients
    would each need a loss scale of their own.
    """
    if precision is None:
        return None
    if precision is not torch.bfloat16:
        raise ValueError(
            f"`precision` must be torch.bfloat16 or None; got {precision!r}. float16 would need "
            "its loss scaled, bfloat16 has the range of float32."
        )
    if not isinstance(getattr(guide, "trunk", None), nn.Module):
        raise ValueError(
            "`precision` needs a guide with a module `trunk` to run in it; "
            f"{type(guide).__name__} has none. Use torch.autocast in its forward, or leave it out."
        )
    return "bfloat16"


@contextmanager
def in_precision(guide: nn.Module, name: str | None) -> Iterator[None]:
    """Run the trunks of the guide under autocast; heads, answers and losses keep their dtype."""
    found = [] if name is None else [getattr(guide, trunk, None) for trunk in TRUNKS]
    trunks = [trunk for trunk in found if trunk is not None]
    for trunk in trunks:
        vars(trunk)["forward"] = _halved(trunk, getattr(torch, str(name)))
    try:
        yield
    finally:
        for trunk in trunks:
            del vars(trunk)["forward"]  # uncovers the class's own


def _halved(trunk: nn.Module, precision: torch.dtype) -> Callable[..., Tensor]:
    forward, weight = trunk.forward, next(trunk.parameters(), None)

    def halved(x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, precision):
            features = forward(x)
        return features.to(x.dtype if weight is None else weight.dtype)

    return halved
