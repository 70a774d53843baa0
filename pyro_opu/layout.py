"""How the sites that come back are laid out: names, shapes and dtypes as ``Predictive`` gives them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyro.infer import Predictive
from torch import Tensor
from torch.nn.functional import one_hot

from pyro_opu.teachers import BaseTeacher, PredictiveTeacher
from pyro_opu.teachers.pyro_model import is_deterministic
from pyro_opu.teachers.sites import class_log_probs, site_kind


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


def read_layouts(
    teacher: BaseTeacher, x: Tensor, return_sites: Sequence[str] | None
) -> tuple[SiteLayout, ...]:
    """The sites a student that replaces this teacher gives back.

    Args:
        teacher: Where the sites come from; one that is not a Pyro model has "obs" and "probs".
        x: Inputs ``(N, ...)``; a few rows of them go through the model.
        return_sites: Names asked for; ``None`` follows the ``Predictive``.

    Returns:
        One layout per site.

    Raises:
        ValueError: a latent site, a site that does not hold the class probabilities, or an
            unknown one is asked for by name.
    """
    if not isinstance(teacher, PredictiveTeacher):
        known = {
            "obs": SiteLayout("obs", "label", "int64", (-1,)),
            "probs": SiteLayout("probs", "probs", _dtype(x), (-1, teacher.num_classes)),
        }
        wanted = ("obs",) if return_sites is None else tuple(return_sites)
        for name in wanted:
            if name not in known:
                raise ValueError(_unknown(name, list(known)))
        return tuple(known[name] for name in wanted)
    return _of_predictive(teacher, x, return_sites)


def _of_predictive(
    teacher: PredictiveTeacher, x: Tensor, return_sites: Sequence[str] | None
) -> tuple[SiteLayout, ...]:
    asked = return_sites if return_sites is not None else (teacher.predictive.return_sites or None)
    possible, latent = _possible_sites(teacher, x)
    if asked is None:
        default = _default_names(teacher, x)
        left_out = sorted(set(default) - set(possible))
        if left_out:
            warnings.warn(
                f"one pass cannot give the sites {left_out}, which this Predictive returns by default; "
                f"they are left out. Pass return_sites={[teacher.site]!r} to say so yourself.",
                UserWarning,
                stacklevel=4,
            )
        return tuple(layout for layout in possible.values() if layout.name in default)
    for name in asked:
        if name in latent:
            raise ValueError(
                f"`return_sites` asks for '{name}', a latent site: the student learns the distribution "
                "of class probabilities that the posterior induces, not the posterior, so one pass "
                f"cannot give it. Ask for some of {list(possible)}, or read the posterior samples."
            )
        if name not in possible:
            raise ValueError(_unknown(name, list(possible)))
    return tuple(possible[name] for name in asked)


def _possible_sites(
    teacher: PredictiveTeacher, x: Tensor
) -> tuple[dict[str, SiteLayout], set[str]]:
    """Layouts of the observed site and of those that hold class probabilities; the latents."""
    teacher.prepare(x)
    runs = [teacher.run_once(x[torch.zeros(rows, dtype=torch.long)]) for rows in (2, 3)]
    nodes = runs[0]
    kinds = {name: _kind(teacher, node, nodes) for name, node in nodes.items()}
    layouts = {
        name: SiteLayout(name, kind, _dtype(nodes[name]["value"]), _template(name, *runs))
        for name, kind in kinds.items()
        if kind is not None
    }
    classes = class_log_probs(nodes[teacher.site]["fn"], 2, teacher.site).shape[-1]
    layouts.setdefault("probs", SiteLayout("probs", "probs", _dtype(x), (-1, classes)))
    latent = {n for n, node in nodes.items() if kinds[n] is None and not is_deterministic(node)}
    return layouts, latent | set(teacher.predictive.posterior_samples)


def _kind(teacher: PredictiveTeacher, node: Any, nodes: dict[str, Any]) -> str | None:  # noqa: ANN401
    if node["name"] == teacher.site:
        return "onehot" if site_kind(node["fn"]) in ("onehot", "multinomial") else "label"
    value = node["value"]
    if not is_deterministic(node) or not isinstance(value, Tensor):
        return None
    if not value.is_floating_point():
        return None
    probs = class_log_probs(nodes[teacher.site]["fn"], 2, teacher.site).exp()
    if value.numel() == probs.numel() and _equal(value.reshape(probs.shape), probs):
        return "probs"
    if probs.shape[-1] == 2 and value.numel() == 2 and _equal(value.reshape(2), probs[:, 1]):
        return "prob1"
    return None


def _equal(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a.double(), b.double(), atol=1e-5)


def _template(name: str, two: dict[str, Any], three: dict[str, Any]) -> tuple[int, ...]:
    """Shape after the S axis as ``Predictive`` pads it, -1 at the axis that counts the rows."""
    nesting = max(
        (-f.dim for node in two.values() for f in node["cond_indep_stack"] if f.vectorized),
        default=0,
    )
    ones = (1,) * (nesting - len(two[name]["fn"].batch_shape))
    shape, other = two[name]["value"].shape, three[name]["value"].shape
    return ones + tuple(-1 if a != b else a for a, b in zip(shape, other, strict=True))


def _default_names(teacher: PredictiveTeacher, x: Tensor) -> list[str]:
    """Sites this ``Predictive`` returns when none are named."""
    full = teacher.predictive
    few = Predictive(
        full.model,
        posterior_samples={name: value[:1] for name, value in full.posterior_samples.items()}
        or None,
        guide=full.guide,
        num_samples=1,
    )
    with torch.random.fork_rng(devices=[]):
        return list(few(x[torch.zeros(2, dtype=torch.long)]))


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _unknown(name: str, possible: list[str]) -> str:
    return (
        f"`return_sites` asks for '{name}', which is neither the observed site nor a deterministic "
        f"site that holds the class probabilities; one pass can give {possible}."
    )
