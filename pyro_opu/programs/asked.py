"""What is asked of numbers in a program: at once, or in the end for who asks later.

A Python branch on a number cannot be under ``vmap``, nor in a record. So what torch and this
package ask of numbers, such as that a scale is positive, is kept there as one more tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pyro
import torch
import torch._C._functorch as functorch
from torch import Tensor
from torch.distributions import Distribution, Geometric, constraints
from torch.distributions.utils import lazy_property

from pyro_opu.rng import replaced

_KEPT: ContextVar[list[Tensor] | None] = ContextVar("what is asked in a program", default=None)
_WANTED: ContextVar[bool | None] = ContextVar("whether arguments are validated", default=None)
_INIT = Distribution.__init__
_DEFINITE = type(constraints.positive_definite)


def validates() -> bool:
    """Whether arguments of distributions are validated, as it is outside of :func:`unvalidated`."""
    wanted = _WANTED.get()
    return Distribution._validate_args if wanted is None else wanted


@contextmanager
def unvalidated() -> Iterator[None]:
    """Inside, distributions do not branch on their arguments; :func:`later` asks of these."""
    token = _WANTED.set(validates())
    try:
        with pyro.validation_enabled(False):
            yield
    finally:
        _WANTED.reset(token)


@contextmanager
def later() -> Iterator[list[Tensor]]:
    """Inside, what is asked of numbers is kept as tensors, all of which must hold in the end.

    That is also what distributions ask of their arguments, where these are validated.
    """
    kept: list[Tensor] = []
    token = _KEPT.set(kept)  # for threads that are not ours a distribution begins as it did
    try:
        with replaced(Distribution, "__init__", _begin):
            yield kept
    finally:
        _KEPT.reset(token)


def all_hold(kept: list[Tensor]) -> Tensor:
    """Whether all that was kept holds, as one tensor."""
    return torch.stack([each.all() for each in kept]).all()


def require(checks: Callable[[], tuple[Tensor, ...]], message: str) -> None:
    """Raise ``message`` unless all of these hold, or keep them for who asks :func:`later`."""
    kept = _KEPT.get()
    if kept is not None:
        kept.extend(checks())
    elif not all(bool(check) for check in checks()):
        raise RuntimeError(message)


def _begin(
    self: Any,
    batch_shape: torch.Size = torch.Size(),  # noqa: B008 - as in torch
    event_shape: torch.Size = torch.Size(),  # noqa: B008
    validate_args: bool | None = None,
) -> None:
    """In the place of ``Distribution.__init__``: keeps what it would have asked."""
    kept = _KEPT.get()
    wanted = validates() if validate_args is None else validate_args
    if kept is None or not wanted:
        return _INIT(self, batch_shape, event_shape, validate_args)
    _INIT(self, batch_shape, event_shape, None if validate_args is None else False)
    for name, constraint in getattr(self, "arg_constraints", {}).items():
        computed = isinstance(getattr(type(self), name, None), lazy_property)
        if constraints.is_dependent(constraint) or (computed and name not in vars(self)):
            continue
        if isinstance(value := getattr(self, name), Tensor):
            kept.append(_of_all(_holds(constraint, value)).all())
    if isinstance(self, Geometric) and "probs" in vars(self):  # it asks that itself
        kept.append(_of_all(self.probs > 0).all())
    return None


def _holds(constraint: Any, value: Tensor) -> Tensor:
    """Where a value is in a constraint, without a branch."""
    if isinstance(constraint, _DEFINITE):
        off = (value - value.mT).abs() <= 1e-6 + 1e-5 * value.mT.abs()
        symmetric = off.all(-1).all(-1)
        return symmetric & (torch.linalg.cholesky_ex(value).info == 0)
    found: Tensor = constraint.check(value)
    return found


def _of_all(value: Tensor) -> Tensor:
    """The tensor of all draws, of which ``vmap`` shows that of one."""
    while functorch.is_batchedtensor(value):
        value = functorch.get_unwrapped(value)
    return value
