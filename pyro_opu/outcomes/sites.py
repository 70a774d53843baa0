"""How the sites that come back are laid out: names, shapes and dtypes as in ``Predictive``."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_opu.teachers.base import JointDraws
from pyro_opu.teachers.pyro_model import ModelDraws
from pyro_opu.teachers.runs import is_deterministic
from pyro_opu.utils.warnings import warn_user

__all__ = ["SiteLanguage", "SiteLayout", "dtype_name", "read_sites"]


@dataclass(frozen=True)
class SiteLayout:
    """One site of the answer.

    Attributes:
        name: The site's name.
        kind: "label" (class indices), "onehot", "probs" (draws of class probabilities) or "prob1"
            (draws of the second class's probability).
        dtype: Name of the torch dtype, such as "int64".
        shape: Shape after the S axis, -1 where N stands.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def from_config(
        cls, config: dict[str, Any], kinds: Collection[str], num_classes: int
    ) -> SiteLayout:
        """The layout that ``dataclasses.asdict`` described."""
        layout = cls(**{**config, "shape": tuple(config["shape"])})
        if not all(type(each) is str for each in (layout.name, layout.kind, layout.dtype)):
            raise TypeError(f"a site is {config!r:.80}")
        numbers = num_classes if layout.kind in ("onehot", "probs") else 1
        sizes = all(type(size) is int and (size > 0 or size == -1) for size in layout.shape)
        if (
            layout.kind not in kinds
            or not isinstance(getattr(torch, layout.dtype, None), torch.dtype)
            or not sizes
            or (layout.shape.count(-1), math.prod(layout.shape)) != (1, -numbers)
        ):
            raise ValueError(f"a site is {config!r:.80}")
        return layout

    @property
    def shows_parameters(self) -> bool:
        """Whether the site shows the draws of class probabilities, or of means, themselves."""
        return self.kind in ("probs", "prob1", "mean")

    def fill(self, values: Tensor) -> Tensor:
        """Lay out draws ``(S, N)``, or ``(S, N, C)``, as this site."""
        shape = [values.shape[1] if size == -1 else size for size in self.shape]
        return values.to(getattr(torch, self.dtype)).reshape(len(values), *shape)


@dataclass(frozen=True)
class SiteLanguage:
    """What the sites of one kind of answer are, for :func:`read_sites`.

    Attributes:
        learned: What the student learns the distribution of, in words.
        held: What a deterministic site must hold to be answered, in words.
        label: Kind of the observed site of a teacher that is not a Pyro model.
        extra: Name, which is its kind too, of the site of what is held.
        kinds: The sites of a run at two inputs that one pass can give, with their kinds, from the
            name of the observed one.
    """

    learned: str
    held: str
    label: tuple[str, str]
    extra: str
    kinds: Callable[[dict[str, Any], str], dict[str, str]]

    def extra_site(self, x: Tensor, shape: tuple[int, ...]) -> SiteLayout:
        """The layout of what is held, where the model has no such site."""
        return SiteLayout(self.extra, self.extra, dtype_name(x), shape)


def read_sites(
    teacher: JointDraws,
    x: Tensor,
    return_sites: Collection[str] | None,
    language: SiteLanguage,
    shape: tuple[int, ...],
) -> tuple[SiteLayout, ...]:
    """The sites that a student which replaces this teacher gives back.

    Args:
        teacher: Where the sites come from; one that is no Pyro model has "obs" and the extra site.
        x: Inputs ``(N, ...)``; a few rows of them go through the model.
        return_sites: Names asked for; ``None`` or none at all follows the ``Predictive``.
        language: Of the teacher's outcome.
        shape: That of the extra site after the S axis.
    """
    if isinstance(return_sites, str) or not isinstance(return_sites or (), Collection):
        raise TypeError(
            f"`return_sites` must be a list or tuple of site names; got {return_sites!r}. "
            f"For one site pass [{str(return_sites)!r}]."
        )
    if isinstance(teacher, ModelDraws):
        return _of_predictive(teacher, x, return_sites, language, shape)
    kind, dtype = language.label
    extra = language.extra_site(x, shape)
    known = {"obs": SiteLayout("obs", kind, dtype or dtype_name(x), (-1,)), extra.name: extra}
    return _named(return_sites or ["obs"], known, set(), language)


def _of_predictive(
    teacher: ModelDraws,
    x: Tensor,
    return_sites: Collection[str] | None,
    language: SiteLanguage,
    shape: tuple[int, ...],
) -> tuple[SiteLayout, ...]:
    teacher.prepare(x)
    nodes = teacher.runs[0].nodes
    possible = _possible(teacher, x, language, shape)
    predictive = teacher.predictive
    asked = return_sites or predictive.return_sites
    if asked:
        random = {name for name, node in nodes.items() if not is_deterministic(node)}
        latent = (random | set(predictive.posterior_samples)) - {teacher.site}
        return _named(asked, possible, latent, language)
    # As Predictive chooses: all sites with a guide or return_sites=None, else those not given.
    everything = predictive.guide is not None or predictive.return_sites is None
    given = set() if everything else set(predictive.posterior_samples)
    default = [name for name in nodes if name not in given]
    left_out = sorted(set(default) - set(possible))
    if left_out:
        warn_user(
            f"one pass cannot give the sites {left_out}, which this Predictive returns by "
            f"default; they are left out. Pass return_sites={[teacher.site]!r} to say so yourself."
        )
    return tuple(possible[name] for name in default if name in possible)


def _named(
    names: Iterable[str],
    possible: dict[str, SiteLayout],
    latent: set[str],
    language: SiteLanguage,
) -> tuple[SiteLayout, ...]:
    """The layouts of the sites asked for."""
    for name in names:
        if name in latent:
            raise ValueError(
                f"`return_sites` asks for '{name}', a latent site: the student learns the "
                f"distribution of {language.learned} that the posterior induces, not the "
                f"posterior, so one pass cannot give it. Ask for some of {list(possible)}, or read "
                "the posterior samples."
            )
        if name not in possible:
            raise ValueError(
                f"`return_sites` asks for {name!r}, which is neither the observed site nor a "
                f"deterministic site that holds {language.held}; one pass can give some of "
                f"{list(possible)}."
            )
    return tuple(possible[name] for name in names)


def _possible(
    teacher: ModelDraws,
    x: Tensor,
    language: SiteLanguage,
    extra_shape: tuple[int, ...],
) -> dict[str, SiteLayout]:
    """Layouts of the sites that one pass can give."""
    two, three = teacher.runs
    kinds = language.kinds(two.nodes, teacher.site)
    layouts = {}
    for name in [name for name in two.nodes if name in kinds]:
        shape = _template(two.shape(name), three.shape(name))
        if -1 not in shape:
            raise ValueError(
                f"site '{name}' must hold a value for every input; got shape {shape} whatever "
                "their number. Put it in pyro.plate('data', len(x))."
            )
        layouts[name] = SiteLayout(name, kinds[name], dtype_name(two.nodes[name]["value"]), shape)
    if language.extra not in two.nodes:
        layouts[language.extra] = language.extra_site(x, extra_shape)
    return layouts


def _template(two: tuple[int, ...], three: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with -1 at the axis that counts the inputs."""
    return tuple(-1 if a != b else a for a, b in zip(two, three, strict=True))


def dtype_name(value: Tensor) -> str:
    """Such as "float32"."""
    return str(value.dtype).removeprefix("torch.")
