"""Whether a distribution is the one that its class and its parameters say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from torch import Tensor


class Node(TypedDict):
    """A sample site of a run, as Pyro's messengers and traces have it."""

    name: str
    type: str
    fn: Any  # a distribution, as a rule
    value: Any
    is_observed: bool
    infer: dict[str, Any]
    cond_indep_stack: Sequence[Any]
    scale: Any
    mask: Any
    unscaled_log_prob: Tensor
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    stop: bool


def is_subsample(node: Node) -> bool:
    """Whether the site draws the rows of a plate."""
    return node["type"] == "sample" and type(node["fn"]).__name__ == "_Subsample"


#: Packages whose distributions do.
_OWNERS = ("torch.", "pyro.", "numpyro.")
#: What a subclass may define without another law than its parent's.
_HARMLESS = {
    *("expand", "arg_constraints", "has_rsample", "has_enumerate_support", "infer_shapes"),
    *("entropy", "cdf", "icdf", "mode", "_abc_impl"),
}

_seen: dict[type, frozenset[str]] = {}


def own_members(kind: type) -> frozenset[str]:
    """Members that a user's subclass of a distribution defines anew, but for harmless ones.

    Then its parameters are known, not its distribution: ``class HalfZero(dist.Poisson)`` with a
    ``sample`` and a ``log_prob`` of its own.
    """
    if kind in _seen:
        return _seen[kind]
    kinds = list(kind.__mro__)
    known = [each.__module__.startswith(_OWNERS) for each in kinds]
    first = known.index(True) if True in known else len(kinds)
    theirs = {name for each in kinds[first:] for name in vars(each)}
    mine = {name for each in kinds[:first] for name in vars(each)}
    dunder = {name for name in mine if name.startswith("__") and name != "__call__"}
    return _seen.setdefault(kind, frozenset((mine & theirs) - dunder - _HARMLESS))


def is_known(fn: object, kinds: type | tuple[type, ...]) -> bool:
    """Whether it is one of these distributions, or a subclass that does not change them."""
    return isinstance(fn, kinds) and not own_members(type(fn))
