"""A network as a function of its parameters."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


class Skeleton:
    """A copy of a network without its parameters, called as ``skeleton(theta, x)``.

    What ``torch.func.functional_call`` does, and also where that refuses, inside
    ``torch.jit.trace``, which NUTS with ``jit_compile=True`` needs. It runs in evaluation mode, in
    one thread at a time.

    Args:
        network: Any module; it is not changed. Its buffers are kept.

    Attributes:
        shapes: Name -> shape of each parameter, tied ones once.

    Example:
        >>> import torch
        >>> skeleton = Skeleton(nn.Linear(2, 3))
        >>> skeleton.shapes
        {'weight': torch.Size([3, 2]), 'bias': torch.Size([3])}
        >>> skeleton({"weight": torch.ones(3, 2), "bias": torch.zeros(3)}, torch.ones(1, 2))
        tensor([[2., 2., 2.]])
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = copy.deepcopy(network).eval()
        names = {parameter: name for name, parameter in self.network.named_parameters()}
        self.shapes = {name: parameter.shape for parameter, name in names.items()}
        # Every place of a parameter: module, attribute, and the parameter's name.
        self._places: list[tuple[nn.Module, str, str]] = []
        for module in self.network.modules():
            for attribute, parameter in list(module._parameters.items()):
                if parameter is not None:
                    self._places.append((module, attribute, names[parameter]))
                    delattr(module, attribute)

    def __call__(self, theta: Mapping[str, Tensor], x: Tensor) -> Any:
        """The network's output at ``x`` with the parameters ``theta``."""
        for module, attribute, name in self._places:
            setattr(module, attribute, theta[name])
        try:
            return self.network(x)
        finally:
            for module, attribute, _ in self._places:
                delattr(module, attribute)
