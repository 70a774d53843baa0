"""Samples as ``pyro.infer.MCMC`` has them: a run itself, and draws grouped by chain."""

from __future__ import annotations

from collections.abc import Callable, Collection
from difflib import SequenceMatcher
from typing import Any

from pyro.infer import MCMC, Predictive
from pyro.infer.predictive import WeighedPredictive

from pyro_opu.programs.vmap import Draws


def posterior_of(source: Any) -> Any:
    """The ``Predictive`` of an MCMC run, whose kernel knows the model; other sources as they are.

    Raises:
        ValueError: a run of a potential function, or one that has not been run.
    """
    if not isinstance(source, MCMC):
        return source
    model = getattr(source.kernel, "model", None)
    try:
        samples = source.get_samples()
    except Exception:  # noqa: BLE001 - of a run that has no samples
        samples = {}
    if model is None or not samples:
        found = "no samples: call its .run(...) first" if not samples else "no model"
        raise ValueError(
            f"`source` must be an MCMC run with a model and samples; its kernel has {found}. Or "
            "pass Predictive(model, mcmc.get_samples())."
        )
    return Predictive(model, dict(samples))


def check_unweighed(name: str, predictive: Predictive) -> None:
    """Refuse draws that carry weights."""
    if isinstance(predictive, WeighedPredictive):
        raise TypeError(
            f"`{name}` is a WeighedPredictive, whose draws carry weights; resample its draws by "
            "their weights and pass a plain Predictive."
        )


def unknown_name(name: str, free: Collection[str]) -> str:
    """The error of samples of a name that the model lacks, while it has latents without samples."""
    near = max(free, key=lambda each: (name.endswith(each), ratio(name, each), each))
    return (
        f"`posterior_samples` must have the names of the model's latents; got '{name}', which the "
        f"model lacks, and none of {sorted(free)}: is it '{near}'? Rename it: samples['{near}'] = "
        f"samples.pop('{name}'). Otherwise '{near}' is drawn from its prior."
    )


def ratio(one: str, other: str) -> float:
    """How alike two names are, 0 to 1."""
    return SequenceMatcher(None, one, other).ratio()


def check_ungrouped(samples: Draws, prior: Callable[[], Draws]) -> None:
    """Refuse samples ``(chains, S, ...)`` where the model's own values are ``(...)``."""
    try:
        own = prior()
    except Exception:  # noqa: BLE001 - a model that cannot be run without its samples either
        return
    known = [(value.shape, own[k].shape) for k, value in samples.items() if k in own]
    of_chains = [a[:2] for a, b in known if len(a) > 1 and a[1] > 1 and a[2:] == b != a[1:]]
    if known and len(of_chains) == len(known) and len(set(of_chains)) == 1:
        chains, draws = of_chains[0]
        raise ValueError(
            f"`posterior_samples` must have one axis of draws; got {chains} chains of {draws}, "
            "grouped. Pass Predictive(model, mcmc.get_samples()), or join them: "
            "{name: value.flatten(0, 1) for name, value in samples.items()}."
        )
