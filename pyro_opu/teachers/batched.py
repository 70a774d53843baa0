"""One call for many draws: ``vmap`` where the model allows it, the loop where not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Draws = dict[str, Tensor]


def loop(fn: Callable[[Draws], Any], draws: Draws) -> Any:  # noqa: ANN401
    """Evaluate ``fn`` at each draw in turn and stack the results (tensors or dicts of them)."""
    size = len(next(iter(draws.values())))
    results = [fn({name: value[s] for name, value in draws.items()}) for s in range(size)]
    if isinstance(results[0], dict):
        return {name: torch.stack([r[name] for r in results]) for name in results[0]}
    return torch.stack(results)


class Batched:
    """Evaluates a function at many draws through ``vmap``, checked once against the loop.

    The first call evaluates its first two draws in the loop too. Where ``vmap`` raises
    (data-dependent Python control flow) or a function without randomness of its own gives other
    numbers, the loop is used from then on, and a warning says so once.

    Args:
        what: Name of the evaluated thing, for the warning.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.vectorized: bool | None = None  # unknown before the first call

    def __call__(self, fn: Callable[[Draws], Any], draws: Draws) -> Any:  # noqa: ANN401
        """Results of ``fn`` stacked over the leading axis of every tensor in ``draws``."""
        if self.vectorized is None:
            self.vectorized = self._try(fn, draws)
        if not self.vectorized:
            return loop(fn, draws)
        return torch.vmap(fn, randomness="different")(draws)

    def _try(self, fn: Callable[[Draws], Any], draws: Draws) -> bool:
        few = {name: value[:2] for name, value in draws.items()}
        reference = loop(fn, few)
        try:
            state = torch.get_rng_state()
            fast = torch.vmap(fn, randomness="different")(few)
            torch.set_rng_state(state)
        except Exception as error:  # noqa: BLE001 - whatever vmap cannot do, the loop can
            reason = str(error).strip().splitlines()[0] if str(error) else type(error).__name__
            self._warn(f"torch.vmap cannot run it ({reason[:200]})")
            return False
        if _close(fast, reference) or not _close(loop(fn, few), reference):
            return True
        self._warn("torch.vmap gives other numbers than the loop for it")
        return False

    def _warn(self, reason: str) -> None:
        warnings.warn(
            f"{self.what} is evaluated draw by draw, which is slow: {reason}. Results are not "
            "affected. To speed it up, replace Python branches on tensor values by torch.where.",
            UserWarning,
            stacklevel=2,
        )


def _close(a: Any, b: Any) -> bool:  # noqa: ANN401
    """Equal to float rounding; a function with randomness of its own never is."""
    if isinstance(a, dict):
        return all(_close(a[name], b[name]) for name in b)
    return a.shape == b.shape and torch.allclose(
        a.double(), b.double(), rtol=1e-3, atol=1e-4, equal_nan=True
    )
