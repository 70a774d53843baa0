"""How the sites that come back are laid out: names, shapes and dtypes as in ``Predictive``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_opu.programs.trace import is_deterministic
from pyro_opu.teachers.base import JointDraws
from pyro_opu.teachers.pyro_model import ModelDraws
from pyro_opu.utils.warnings import warn_user


@dataclass(frozen=True)
class SiteLayout:
    """One site of the answer.

    Attributes:
        name: The site's name.
        kind: "label" (class indices), "onehot", "probs" (draws of class probabilities) or "prob1"
            (draws of the second class's probability).
        dtype: Name of the torch dtype, such as "int64".
        shape: Shape after the S axis, -1 where N stands.
        of: The observed site that it is, or whose parameters it shows, where there are several.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    of: str = ""

    @classmethod
    def from_config(
        cls, config: dict[str, Any], kinds: Collection[str], sizes_of: dict[str, tuple[int, int]]
    ) -> SiteLayout:
        """The layout that ``dataclasses.asdict`` gave.

        ``sizes_of`` has the classes of each observed site, and its numbers per row; "" is the only
        one.
        """
        layout = cls(**{**config, "shape": tuple(config["shape"])})
        texts = (layout.name, layout.kind, layout.dtype, layout.of)
        if not all(type(each) is str for each in texts):
            raise TypeError(f"a site is {config!r:.80}")
        num_classes, columns = sizes_of[layout.of]
        numbers = columns * (num_classes if layout.kind in ("onehot", "probs") else 1)
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
        rows = self.shape.index(-1)
        first = values.shape[:2] + self.shape[:rows] + self.shape[rows + 1 :]
        return values.to(getattr(torch, self.dtype)).reshape(first).movedim(1, 1 + rows)


class SiteReader(ABC):
    """How an outcome reads the sites of a model; the first half of ``Outcome``."""

    #: What the student learns the distribution of, and what a deterministic site must hold to be
    #: given back, in words.
    learned: ClassVar[str]
    held: ClassVar[str]
    #: Kind and dtype of the observed site of a teacher that is not a Pyro model.
    label: ClassVar[tuple[str, str]]
    #: Name and kind of a site of what is held, for models without one.
    extra: ClassVar[str]
    #: A teacher's ``kind``, and what model hubs call the task.
    kind: ClassVar[str]
    task: ClassVar[str] = "regression"
    #: C of a class label; ``None`` of anything else.
    num_classes: int | None

    @property
    def config(self) -> dict[str, Any]:
        """Plain values for a file; the inverse is :func:`.outcome_from`."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]

    @classmethod
    def from_config(cls, **config: Any) -> Any:
        """The outcome of :attr:`config`, checked."""
        return cls(**config)

    def is_sized_as(self, guide: dict[str, Any]) -> bool:
        """Whether a guide that a file describes so answers this outcome."""
        return guide.get("num_classes") == self.num_classes

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Classes of each observed site, and its numbers per row; "" is the only one."""
        return {"": (self.num_classes or 1, 1)}

    def by_site(self, answer: Any) -> dict[str, Any]:
        """A student's answer by the observed sites."""
        return {"": answer}

    def shown(self, by_site: dict[str, Any]) -> Any:
        """What was found for each site, or for the only one."""
        return next(iter(by_site.values()))

    def plain(self, said: Tensor) -> Tensor:
        """Draws as a teacher's ``draws`` gives them, from those of its ``stream``."""
        return said

    def check_classes(self, source: str) -> None:
        """Refuse to give class probabilities where there is no single label."""
        raise TypeError(
            f"`probs` needs {source} of class labels, one per row; this one's outcome is {self}. "
            "Call .draws(x)."
        )

    @property
    @abstractmethod
    def event_shape(self) -> tuple[int, ...]:
        """Event shape of a student's answer: ``(C,)``, or ``()`` for a real y."""

    @abstractmethod
    def kinds(self, nodes: dict[str, Any], site: str) -> dict[str, str]:
        """Kinds of the sites that one pass can give, of a run at two inputs with this site."""

    def layouts_of_obs(self, dtype: str) -> list[SiteLayout]:
        """The observed sites of a teacher that is not a Pyro model, at inputs of this dtype."""
        kind, own = self.label
        return [SiteLayout("obs", kind, own or dtype, (-1,))]

    def shown_by(self, nodes: dict[str, Any], name: str) -> str:
        """The observed site whose values or parameters a site shows; "" where there is one."""
        return ""


def read_sites(
    outcome: SiteReader, teacher: JointDraws, x: Tensor, return_sites: Collection[str] | None
) -> tuple[SiteLayout, ...]:
    """The sites that a student which replaces this teacher gives back.

    A teacher that is not a Pyro model has "obs" and the outcome's extra site. Without
    ``return_sites``, or with an empty one, they are those of the ``Predictive``.
    """
    if isinstance(return_sites, str) or not isinstance(return_sites or (), Collection):
        raise TypeError(
            f"`return_sites` must be a list or tuple of site names; got {return_sites!r}. "
            f"For one site pass [{str(return_sites)!r}]."
        )
    extra = SiteLayout(outcome.extra, outcome.extra, _dtype(x), (-1, *outcome.event_shape))
    if isinstance(teacher, ModelDraws):
        return _of_predictive(outcome, teacher, x, return_sites, extra)
    observed = {site.name: site for site in outcome.layouts_of_obs(_dtype(x))}
    return _named(outcome, return_sites or [*observed], {**observed, extra.name: extra}, set())


def _of_predictive(
    outcome: SiteReader,
    teacher: ModelDraws,
    x: Tensor,
    return_sites: Collection[str] | None,
    extra: SiteLayout,
) -> tuple[SiteLayout, ...]:
    teacher.prepare(x)
    nodes, predictive = teacher.program.runs[0].nodes, teacher.predictive
    possible = _possible(outcome, teacher)
    if extra.name and extra.name not in nodes:
        possible = {**possible, extra.name: extra}
    asked = return_sites or predictive.return_sites
    if asked:
        possible |= _returned(outcome, teacher) if "_RETURN" in asked else {}
        random = {name for name, node in nodes.items() if not is_deterministic(node)}
        latent = (random | set(predictive.posterior_samples)) - set(teacher.observed)
        return _named(outcome, asked, possible, latent)
    # As Predictive chooses: all sites with a guide or return_sites=None, else those not given.
    everything = predictive.guide is not None or predictive.return_sites is None
    given = set() if everything else set(predictive.posterior_samples)
    default = [name for name in nodes if name not in given]
    left_out = sorted(set(default) - set(possible))
    if left_out:
        warn_user(
            f"one pass cannot give the sites {left_out}, which this Predictive returns by "
            f"default; they are left out. Pass return_sites={list(teacher.observed)!r} to say so "
            "yourself."
        )
    return tuple(possible[name] for name in default if name in possible)


def _named(
    outcome: SiteReader, names: Iterable[str], possible: dict[str, SiteLayout], latent: set[str]
) -> tuple[SiteLayout, ...]:
    """The layouts of the sites asked for."""
    for name in names:
        if name in latent:
            raise ValueError(
                f"`return_sites` asks for '{name}', a latent site: the student learns the "
                f"distribution of {outcome.learned} that the posterior induces, not the "
                f"posterior, so one pass cannot give it. Ask for some of {list(possible)}, or read "
                "the posterior samples."
            )
        if name not in possible:
            raise ValueError(
                f"`return_sites` asks for {name!r}, which is neither the observed site nor a "
                f"deterministic site that holds {outcome.held}; one pass can give some of "
                f"{list(possible)}."
            )
    return tuple(possible[name] for name in names)


def _possible(outcome: SiteReader, teacher: ModelDraws) -> dict[str, SiteLayout]:
    """Layouts of the model's sites that one pass can give."""
    two, three = teacher.program.runs
    kinds = outcome.kinds(two.nodes, teacher.site)
    layouts = {}
    for name in [name for name in two.nodes if name in kinds]:
        sizes = zip(two.shape(name), three.shape(name), strict=True)
        shape = tuple(-1 if a != b else a for a, b in sizes)
        if -1 not in shape:
            raise ValueError(
                f"`source`'s site '{name}' must hold a value for every input; got shape {shape} "
                "whatever their number. Put it in pyro.plate('data', len(x))."
            )
        dtype, of = _dtype(two.nodes[name]["value"]), outcome.shown_by(two.nodes, name)
        layouts[name] = SiteLayout(name, kinds[name], dtype, shape, of)
    return layouts


def _returned(outcome: SiteReader, teacher: ModelDraws) -> dict[str, SiteLayout]:
    """Layout of "_RETURN", where the model returns such a site, or what one would hold."""
    nodes = teacher.program.runs[0].nodes
    value, more = (run.returned for run in teacher.program.runs)
    if not isinstance(value, Tensor) or not isinstance(more, Tensor) or value.ndim != more.ndim:
        return {}
    same = (name for name in teacher.observed if nodes[name]["value"] is value)
    name = next(same, "_RETURN")
    nodes = {"_RETURN": {"value": value, "infer": {"_deterministic": True}}, **nodes}
    kind = outcome.kinds(nodes, teacher.site).get(name)
    shape = tuple(-1 if a != b else a for a, b in zip(value.shape, more.shape, strict=True))
    if kind is None or -1 not in shape:
        return {}
    of = outcome.shown_by(nodes, name)
    return {"_RETURN": SiteLayout("_RETURN", kind, _dtype(value), shape, of)}


def _dtype(value: Tensor) -> str:
    """Such as "float32"."""
    return str(value.dtype).removeprefix("torch.")
