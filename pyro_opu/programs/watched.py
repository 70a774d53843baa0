"""What records hold besides inputs, and whether it is as it was."""

from __future__ import annotations

from collections.abc import Sequence

import pyro

from pyro_opu.programs.recorded import Recorded
from pyro_opu.programs.recorder import memory_of
from pyro_opu.programs.vmap import Draws

#: Where a module holds what it calls, and is called with.
TABLES = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")


class Watched:
    """Draws, parameters, tensors and modules that records hold: whether they are still those.

    Args:
        recorded: The records.
        draws: What they are run under.
    """

    def __init__(self, recorded: Sequence[Recorded], draws: Draws) -> None:
        held = [*draws.values(), *(each for one in recorded for each in one.constants())]
        held = [each for each in held if not each.is_inference()]
        self._versions = [(each, each._version, memory_of(each)) for each in held]
        self._params = {
            name: param
            for name, param in pyro.get_param_store().named_parameters()
            if any(param is each for each in held)
        }
        modules = dict.fromkeys(module for one in recorded for module in one.modules)
        self._modes = [(module, module.training) for module in modules]
        tables = (getattr(each, name) for each in modules for name in TABLES)
        self._tables = [(table, list(table.items())) for table in tables]

    def unchanged(self) -> bool:
        """Whether none was replaced, in its module or in Pyro's store, or written into.

        Modules must be in the mode that they were in.
        """
        store = dict(pyro.get_param_store().named_parameters()) if self._params else {}
        return (
            all(
                each._version == version and memory_of(each) == place
                for each, version, place in self._versions
            )
            and all(module.training == mode for module, mode in self._modes)
            and all(store.get(name) is param for name, param in self._params.items())
            and all(
                len(table) == len(kept) and all(table.get(name) is value for name, value in kept)
                for table, kept in self._tables
            )
        )
