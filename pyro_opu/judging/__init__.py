"""One judge of answers: it keeps the best weights, and fills reports."""

from __future__ import annotations

from torch import Tensor

from pyro_opu.judging.base import Judge
from pyro_opu.judging.classes import ClassJudge
from pyro_opu.judging.real import RealJudge
from pyro_opu.judging.table import TableJudge
from pyro_opu.parts import Outcome

__all__ = ["ClassJudge", "Judge", "RealJudge", "TableJudge", "judge_of"]


def judge_of(outcome: Outcome, x: Tensor, draws: Tensor, held: int | None) -> Judge:
    """Judges answers at x by a teacher's draws there ``(S, N, K)``, of ``held`` in all."""
    if outcome.single:
        return (ClassJudge if outcome.one.on_simplex else RealJudge)(x, draws, held)
    return TableJudge(x, draws, held, parts=outcome.parts)
