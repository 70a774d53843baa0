"""Which guide, which loss and which judge suit what is observed."""

from __future__ import annotations

from pyro_opu.choosing.base import NETWORK, Choice, GuideName, LossName
from pyro_opu.choosing.classes import ChoiceOfClasses
from pyro_opu.choosing.real import ChoiceOfReal
from pyro_opu.choosing.table import ChoiceOfTable
from pyro_opu.parts import Outcome

__all__ = ["CHOICES", "NETWORK", "Choice", "GuideName", "LossName", "choice_of"]

#: What suits an outcome, by its kind.
CHOICES: dict[str, type[Choice]] = {
    "classes": ChoiceOfClasses,
    "real": ChoiceOfReal,
    "table": ChoiceOfTable,
}


def choice_of(outcome: Outcome) -> Choice:
    """What suits a student of this outcome."""
    return CHOICES[outcome.kind](outcome)
