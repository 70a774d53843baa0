"""Half precision in a student's trunk while it is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pyro_opu.guides.base import trunks_of


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
    trunks_of(guide)
    return "bfloat16"


@contextmanager
def in_precision(guide: nn.Module, name: str | None) -> Iterator[None]:
    """Run the trunks of the guide under autocast; heads, answers and losses keep their dtype."""
    trunks = [] if name is None else trunks_of(guide).values()
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
