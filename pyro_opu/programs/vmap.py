"""One call for many draws: ``vmap`` where the model allows it, the loop where not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_opu.programs.agreement import compare, gaps
from pyro_opu.programs.vmap_rewrites import Rewrites, dirichlet_by_gammas
from pyro_opu.rng import preserve_rng
from pyro_opu.utils.warnings import warn_user

Draws = dict[str, Tensor]
#: Draws that are compared: what a second one does shows what the first has left behind.
COMPARED = 2
#: Parts of vmap's message where what differs between draws is written into what does not; the
#: second is that of some functions before torch 2.14.
_IN_PLACE = (
    "is not possible because there exists a Tensor",
    "of the written-to tensor refers to a single memory location",
)


def loop(fn: Callable[[Draws], Any], draws: Draws) -> Any:
    """Evaluate ``fn`` at each draw in turn and stack the results, tensors or dicts of them."""
    size = len(next(iter(draws.values())))
    results = [fn({name: value[s] for name, value in draws.items()}) for s in range(size)]
    if isinstance(results[0], dict):
        return {name: torch.stack([r[name] for r in results]) for name in results[0]}
    return torch.stack(results)


def vectorized(fn: Callable[[Draws], object], draws: Draws, *, own_tensors: bool = False) -> Any:
    """:func:`loop` through ``vmap``; what ``fn`` draws at random differs between draws.

    With ``own_tensors`` a tensor that ``fn`` makes, such as ``torch.zeros(3)``, is one for every
    draw, so that what differs between draws can be written into it.
    """
    mode = Rewrites()

    def run(draw: Draws) -> Any:
        mode.zero = torch.zeros_like(next(iter(draw.values()))).sum() if own_tensors else None
        return fn(draw)

    with mode, dirichlet_by_gammas():
        return torch.vmap(run, randomness="different")(draws)


class Batched:
    """Evaluates a function at many draws through ``vmap``, checked once against the loop.

    The first call of several draws is compared with the loop over two of them. Where ``vmap``
    raises (data-dependent Python control flow), or a function without randomness of its own gives
    other numbers, the loop is used from then on, and a warning says so once.

    Args:
        what: Name of the evaluated thing, for the warning.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.use_vmap: bool | None = None  # unknown before the first call of several draws
        self.own_tensors = False  # whether a tensor that the function makes is one for every draw
        self.expected: Any = None  # what the loop gave, if the call before was its first draw

    def __call__(
        self, fn: Callable[[Draws], object], draws: Draws, inputs: Tensor | None = None
    ) -> Any:
        """Results of ``fn`` stacked over the leading axis of every tensor in ``draws``.

        A function that changes its ``inputs`` has no other numbers: who lends these refuses it.
        """
        if len(next(iter(draws.values()))) == 1:
            result = loop(fn, draws)
            self.expected = result if self.use_vmap is None else None
            return result
        if self.use_vmap is not False:
            try:
                result = self._vectorized(fn, draws)
            except Exception as error:  # noqa: BLE001 - whatever vmap cannot do, the loop can
                result = loop(fn, draws)  # an error of the function itself is raised from here
                self.give_up(error)
                return result
            if self.use_vmap or self._agrees(fn, draws, result, inputs):
                self.use_vmap = True
                return result
            self.give_up("it gives other numbers than the loop")
        return loop(fn, draws)

    def _vectorized(self, fn: Callable[[Draws], object], draws: Draws) -> Any:
        try:
            return vectorized(fn, draws, own_tensors=self.own_tensors)
        except RuntimeError as error:
            if self.use_vmap or self.own_tensors or not _written(str(error)):
                raise
            result = vectorized(fn, draws, own_tensors=True)
            self.own_tensors = True
            return result

    def _agrees(
        self, fn: Callable[[Draws], object], draws: Draws, result: object, inputs: Tensor | None
    ) -> bool:
        """Whether ``vmap`` gave for the first draws what the loop gives, or that is random."""
        expected, self.expected = self.expected, None
        fast = _first(_named(result), 1)
        if expected is not None and not gaps(fast, _named(expected)):
            return True
        first, fast = _first(draws, COMPARED), _first(_named(result), COMPARED)
        before = torch.empty(0) if inputs is None else inputs.clone()
        found = compare(lambda: fast, lambda: _named(loop(fn, first)))
        if found.random == "its own":  # all draws would share its numbers, or it changes the inputs
            return inputs is not None and not torch.equal(inputs, before)
        if found.random == "torch":
            with preserve_rng():
                return has_nan(result) <= has_nan(loop(fn, first))
        return not found.gaps

    def give_up(self, reason: Exception | str) -> None:
        """Use the loop from now on, and say why."""
        self.use_vmap = False
        first_line = (str(reason).strip().splitlines() or [type(reason).__name__])[0][:200]
        warn_user(
            f"{self.what} is evaluated draw by draw, which is slow, because torch.vmap cannot run "
            f"it: {first_line.rstrip('.')}. Results are not affected. {_cure(first_line)}"
        )


def _written(reason: str) -> bool:
    return any(part in reason for part in _IN_PLACE)


def _cure(reason: str) -> str:
    """What would make a function fast that ``vmap`` refuses for a reason."""
    if "control flow" in reason or ".item()" in reason:
        return "torch.where in the place of a Python branch on a tensor's value makes it fast."
    if _written(reason) or "in-place" in reason:
        return "torch.stack or torch.where in the place of a write into a tensor makes it fast."
    if "autograd.Function" in reason:
        return "A torch.autograd.Function in it needs a setup_context and a vmap rule."
    if "other numbers" in reason:
        return (
            "Something in it depends on the calls before, such as a counter, a cache or random "
            "numbers of Python or NumPy (torch.rand is fast), or has few digits left in its dtype."
        )
    return "Posterior samples in the place of what it draws, or another operation, may be fast."


def _first(values: Draws, count: int) -> Draws:
    return {name: value[:count] for name, value in values.items()}


def _named(said: Any) -> Draws:
    """What a function gives, by name."""
    return said if isinstance(said, dict) else {"": said}


def has_nan(a: object) -> bool:
    """Whether a tensor, or one of a dict, has a NaN."""
    return any(bool(leaf.isnan().any()) for leaf in _named(a).values())
