"""What the numbers of a row are, and which a model observes: below teachers and students."""

from __future__ import annotations

from pyro_opu.parts.answer import ImplicitTable, JointDraws, TableAnswer
from pyro_opu.parts.base import Part, by_part
from pyro_opu.parts.classes import ClassPart, TrialsPart
from pyro_opu.parts.layout import SiteLayout
from pyro_opu.parts.outcome import Outcome, outcome_from, part_from
from pyro_opu.parts.real import CountPart, RealPart

__all__ = [
    "ClassPart",
    "CountPart",
    "ImplicitTable",
    "JointDraws",
    "Outcome",
    "Part",
    "RealPart",
    "SiteLayout",
    "TableAnswer",
    "TrialsPart",
    "by_part",
    "outcome_from",
    "part_from",
]
