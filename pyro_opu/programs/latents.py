"""Which sites lie behind an answer, and what is said of those that the posterior lacks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch import distributions as dist

from pyro_opu.programs.enumerated import (
    Mixture,
    Values,
    affordable,
    batch_of,
    finite_support,
    inner_of,
    moved,
    row_values,
)
from pyro_opu.programs.rows import IMPUTED, AnyRows
from pyro_opu.programs.samples import SamplesError, unknown_name
from pyro_opu.programs.signature import Model
from pyro_opu.programs.sites import arguments_of, unwrap
from pyro_opu.programs.trace import Run, few_rows, is_deterministic, quiet, trace_of
from pyro_opu.programs.vmap import Draws
from pyro_opu.rng import preserve_rng
from pyro_opu.utils.laws import Node, is_known
from pyro_opu.utils.warnings import warn_user

#: Combinations of values up to which all are tried.
MOST_TRIED = 64
#: Deviations at which a normal is looked at: what is observed may depend on it in steps.
MOVED = (4.0, -4.0, 1.0, -1.0)
#: Inputs at which a latent of the rows is looked at.
MOST_ROWS = 16
#: What a free latent of every row is said to be, and one that all rows share.
SUMMED, DRAWN, SHARED = "summed out", "one per row, drawn anew", "shared by all rows, drawn anew"


def other_values(node: Node) -> list[Tensor]:
    """Values that a site may have: all of a finite support, the same at all rows, or a few."""
    fn, value, base = node["fn"], node["value"], unwrap(node["fn"])
    if (support := finite_support(fn)) is not None:
        return [each.expand(fn.shape()) for each in support]
    if isinstance(base, dist.Multinomial):
        return [value, value.roll(1, -1)]
    if not value.is_floating_point() or getattr(base.support, "is_discrete", False):
        return [value, value + 1]
    if is_known(inner_of(fn), dist.Normal):
        return [value, *(moved(fn, each).expand(fn.shape()) for each in MOVED)]
    with preserve_rng():  # the same random numbers may have made the value
        drawn = fn.sample((3,))
    return [value, next((each for each in drawn if not torch.equal(each, value)), value)]


def dependence(
    model: Model,
    latents: Draws,
    x: Tensor,
    sites: Collection[str],
    values: Mapping[str, Sequence[Tensor]],
) -> dict[str, set[str]]:
    """Others on whose values the distribution of each site depends, all else as it is.

    All combinations are tried; where they are too many, of two values each, or one change of one
    site at a time, to each of its values.

    Args:
        model: Run at the inputs ``x`` with these ``latents``, always by the same random numbers.
        sites: Those that are looked at.
        values: Values of the others.
    """
    sizes = [len(each) for each in values.values()]
    tried = {
        tuple(number if i == axis else 0 for i in range(len(sizes)))
        for axis, size in enumerate(sizes)
        for number in range(size)
    }
    if prod(sizes) > MOST_TRIED:
        sizes = [min(size, 2) for size in sizes]
    if prod(sizes) <= MOST_TRIED:
        tried |= set(product(*map(range, sizes)))
    found = {}
    for numbers in tried:
        picked = zip(values.items(), numbers, strict=True)
        some = {name: each[number] for (name, each), number in picked}
        with quiet(), preserve_rng():
            nodes = trace_of(model, {**latents, **some}, x).nodes
        found[numbers] = {k: [v for _, v in arguments_of(nodes[k]["fn"])] for k in sites}
    depends: dict[str, set[str]] = {site: set() for site in sites}
    for (numbers, now), (axis, name) in product(found.items(), enumerate(values)):
        before = found[(*numbers[:axis], 0, *numbers[axis + 1 :])]
        for site in sites:
            pairs = zip(now[site], before[site], strict=True)
            if not all(a is b or torch.equal(a, b) for a, b in pairs):
                depends[site].add(name)
    return depends


def behind(site: str, depends: Mapping[str, set[str]]) -> set[str]:
    """Sites on which a site depends, itself or through others."""
    found: set[str] = set()
    left = [site]
    while left:
        new = depends.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


class FreeSites:
    """The sites of a model that the posterior does not fix.

    Args:
        model: At any number of rows.
        runs: At two and at three rows.
        latents: The posterior's, under which it ran at two rows, and which of them all rows share.
        x: Inputs ``(N, ...)`` that the teacher has been given.
        of_prior: Whether there is no posterior: latents are drawn as they should be then, and only
            those of finite support are noise for sure.
    """

    def __init__(
        self,
        model: AnyRows,
        runs: tuple[Run, Run],
        latents: Draws,
        shared: Collection[str],
        x: Tensor,
        of_prior: bool,
    ) -> None:
        self.model, self.runs, self.x, self.of_prior = model, runs, x, of_prior
        self.latents, self.shared = latents, {k: v for k, v in latents.items() if k in shared}
        nodes = {name: node for name, node in runs[0].nodes.items() if name not in latents}
        self.nodes = {name: node for name, node in nodes.items() if not is_deterministic(node)}
        self._values: dict[str, Values | None] = {}  # of those that were looked at

    @property
    def fns(self) -> dict[str, Any]:
        """Their distributions at two rows."""
        return {name: node["fn"] for name, node in self.nodes.items()}

    def answered(self, returned: Collection[str]) -> list[str]:
        """Those but for latents behind others; the last, if all may be enumerated or imputed.

        A site that is observed at the training rows alone is a latent behind others, too. A normal
        site among those ``returned`` is a latent only of another one of them.
        """
        infers = {name: node["infer"] for name, node in self.nodes.items()}
        latents = {k for k, infer in infers.items() if infer.get("enumerate") or IMPUTED in infer}
        left: list[str] = []
        for name in reversed(self.nodes):
            if name not in latents:
                left.append(name)
                latents |= {
                    other
                    for other in {*self.behind(name)} | (self.upstream(name) & self.model.redrawn)
                    if other not in returned or name in returned or self._is_finite(other)
                }
        of_rows = [name for name in left[::-1] if self.grows(name)]
        return of_rows or left[::-1] or list(self.nodes)[-1:]

    def _apart(self, latents: Collection[str]) -> frozenset[str]:
        """Sites that depend on none of these latents, so that one value of them is enough."""
        infers = {k: node["infer"] for k, node in self.nodes.items() if k not in latents}
        seen = {k for k in infers if not (IMPUTED in infers[k] and self.nodes[k]["is_observed"])}
        return frozenset(name for name in seen if not {*self.behind(name)} & {*latents})

    def grows(self, name: str) -> bool:
        """Whether a site has a value for each row."""
        two, three = (run.nodes[name]["value"].shape for run in self.runs)
        return two != three

    def behind(self, site: str) -> list[str]:
        """Latents on which a site depends, itself or through others.

        Missing values may be those of other rows than were looked at.
        """
        found = self.upstream(site) | {
            name
            for name, node in self.nodes.items()
            if IMPUTED in node["infer"] and name != f"{site}_unobserved" and self.values(name)
        }
        return [k for k, node in self.nodes.items() if k in found and not node["is_observed"]]

    def upstream(self, site: str) -> set[str]:
        """Sites on which a site depends, observed ones too."""
        return behind(site, self._depends) - {site}

    @cached_property
    def _depends(self) -> dict[str, set[str]]:
        tried = {
            name: node
            for name, node in self.nodes.items()
            if not self.of_prior or node["is_observed"] or self.values(name)
        }
        if len(self.nodes) < 2 or not tried:
            return {}
        values = {name: other_values(node) for name, node in tried.items()}
        few = few_rows(self.x, 2)
        return dependence(self.model, self.latents, few, self.nodes, values)

    def _is_finite(self, name: str) -> bool:
        values = self.values(name)
        return values is not None and not values.normal

    def values(self, name: str) -> Values | None:
        """Those over which a latent that each row has one of is summed."""
        if name not in self._values:
            self._values[name] = self._find_values(name)
        return self._values[name]

    def _find_values(self, name: str) -> Values | None:
        found = row_values(name, self.runs, partial(self._at_other_rows, name))
        infer = self.nodes[name]["infer"] if name in self.nodes else {}
        # What is missing of the inputs is not noise of the row: it could be known.
        missing = IMPUTED in infer and infer.get("epistemic") is not False
        return None if found is not None and found.normal and (self.of_prior or missing) else found

    def _at_other_rows(self, name: str) -> Any:
        """A site at several inputs that differ, ``None`` where they are alike."""
        most = min(MOST_ROWS, self.model.max_rows or MOST_ROWS)
        some = self.x[:: max(1, len(self.x) // most)][:most]
        if bool((some == some[:1]).all()):
            return None
        with quiet(), preserve_rng():
            return trace_of(self.model, self.shared, some).nodes[name]

    def check_names(self, samples: Draws, observed: Collection[str]) -> None:
        """Refuse samples of names that the model lacks, while it has latents without samples.

        Where it has none, samples of other names, as of latents that score the labels, change
        nothing.
        """
        names = {k for name in observed for k in self.behind(name)} - set(observed)
        free = [name for name in names if not self.grows(name)]
        for name in samples if free and not self.of_prior else ():
            if name not in self.runs[0].nodes:
                raise SamplesError(unknown_name(name, free))

    def summed_out(self, observed: Collection[str]) -> tuple[Mixture, dict[str, str]]:
        """Latents behind the answer that are summed out, and what becomes of all of them.

        A warning names each that is drawn anew, but for those of several rows together, as a
        process has, and those marked ``infer={"epistemic": True}``: their spread is meant.
        """
        found = {k for name in observed for k in self.behind(name)} - set(observed)
        names = [name for name in self.nodes if name in found]
        values = {name: each for name in names if (each := self.values(name)) is not None}
        summed = affordable(values)
        mixture = Mixture(summed, self._apart(summed) if summed else frozenset())
        if self.of_prior:
            return mixture, {}
        said = {}
        for name in names:
            node, of_rows = self.nodes[name], self.grows(name)
            said[name] = SUMMED if name in summed else DRAWN if of_rows else SHARED
            more = self.runs[1].nodes[name]["fn"]
            jointly = of_rows and batch_of(node["fn"]) == batch_of(more)
            infer = node["infer"]
            meant = jointly or name in values or IMPUTED in infer or infer.get("epistemic")
            if not meant:
                warn_user(_of_rows(name) if of_rows else _of_all(name))
        return mixture, said


def _of_all(name: str) -> str:
    return (
        f"the posterior lacks the latent '{name}', which all rows share: it is drawn from its "
        "prior for every draw, and its spread counts as epistemic. Put its draws among the "
        "posterior samples; one that NUTS summed out has them from pyro.infer.infer_discrete. If "
        'it is meant to be drawn, as that of a new group, say so at its site: infer={"epistemic": '
        "True}."
    )


def _of_rows(name: str) -> str:
    return (
        f"the posterior lacks the latent '{name}', of which each row has one: it is drawn anew for "
        "every draw, and its spread counts as epistemic, as that of a process at the row must. "
        "Noise of the row is aleatoric: write loc + scale * z with z ~ Normal(0, 1), which is "
        'summed out, or mark the normal site infer={"epistemic": False}; infer={"epistemic": '
        "True} says that it is meant."
    )
