"""The widest tensor that is made in a block of code: memory, without a clock or a process."""

from __future__ import annotations

from typing import Any

from torch import Tensor
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
