"""What the numbers of a row are, and which a model observes: below teachers and students."""

from __future__ import annotations

from typing import Any

from pyro_opu.distributions.table import Part
from pyro_opu.parts.base import Outcome, SiteLayout
from pyro_opu.parts.classes import Classes
from pyro_opu.parts.real import Real
from pyro_opu.parts.table import Table

__all__ = ["OUTCOMES", "Classes", "Outcome", "Part", "Real", "SiteLayout", "Table", "outcome_from"]

#: Outcomes by the name that a file has for them.
OUTCOMES: dict[str, type[Outcome]] = {outcome.kind: outcome for outcome in (Classes, Real, Table)}


def outcome_from(config: dict[str, Any]) -> Outcome:
    """The outcome that a file describes, :attr:`.Outcome.config`."""
    own = {name: value for name, value in config.items() if name != "kind"}
    found: Outcome = OUTCOMES[config["kind"]].from_config(**own)
    return found
