"""How the sites that come back are laid out: names, shapes and dtypes as in ``Predictive``."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from pyro.infer import Predictive
from torch import Tensor
from torch.nn.functional import one_hot

from pyro_opu.rng import preserve_rng
from pyro_opu.teachers import BaseTeacher, PredictiveTeacher
from pyro_opu.teachers.base import some_rows
from pyro_opu.teachers.calling import bound
from pyro_opu.teachers.pyro_model import is_deterministic
from pyro_opu.teachers.sites import class_log_probs, site_kind
from pyro_opu.utils.warnings import warn_user

#: Kinds of sites by what is answered: classes, or real values.
KINDS = {"classes": ("label", "onehot", "probs", "prob1"), "real": ("value", "mean")}


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
        """The layout that ``dataclasses.asdict`` described.

        Args:
            config: The description.
            kinds: Those that there are where it is used.
            num_classes: C, the numbers of every input where the kind is "onehot" or "probs".

        Raises:
            TypeError: another entry than a layout has, or one of another type.
            ValueError: a kind, dtype or shape that no such site has.
        """
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
    def needs_probs(self) -> bool:
        """Whether the site shows the draws of class probabilities themselves."""
        return self.kind in ("probs", "prob1")

    def fill(self, labels: Tensor, probs: Tensor | None, num_classes: int) -> Tensor:
        """Lay out class labels ``(S, N)`` or probabilities ``(S, N, C)`` as this site."""
        if self.kind == "label":
            value = labels
        elif self.kind == "onehot":
            value = one_hot(labels, num_classes)
        else:
            assert probs is not None
            value = probs if self.kind == "probs" else probs[..., 1]
        count, rows = labels.shape
        shape = [rows if size == -1 else size for size in self.shape]
        return value.to(getattr(torch, self.dtype)).reshape(count, *shape)


@dataclass(frozen=True)
class SiteLanguage:
    """What the sites of one kind of answer are, for :func:`read_sites`.

    Attributes:
        learned: What the student learns the distribution of, in words.
        held: What a deterministic site must hold to be answered, in words.
        label: Kind of the observed site of a teacher that is not a Pyro model.
        extra: Name, which is its kind too, of the site of what is held.
        shape: Its shape after the S axis, from the observed site's distribution and name.
        kinds: The sites of a run at two inputs that one pass can give, with their kinds, from the
            name of the observed one.
    """

    learned: str
    held: str
    label: tuple[str, str]
    extra: str
    shape: Callable[[Any, str], tuple[int, ...]]
    kinds: Callable[[dict[str, Any], str], dict[str, str]]

    def extra_site(self, x: Tensor, shape: tuple[int, ...]) -> SiteLayout:
        """The layout of what is held, where the model has no such site."""
        return SiteLayout(self.extra, self.extra, dtype_name(x), shape)


def read_layouts(
    teacher: BaseTeacher, x: Tensor, return_sites: Collection[str] | None
) -> tuple[SiteLayout, ...]:
    """The sites a student that replaces this teacher gives back.

    Args:
        teacher: Where the sites come from; one that is not a Pyro model has "obs" and "probs".
        x: Inputs ``(N, ...)``; a few rows of them go through the model.
        return_sites: Names asked for; ``None`` or none at all follows the ``Predictive``.

    Returns:
        One layout per site.

    Raises:
        TypeError: ``return_sites`` is no collection of names.
        ValueError: a latent site, a site that does not hold the class probabilities, or an
            unknown one is asked for by name; a model whose labels have no axis of inputs.
    """
    shape = None if isinstance(teacher, PredictiveTeacher) else (-1, teacher.num_classes)
    return read_sites(teacher, x, return_sites, shape, CLASSES)


def read_sites(
    teacher: Any,
    x: Tensor,
    return_sites: Collection[str] | None,
    shape: tuple[int, ...] | None,
    language: SiteLanguage,
) -> tuple[SiteLayout, ...]:
    """:func:`read_layouts` in any language.

    ``shape`` is that of what is held, for a teacher that is not a Pyro model, else ``None``.
    """
    if isinstance(return_sites, str) or not isinstance(return_sites or (), Collection):
        raise TypeError(
            f"`return_sites` must be a list or tuple of site names; got {return_sites!r}. "
            f"For one site pass [{str(return_sites)!r}]."
        )
    if shape is None:
        return _of_predictive(teacher, x, return_sites, language)
    kind, dtype = language.label
    extra = language.extra_site(x, shape)
    known = {"obs": SiteLayout("obs", kind, dtype or dtype_name(x), (-1,)), extra.name: extra}
    return _named(return_sites or ["obs"], known, set(), language)


def _of_predictive(
    teacher: Any,
    x: Tensor,
    return_sites: Collection[str] | None,
    language: SiteLanguage,
) -> tuple[SiteLayout, ...]:
    teacher.prepare(x)
    nodes = teacher.run_once(some_rows(x, 2))
    possible = _possible(teacher, nodes, x, language)
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
    teacher: Any, nodes: dict[str, Any], x: Tensor, language: SiteLanguage
) -> dict[str, SiteLayout]:
    """Layouts of the sites that one pass can give."""
    kinds = language.kinds(nodes, teacher.site)
    names = [name for name in nodes if name in kinds]
    two, three = _answers(teacher, x, names)
    layouts = {}
    for name in names:
        shape = _template(two[name].shape[1:], three[name].shape[1:])
        if -1 not in shape:
            raise ValueError(
                f"site '{name}' must hold a value for every input; got shape {shape} whatever "
                "their number. Put it in pyro.plate('data', len(x))."
            )
        layouts[name] = SiteLayout(name, kinds[name], dtype_name(two[name]), shape)
    if language.extra not in nodes:
        shape = language.shape(nodes[teacher.site]["fn"], teacher.site)
        layouts[language.extra] = language.extra_site(x, shape)
    return layouts


def _answers(teacher: Any, x: Tensor, names: list[str]) -> list[dict[str, Tensor]]:
    """What ``Predictive`` itself gives for these sites, of one draw at two and at three inputs."""
    full = teacher.predictive
    one = {name: value[:1] for name, value in full.posterior_samples.items()}
    few = Predictive(full.model, one or None, full.guide, num_samples=1, return_sites=names)
    run = bound(few, teacher.call)
    with preserve_rng():
        return [run(some_rows(x, rows)) for rows in (2, 3)]


def _class_kinds(nodes: dict[str, Any], site: str) -> dict[str, str]:
    """The observed site, and those that hold the class probabilities."""
    probs = class_log_probs(nodes[site]["fn"], 2, site).exp()
    kinds = {name: _kind(node, probs) for name, node in nodes.items()}
    onehot = site_kind(nodes[site]["fn"]) in ("onehot", "multinomial")
    kinds[site] = "onehot" if onehot else "label"
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _kind(node: Any, probs: Tensor) -> str | None:
    """Whether a site holds the class probabilities ``(2, C)``, or the second class's."""
    value = node["value"]
    if not is_deterministic(node) or not value.is_floating_point():
        return None
    if value.numel() == probs.numel() and _equal(value.reshape(probs.shape), probs):
        return "probs"
    if probs.shape[-1] == 2 and value.numel() == 2 and _equal(value.reshape(2), probs[:, 1]):
        return "prob1"
    return None


def _equal(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a.double(), b.double(), atol=1e-5)


def _template(two: torch.Size, three: torch.Size) -> tuple[int, ...]:
    """The shape with -1 at the axis that counts the inputs."""
    return tuple(-1 if a != b else a for a, b in zip(two, three, strict=True))


def dtype_name(value: Tensor) -> str:
    """Such as "float32"."""
    return str(value.dtype).removeprefix("torch.")


CLASSES = SiteLanguage(
    learned="class probabilities",
    held="the class probabilities",
    label=("label", "int64"),
    extra="probs",
    shape=lambda fn, site: (-1, class_log_probs(fn, 2, site).shape[-1]),
    kinds=_class_kinds,
)
