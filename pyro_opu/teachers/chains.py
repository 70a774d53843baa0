"""Samples as ``pyro.infer.MCMC`` has them: a run itself, and draws grouped by chain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyro.infer import MCMC, Predictive
from pyro.infer.predictive import WeighedPredictive

from pyro_opu.teachers.batched import Draws


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


def check_ungrouped(samples: Draws, prior: Callable[[], Draws]) -> None:
    """Refuse samples ``(chains, S, ...)`` where the model's own values are ``(...)``."""
    try:
        own = prior()
    except Exception:  # noqa: BLE001 - a model that cannot be run without its samples either
        return
    known = [(value.shape, own[k].shape) for k, value in samples.items() if k in own]
    if known and all(len(a) > 1 and a[2:] == b for a, b in known):
        chains, draws = known[0][0][:2]
        raise ValueError(
            f"`posterior_samples` must have one axis of draws; got {chains} chains of {draws}, "
            "grouped. Pass Predictive(model, mcmc.get_samples()), or join them: "
            "{name: value.flatten(0, 1) for name, value in samples.items()}."
        )
