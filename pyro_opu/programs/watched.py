"""Tensors and modules that something was made of, and whether they are as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import pyro
import torch
from torch import Tensor, nn

from pyro_opu.checks import is_traced
from pyro_opu.programs.recorded import Recorded
from pyro_opu.programs.recorder import memory_of
from pyro_opu.programs.vmap import Draws

#: Where a module holds what it calls, and is called with.
TABLES = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")


class Held:
    """Whether tensors lie where they lay and were not written into, and tables hold what they did.

    What writes past torch's count of changes, as to ``parameter.data`` in place, is not seen.

    Args:
        tensors: Those that may not change.
        tables: Those that modules hold, in which nothing may be replaced.
    """

    def __init__(self, tensors: Iterable[Tensor], tables: Sequence[dict[Any, Any]]) -> None:
        self.tensors = [each for each in tensors if not each.is_inference()]
        self._versions = [each._version for each in self.tensors]
        self._placed = [each for each in self.tensors if memory_of(each)]
        self._places = [each.data_ptr() for each in self._placed]
        self._tables, self._sizes = tables, list(map(len, tables))
        self._values = list(chain.from_iterable(map(dict.values, tables)))

    def unchanged(self) -> bool:
        """Whether none was replaced, or written into."""
        return (
            self._sizes == list(map(len, self._tables))
            and all(map(is_, chain.from_iterable(map(dict.values, self._tables)), self._values))
            and self._versions == [each._version for each in self.tensors]
            and self._places == [each.data_ptr() for each in self._placed]
        )


class Kept:
    """What was made of weights that nobody trains, until they change; a copy begins without."""

    def __init__(self) -> None:
        self._made: tuple[Held, Any] | None = None

    def __reduce__(self) -> tuple[type[Kept], tuple[()]]:
        return Kept, ()

    @torch.inference_mode(mode=False)
    @torch.no_grad()
    def made(self, modules: Sequence[nn.Module], make: Callable[[], Any]) -> Any:
        """What ``make`` gives, from now on; ``None`` where a weight is trained, or not counted.

        The hooks of the first of the modules belong to it.
        """
        weights: list[dict[Any, Any]] = [
            each for part in modules for each in (part._parameters, part._buffers)
        ]
        tensors = [each for table in weights for each in table.values() if each is not None]
        if is_traced() or any(map(_is_other, tensors)):
            return None
        hooks = [modules[0]._forward_hooks, modules[0]._forward_pre_hooks]
        tables = [each for each in (*weights, *(part._modules for part in modules)) if each]
        held, found = Held(tensors, [*hooks, *tables]), make()
        self._made = held, found
        return found

    def get(self) -> Any:
        """It, or ``None`` where there is nothing that is still so."""
        made = self._made
        if made is None or is_traced():
            return None
        if not made[0].unchanged() or any(map(_IS_TRAINED, made[0].tensors)):
            self._made = None  # for good: fused optimizers write past torch's count
            return None
        return made[1]


_IS_TRAINED = attrgetter("requires_grad")


def _is_other(weight: Tensor) -> bool:
    """Whether it is trained, or its changes are not counted."""
    placed = not weight.numel() or memory_of(weight)
    return weight.requires_grad or weight.is_inference() or not placed


class Watched:
    """Draws, parameters, tensors and modules that records hold: whether they are still those.

    Args:
        recorded: The records.
        draws: What they are run under.
    """

    def __init__(self, recorded: Sequence[Recorded], draws: Draws) -> None:
        held = [*draws.values(), *(each for one in recorded for each in one.constants())]
        self._params = {
            name: param
            for name, param in pyro.get_param_store().named_parameters()
            if any(param is each for each in held)
        }
        self._modules = list(dict.fromkeys(module for one in recorded for module in one.modules))
        self._modes = [module.training for module in self._modules]
        self._held = Held(held, [getattr(each, name) for each in self._modules for name in TABLES])

    def unchanged(self) -> bool:
        """Whether none was replaced, in its module or in Pyro's store, or written into.

        Modules must be in the mode that they were in.
        """
        store = dict(pyro.get_param_store().named_parameters()) if self._params else {}
        return (
            self._modes == [module.training for module in self._modules]
            and all(store.get(name) is param for name, param in self._params.items())
            and self._held.unchanged()
        )
