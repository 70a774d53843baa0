"""Whether a network's numbers are logits of classes, by how they were made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributions as dist
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from pyro_opu.checks import ArgumentError
from pyro_opu.programs.sites import are_probs, logits_of
from pyro_opu.rng import evaluating, preserve_rng
from pyro_opu.teachers.shared import Function
from pyro_opu.utils.chunks import some_rows

_OF_CLASSES = (dist.Categorical, dist.OneHotCategorical)
_SIGMOIDS = {torch.sigmoid, F.sigmoid, Tensor.sigmoid, torch.special.expit}


class WithLogits(nn.Module):
    """A network that returns its logits by name, as one that returns them alone."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: object, **kwargs: object) -> Any:
        """The logits."""
        return logits_of(self.module(*args, **kwargs))


class _Sigmoids(TorchFunctionMode):
    """Keeps what sigmoids make."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Tensor] = []

    def __torch_function__(
        self,
        func: Function,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in _SIGMOIDS:
            self.made.append(found)
        return found

    def has_made(self, value: object) -> bool:
        """Whether a tensor is one of these, or a view of one."""
        if not isinstance(value, Tensor):
            return False
        place = value.untyped_storage().data_ptr()
        return any(each.untyped_storage().data_ptr() == place for each in self.made)


def returned_by(network: nn.Module, x: Tensor, inner: nn.Module) -> tuple[Any, bool]:
    """What a part of a network returns at two rows, and whether a sigmoid has made it."""
    found: list[Any] = []

    def keep(module: nn.Module, args: object, returned: Any) -> None:
        found.append(returned)

    # A whole network needs no hook; a scripted one takes none.
    hook = None if inner is network else inner.register_forward_hook(keep)
    try:
        with torch.no_grad(), preserve_rng(), evaluating(network), _Sigmoids() as sigmoids:
            answer = network(some_rows(x, 2))
    finally:
        if hook is not None:
            hook.remove()
    returned = answer if hook is None else found[-1]
    return returned, sigmoids.has_made(logits_of(returned))


def as_classifier(network: nn.Module, x: Tensor) -> nn.Module:
    """The network, one that returns its logits by name as one that returns them alone.

    Raises:
        ValueError: its numbers are made by a sigmoid and no probabilities of classes, or are those
            of a distribution of something else; or they are two, of which nothing says what.
    """
    returned, by_sigmoid = returned_by(network, x, network)
    if isinstance(returned, dist.Distribution) and not isinstance(returned, _OF_CLASSES):
        raise ArgumentError(
            "`source`'s network must return logits or probabilities of classes; got a "
            f"{type(returned).__name__}, which has none. For several labels say "
            'as_teacher(network, output="labels"), or let it return its logits alone.'
        )
    output = logits_of(returned)
    if isinstance(output, Tensor) and output.is_floating_point() and output.ndim == 2:
        rows, columns = output.shape
        if columns > 1 and by_sigmoid and not are_probs(output):
            raise ArgumentError(
                "`source`'s network must return logits or probabilities of classes; got "
                f"probabilities of {columns} labels, made by a sigmoid, which do not sum to 1. Say "
                'as_teacher(network, output="labels").'
            )
        sums = output.logsumexp(-1).abs().max() if rows else 0.0
        if columns == 2 and not are_probs(output) and sums > 1e-3:
            raise ArgumentError(
                "`source`'s network must be known to be of classes or of a real y: it returns two "
                "numbers of every input, which may be the logits of two classes, or a mean and a "
                'log variance. Say which, as_teacher(network, output="classes") or '
                'output="mean and log variance".'
            )
    return network if output is returned else WithLogits(network)
