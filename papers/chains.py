"""What the toy problems of Bayesian Dark Knowledge share: chains and ReLU students."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from pyro.infer import MCMC, NUTS
from pyro.ops.stats import effective_sample_size, gelman_rubin
from torch import Tensor

from pyro_opu.guides.networks import default_trunk_config
from pyro_opu.samplers import SGLD

Samples = dict[str, Tensor]
Pair = tuple[Tensor, Tensor]


def four_chains(
    model: Any, data: Pair, draws: int, warmup: int, evaluate: Callable[[Samples], Tensor]
) -> tuple[list[Samples], Tensor, dict[str, float]]:
    """Chains of NUTS, what each says ``(4, S, N)``, and how well they agree."""
    warnings.filterwarnings("ignore", "`torch.jit.trace` is deprecated", FutureWarning)
    chains, start, divergences = [], time.process_time(), 0
    for chain in range(4):
        torch.manual_seed(1000 + chain)
        # A few draws are for a look at the code: their trees need not be deep.
        depth = 10 if draws > 20 else 2
        kernel = NUTS(model, jit_compile=True, ignore_jit_warnings=True, max_tree_depth=depth)
        mcmc = MCMC(kernel, draws, max(10, warmup), disable_progbar=True)
        mcmc.run(*data)
        divergences += len(mcmc.diagnostics()["divergences"]["chain 0"])
        chains.append(mcmc.get_samples())
    values = torch.stack([evaluate(samples) for samples in chains])
    row = {
        "draws": 4 * draws,
        "R-hat, largest": float(gelman_rubin(values, 0, 1).max()),
        "ESS, smallest": float(effective_sample_size(values, 0, 1).min()),
        "divergences": divergences,
        "CPU s": time.process_time() - start,
    }
    return chains, values, row


def descended(model: Any, data: Pair, step: float, steps: int) -> Samples:
    """The one draw at the end of gradient descent."""
    kernel = SGLD(model, step_size=step, temperature=0.0, thinning=steps)
    (point,) = kernel.stream(*data, num_samples=1)
    return {name: value[None] for name, value in point.items()}


def sgld(model: Any, data: Pair, step: float, steps: int, burn_in: int) -> Samples:
    """Every hundredth draw after the burn-in."""
    kernel = SGLD(model, step_size=step, thinning=100)
    kept, warm = (steps - burn_in) // 100, burn_in // 100
    stored = list(kernel.stream(*data, num_samples=kept, warmup_steps=warm))
    return {name: torch.stack([each[name] for each in stored]) for name in stored[0]}


def relu_student(family: Any, x: Tensor, hidden: tuple[int, ...], **config: Any) -> Any:
    """A guide on a ReLU network that sees the inputs in units of ``x``."""
    trunk = {**default_trunk_config(x, hidden), "activation": "relu"}
    guide = family.from_config({"trunk": trunk, **config})
    guide.trunk.fit_scale(x)
    return guide
