"""What all reports have: numbers by name, as plain values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

from pyro_opu.utils.printing import Printed
from pyro_opu.utils.tables import json_ready


class Report(Printed):
    """A frozen dataclass of results: ``print`` it, or take the numbers by name."""

    #: Properties that stand first among the plain values.
    _totals: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers by name, ready for ``json.dump``; undefined ones are ``None``."""
        totals = {name: getattr(self, name) for name in self._totals}
        numbers: dict[str, Any] = json_ready(totals | asdict(self))  # type: ignore[call-overload]
        return numbers
