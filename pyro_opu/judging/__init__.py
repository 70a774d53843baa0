"""One judge of answers: it keeps the best weights, and fills reports."""

from __future__ import annotations

from pyro_opu.judging.base import Judge
from pyro_opu.judging.classes import ClassJudge
from pyro_opu.judging.real import RealJudge
from pyro_opu.judging.table import TableJudge

__all__ = ["ClassJudge", "Judge", "RealJudge", "TableJudge"]
