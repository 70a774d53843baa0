"""Memory that tensors take in a block of code, without a clock or a process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Widest(TorchDispatchMode):
    """Bytes of the widest tensor that an operation gives, views included."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        made = [each.nbytes for each in tree_leaves(found) if isinstance(each, Tensor)]
        self.bytes = max(self.bytes, *made, 0)
        return found


class Held(TorchDispatchMode):
    """Bytes of all tensors that were made in the block and lived at once, at most."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._living: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = self._storages((args, kwargs))
        found = func(*args, **(kwargs or {}))
        for key, storage in self._storages(found).items():
            if key not in given:
                self._living[key] = StorageWeakRef(storage), storage.nbytes()
        self._living = {k: each for k, each in self._living.items() if not each[0].expired()}
        self.bytes = max(self.bytes, sum(size for _, size in self._living.values()))
        return found

    @staticmethod
    def _storages(values: Any) -> dict[int, torch.UntypedStorage]:
        """Storages of the tensors in arguments or a result, by their address."""
        tensors = [each for each in tree_leaves(values) if isinstance(each, Tensor)]
        storages = [each.untyped_storage() for each in tensors]
        return {each._cdata: each for each in storages}
