"""Latents as one vector, and checks of a model for Langevin dynamics on minibatches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from pyro.infer.autoguide.initialization import InitMessenger
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_opu.checks import ArgumentError
from pyro_opu.rng import preserve_rng
from pyro_opu.samplers.minibatches import Minibatches
from pyro_opu.utils import Node, is_subsample


@dataclass(frozen=True)
class Latents:
    """Layout of named latents in one vector ``(P,)``, sorted by name."""

    shapes: dict[str, torch.Size]
    dtypes: dict[str, torch.dtype]

    @classmethod
    def of(cls, values: dict[str, Tensor]) -> Latents:
        names = sorted(values)
        return cls({n: values[n].shape for n in names}, {n: values[n].dtype for n in names})

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Latents in their shapes and dtypes; views of the vector where dtypes agree."""
        parts = flat.split([shape.numel() for shape in self.shapes.values()])
        return {
            name: part.view(shape).to(self.dtypes[name])
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def join(self, values: dict[str, Tensor]) -> Tensor:
        """A fresh vector ``(P,)``."""
        return torch.cat([values[name].detach().reshape(-1) for name in self.shapes])

    def check(self, start: dict[str, Tensor], advice: str) -> None:
        """Check that a start of a chain is finite and has these names and shapes."""
        got = {name: tuple(value.shape) for name, value in start.items()}
        expected = {name: tuple(shape) for name, shape in self.shapes.items()}
        if got != expected or not all(value.isfinite().all() for value in start.values()):
            raise ArgumentError(
                "`initial_params` must hold a finite value in unconstrained space for every "
                f"latent, of the shapes {expected}; got {got}. {advice}"
            )


def latent_and_observed(nodes: Mapping[str, Node]) -> tuple[dict[str, Any], list[str]]:
    """Latent sites of a trace, and names of the observed ones; refuses plates that subsample."""
    latents: dict[str, Any] = {}
    observed: list[str] = []
    for name, site in nodes.items():
        if site["type"] != "sample" or (site["infer"] or {}).get("_deterministic"):
            continue
        if is_subsample(site):
            if site["fn"].subsample_size not in (None, site["fn"].size):
                raise ArgumentError(
                    f"`model` must see all its data: its plate {name!r} must not subsample; got "
                    f"subsample_size={site['fn'].subsample_size}. Leave it out there."
                )
        elif site["is_observed"]:
            observed.append(name)
        else:
            latents[name] = site
    return latents, observed


def check_model(
    model: Callable[..., object], batches: Minibatches, init_strategy: Callable[..., object]
) -> None:
    """Check that latents are continuous and shared by all rows, and that data are observed.

    Torch's generators are restored.
    """

    def sites(rows: Tensor, checked: Messenger) -> tuple[dict[str, Any], list[str]]:
        args, kwargs = batches.cut(rows)
        with torch.no_grad(), preserve_rng(), poutine.block():
            started = InitMessenger(init_strategy)(checked(model))
            nodes: Any = poutine.trace(started).get_trace(*args, **kwargs).nodes
            return latent_and_observed(nodes)

    latents, observed = sites(torch.arange(batches.batch_size), _NoDiscrete())
    if not latents:
        raise ArgumentError(
            "`model` must have latent sites to sample; got none. Is every site observed, or "
            "hidden by poutine.block?"
        )
    if not observed:
        raise ArgumentError(
            "`model` must observe data; got no observed site. Pass the labels among the "
            "arguments, such as mcmc.run(x, y), and obs=y at the site."
        )
    for rows in torch.arange(batches.num_rows).split(max(1000, batches.batch_size)):
        sites(rows, PossibleValues())  # of all rows, once: steps do not check, for speed
    dtypes = {str(site["value"].dtype) for site in latents.values()}
    if len(dtypes) > 1:
        raise ArgumentError(
            f"`model`'s latents must have one dtype; got {sorted(dtypes)}. Give all priors "
            "parameters of the same dtype."
        )
    if batches.batch_size < batches.num_rows:
        more, _ = sites(torch.arange(batches.batch_size + 1), _NoDiscrete())
        for name, shape in ((name, site["value"].shape) for name, site in latents.items()):
            if name not in more or more[name]["value"].shape != shape:
                raise ArgumentError(
                    f"`model`'s latent site {name!r} must not depend on the number of rows; got "
                    f"shape {tuple(shape)} at {batches.batch_size} rows. Leave `batch_size` out, "
                    "or marginalise over the latents of single rows."
                )


class PossibleValues(Messenger):
    """Raises at an observed value outside its distribution's support."""

    def _pyro_post_sample(self, msg: Node) -> None:
        if not msg["is_observed"] or is_subsample(msg):
            return
        shape = msg["fn"].shape()
        if msg["fn"].batch_shape and not _expands(msg["value"].shape, shape):
            raise ArgumentError(
                f"`obs` at site {msg['name']!r} must have shape {tuple(shape)}, one label per "
                f"input; got {tuple(msg['value'].shape)}. Pass matching rows."
            )
        possible = msg["fn"].support.check(msg["value"])
        for mask in (msg["mask"], getattr(msg["fn"], "_mask", None)):  # poutine.mask, fn.mask
            if mask is not None:
                possible = possible | ~torch.as_tensor(mask, device=possible.device)
        if not possible.all():
            shown = msg["value"][~possible] if possible.shape == msg["value"].shape else ""
            example = f", such as {shown[0].item():g}" if isinstance(shown, Tensor) else ""
            raise ArgumentError(
                f"`obs` at site {msg['name']!r} must hold values of a "
                f"{type(msg['fn']).__name__}, {msg['fn'].support}; got others in "
                f"{int((~possible).sum())} of {possible.numel()} rows{example}. Recode y."
            )


def _expands(shape: torch.Size, to: torch.Size) -> bool:
    """Whether a tensor of one shape can be expanded to another one."""
    fits = all(own in (1, other) for own, other in zip(shape[::-1], to[::-1], strict=False))
    return len(shape) <= len(to) and fits


class _NoDiscrete(Messenger):
    """Raises at a discrete latent, before it is given a value."""

    def _pyro_sample(self, msg: Node) -> None:
        latent = not (msg["is_observed"] or is_subsample(msg))
        if latent and msg["fn"].support.is_discrete:
            raise ArgumentError(
                f"`model`'s latent site {msg['name']!r} must be continuous, to have a gradient; "
                f"got {type(msg['fn']).__name__}. Marginalise it or, if it is a label, pass the "
                "labels: mcmc.run(x, y)."
            )
