"""What a model observes, and what follows from it for a student."""

from __future__ import annotations

from typing import Any

from pyro_opu.outcomes.base import Outcome
from pyro_opu.outcomes.classes import Classes
from pyro_opu.outcomes.real import Real
from pyro_opu.outcomes.several import Several
from pyro_opu.outcomes.sites import SiteLayout
from pyro_opu.teachers.base import JointDraws

__all__ = [
    "OUTCOMES",
    "Classes",
    "Outcome",
    "Real",
    "Several",
    "SiteLayout",
    "outcome_from",
    "outcome_of",
]

#: Outcomes by the ``kind`` of a teacher; a saved student names it too.
OUTCOMES: dict[str, type[Outcome]] = {outcome.kind: outcome for outcome in (Classes, Real, Several)}


def outcome_from(config: dict[str, Any]) -> Outcome:
    """The outcome that a file describes."""
    own = {name: value for name, value in config.items() if name != "kind"}
    found: Outcome = OUTCOMES[config["kind"]].from_config(**own)
    return found


def outcome_of(teacher: JointDraws) -> Outcome:
    """The outcome of a teacher that has seen an input."""
    return OUTCOMES[teacher.kind].of(teacher)
