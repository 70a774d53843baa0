"""The bound of a student: what it rests on is measured at rows that nothing else has seen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from pyro_opu.judging import Judge
from pyro_opu.judging.certificate import certified
from pyro_opu.training import tuned
from pyro_opu.training.options import Request
from pyro_opu.training.run import Run
from pyro_opu.transfer.stream import row_keys

__all__ = ["certify"]

FEW = f"it takes {round(tuned.KEPT_FEWEST / tuned.KEPT_SHARE)} transfer inputs"
SINGLE = "the teacher is asked for one draw at a time (num_draws=1)"
TAUGHT = "the earlier student was taught at other rows of x, maybe at those that were kept now"


def certify(
    run: Run, request: Request, guide: nn.Module, label: Callable[..., Judge], num_draws: int
) -> dict[str, Any]:
    """Scores of the finished student at the rows that were kept, or a "reason" that there are none.

    The teacher's mean is that of all draws of a posterior that holds no more than ``num_draws``, as
    many as a call of the student gives; of any other, of so many new draws. So its own Monte
    Carlo error, as a user who asks for so many draws sees it, is part of the distance.

    Args:
        run: The run, with the rows.
        request: What was asked for.
        guide: What answers.
        label: ``label_rows`` of the teacher.
        num_draws: S.
    """
    if not len(run.kept):
        return {"reason": SINGLE if request.single_draw else FEW}
    key = f"{int(row_keys(run.kept).sum()) % 2**64:x}"
    if request.start is not None and request.start.report.get("bound", {}).get("key") != key:
        return {"reason": TAUGHT}
    found: dict[str, Any] = {}
    if run.ranks.first:
        ask = partial(label, draws=num_draws, blocks=tuned.KEPT_BLOCKS)
        if run.clock.runs:
            ask = partial(ask, timer=partial(run.timer, tuned.JUDGING_SHARE, tuned.KEPT_FEWEST))
        with run.random.borrowed():
            judge = ask(run.kept, tuned.CALIBRATION_NUMBERS // request.share[1], "bound")
            found = {"key": key, **certified(judge, guide)}
    return run.ranks.broadcast(found)
