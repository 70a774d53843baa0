"""Posterior samples by site: those of a run, what is refused of them, and some of them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from difflib import SequenceMatcher
from typing import Any

import torch
from pyro.infer import MCMC, Predictive
from pyro.infer.predictive import WeighedPredictive
from torch import Tensor

from pyro_opu.checks import ArgumentError, ArgumentTypeError, check_tensor
from pyro_opu.programs.vmap import Draws


class SamplesError(ArgumentError):
    """Posterior samples that are not those of the model, however it is run."""


def posterior_of(source: object) -> Any:
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
        raise ArgumentError(
            f"`source` must be an MCMC run with a model and samples; its kernel has {found}. Or "
            "pass Predictive(model, mcmc.get_samples())."
        )
    return Predictive(model, dict(samples))


def check_unweighed(name: str, predictive: Predictive) -> None:
    """Refuse draws that carry weights."""
    if isinstance(predictive, WeighedPredictive):
        raise ArgumentTypeError(
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
        raise SamplesError(
            f"`posterior_samples` must have one axis of draws; got {chains} chains of {draws}, "
            "grouped. Pass Predictive(model, mcmc.get_samples()), or join them: "
            "{name: value.flatten(0, 1) for name, value in samples.items()}."
        )


def check_samples(predictive: Predictive) -> None:
    """Refuse samples that are not as many finite draws ``(S, ...)`` of every site."""
    for name, value in predictive.posterior_samples.items():
        site = f"posterior_samples['{name}']"
        check_tensor(site, value, advice="Convert it with torch.as_tensor.")
        if len(value) != predictive.num_samples:
            raise ArgumentError(
                "`posterior_samples` must all hold the same number of draws, on axis 0; got "
                f"{len(value)} of '{name}' and {predictive.num_samples} of another site."
            )
        bad = ~torch.isfinite(value[:, None].flatten(1)).all(1)
        if bad.any():
            raise ArgumentError(
                f"`{site}` must be finite; got NaN or infinity in {int(bad.sum())} of "
                f"{len(value)} draws. Leave them out, and check the sampler's divergences and step "
                "size."
            )


class Latents:
    """Draws of the latents, ``{site: (S, ...)}``, sliced together along S."""

    def __init__(self, values: Draws, size: int) -> None:
        self.values, self.size = values, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: slice) -> Latents:
        size = len(range(*index.indices(self.size)))
        return Latents({name: value[index] for name, value in self.values.items()}, size)

    def at(self, index: Tensor) -> Latents:
        """The draws at these indices."""
        values = {name: value[index.to(value.device)] for name, value in self.values.items()}
        return Latents(values, len(index))

    def without(self, names: Collection[str]) -> Latents:
        """The draws of all other latents."""
        return Latents({k: v for k, v in self.values.items() if k not in names}, self.size)

    def divided(self) -> tuple[Draws, Draws]:
        """Draws that vary, with a counter beside them, and values that all draws share.

        Point estimates are shared, as are a kernel's parameters beside a posterior of its function.
        """
        values = self.values
        shared = {name: value[0] for name, value in values.items() if _all_alike(value)}
        varying = {name: value for name, value in values.items() if name not in shared}
        return {"": torch.arange(self.size), **varying}, shared


def _all_alike(draws: Tensor) -> bool:
    """Whether there are several draws and all are the same; two tell of nearly all that differ."""
    if len(draws) < 2 or not torch.equal(draws[0], draws[1]):
        return False
    return bool((draws == draws[0]).all())


def choose(held: int, num_draws: int) -> Tensor:
    """Indices of ``num_draws`` of ``held`` draws: all in order, or a random subset."""
    return torch.arange(held) if num_draws == held else torch.randperm(held)[:num_draws]
