"""A program: its posterior and inputs, and how it is inferred."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoGuide, AutoNormal
from torch import Tensor, nn

#: Draws of a guide, and of a chain of NUTS.
DRAWS, CHAIN, WARMUP = 500, 200, 100
#: Steps of SVI and of a chain's warmup, and its draws, where the posterior need not be a good one.
BRIEF, FEW = 20, 50
_brief: ContextVar[bool] = ContextVar("brief inference", default=False)


@dataclass(frozen=True)
class Program:
    """What a user has when the posterior is known.

    Attributes:
        source: A ``Predictive``, or a function of draws.
        x: Inputs that the student is taught at, in the form in which ``distill`` takes them.
        new: Inputs that it is judged at.
        call: The arguments of a call at new inputs, where these are not they.
        options: How the model is called, for ``distill`` and ``as_teacher``.
        cure: What a refusal must say, where the program is one that is refused.
        warning: What a warning must say, where the program is one that is warned of.
    """

    source: Any
    x: Any
    new: Any
    call: tuple[Any, ...] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    cure: str = ""
    warning: str = ""


#: Title -> the program, inferred anew.
PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(title: str) -> Callable[[Callable[[], Program]], Callable[[], Program]]:
    """Enter a function that makes a program under its title."""

    def enter(make: Callable[[], Program]) -> Callable[[], Program]:
        PROGRAMS[title] = make
        return make

    return enter


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def whole(high: int, rows: int, seed: int) -> Tensor:
    """Whole numbers from 0, each of which is there."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.arange(rows) % high)[torch.randperm(rows, generator=generator)]


def labels(logits: Tensor, seed: int) -> Tensor:
    """Labels ``(N,)`` from logits ``(N,)``, as 0.0 and 1.0."""
    uniform = torch.rand(logits.shape, generator=torch.Generator().manual_seed(seed))
    return (uniform < logits.sigmoid()).float()


@contextmanager
def briefly(brief: bool = True) -> Iterator[None]:
    """Infer in few steps, or in as many as a program says."""
    token = _brief.set(brief)
    try:
        yield
    finally:
        _brief.reset(token)


def learnt(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    *args: Any,
    steps: int = 400,
    rate: float = 0.02,
    loss: Any = None,
    **kwargs: Any,
) -> Any:
    """The guide, taught by SVI at these arguments of the model."""
    svi = SVI(model, guide, pyro.optim.Adam({"lr": rate}), loss or Trace_ELBO())
    for _ in range(min(steps, BRIEF) if _brief.get() else steps):
        svi.step(*args, **kwargs)
    if isinstance(guide, nn.Module):
        guide.eval()
    return guide


def by_guide(
    model: Callable[..., Any],
    *args: Any,
    guide: Callable[[Any], Any] = AutoNormal,
    draws: int = DRAWS,
    return_sites: tuple[str, ...] = (),
    **options: Any,
) -> Predictive:
    """``Predictive`` by an autoguide of this kind."""
    made = learnt(model, guide(model), *args, **options)
    if isinstance(made, AutoGuide) and hasattr(made, "laplace_approximation"):
        made = made.laplace_approximation(*args)
    return Predictive(model, guide=made, num_samples=draws, return_sites=return_sites)


def by_nuts(
    model: Callable[..., Any], *args: Any, kernel: Any = None, draws: int = CHAIN, **kwargs: Any
) -> dict[str, Tensor]:
    """Draws of a short chain."""
    if _brief.get():
        draws, warmup = min(draws, FEW), BRIEF
    else:
        warmup = WARMUP
    options: dict[str, Any] = {"num_samples": draws, "warmup_steps": warmup}
    chain = MCMC(kernel or NUTS(model, max_tree_depth=5), disable_progbar=True, **options)
    chain.run(*args, **kwargs)
    return chain.get_samples()


def hidden(model: Callable[..., Any], *sites: str) -> Callable[..., Any]:
    """The model without these sites, for a guide of the others."""
    return poutine.block(model, hide=list(sites))
