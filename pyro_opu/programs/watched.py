"""What records hold besides draws and inputs, and whether it is as it was."""

from __future__ import annotations

from collections.abc import Sequence

import pyro

from pyro_opu.programs.recorded import Recorded


class Watched:
    """Parameters and tensors that records hold: whether they are still those, with their numbers.

    Args:
        recorded: The records.
    """

    def __init__(self, recorded: Sequence[Recorded]) -> None:
        held = [each for one in recorded for each in one.constants()]
        self._versions = [(each, each._version) for each in held if not each.is_inference()]
        self._params = {
            name: param
            for name, param in pyro.get_param_store().named_parameters()
            if any(param is each for each in held)
        }

    def unchanged(self) -> bool:
        """Whether none was replaced in Pyro's store, or written into."""
        store = dict(pyro.get_param_store().named_parameters()) if self._params else {}
        same = all(store.get(name) is param for name, param in self._params.items())
        return same and all(each._version == version for each, version in self._versions)
