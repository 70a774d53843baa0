"""Runs of Pyro's MCMC that are the same on any machine."""

from __future__ import annotations

import warnings
from typing import Any
from unittest import mock

from pyro.infer import MCMC


def in_turn(
    kernel: Any, draws: int, warmup: int, *args: Any, chains: int = 1, **kwargs: Any
) -> MCMC:
    """A run on ``args`` and ``kwargs`` with its chains one after another, as on few cores.

    Elsewhere Pyro forks a process for each, which cannot differentiate where its parent has on a
    GPU.
    """
    with warnings.catch_warnings(), mock.patch("pyro.infer.mcmc.api.mp.cpu_count", lambda: 1):
        warnings.simplefilter("ignore")  # Pyro says that they are one after another
        mcmc = MCMC(kernel, draws, warmup, num_chains=chains, disable_progbar=True)
        mcmc.run(*args, **kwargs)
    return mcmc
