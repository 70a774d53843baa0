"""The sites that a student gives back: names, shapes and dtypes as in ``Predictive``."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch import Tensor

from pyro_opu.checks import ArgumentError, ArgumentTypeError
from pyro_opu.parts.layout import SiteLayout
from pyro_opu.parts.outcome import Outcome
from pyro_opu.programs.program import Program
from pyro_opu.programs.trace import is_deterministic
from pyro_opu.utils.warnings import warn_user

__all__ = ["layouts_of"]


def layouts_of(
    outcome: Outcome,
    x: Tensor,
    return_sites: Collection[str] | None = None,
    program: Program | None = None,
    observed: Collection[str] = (),
) -> tuple[SiteLayout, ...]:
    """The sites that a student of this outcome gives back.

    A teacher that is no Pyro model has "obs" and the outcome's extra site. Without
    ``return_sites``, or with an empty one, they are those of the ``Predictive``.

    Args:
        outcome: What is observed.
        x: Inputs, whose dtype a real y has.
        return_sites: Names of the sites asked for.
        program: The model that is observed, at its sites ``observed``.
    """
    if isinstance(return_sites, str) or not isinstance(return_sites or (), Collection):
        raise ArgumentTypeError(
            f"`return_sites` must be a list or tuple of site names; got {return_sites!r}. "
            f"For one site pass [{str(return_sites)!r}]."
        )
    extra = outcome.extra(_dtype(x))
    if program is not None:
        return _of_program(outcome, program, tuple(observed), return_sites, extra)
    known = {site.name: site for site in outcome.layouts_of_obs(_dtype(x))}
    return _named(outcome, return_sites or [*known], {**known, extra.name: extra}, set())


def _of_program(
    outcome: Outcome,
    program: Program,
    observed: tuple[str, ...],
    return_sites: Collection[str] | None,
    extra: SiteLayout,
) -> tuple[SiteLayout, ...]:
    nodes, predictive = program.runs[0].nodes, program.predictive
    possible = _possible(outcome, program, observed)
    if extra.name and extra.name not in nodes:
        possible = {**possible, extra.name: extra}
    asked = return_sites or predictive.return_sites
    if asked:
        possible |= _returned(outcome, program, observed) if "_RETURN" in asked else {}
        random = {name for name, node in nodes.items() if not is_deterministic(node)}
        latent = (random | set(predictive.posterior_samples)) - set(observed)
        return _named(outcome, asked, possible, latent)
    # As Predictive chooses: all sites with a guide or return_sites=None, else those not given.
    everything = predictive.guide is not None or predictive.return_sites is None
    given = set() if everything else set(predictive.posterior_samples)
    default = [name for name in nodes if name not in given]
    left_out = sorted(set(default) - set(possible))
    if left_out:
        warn_user(
            f"one pass cannot give the sites {left_out}, which this Predictive returns by "
            f"default; they are left out. Pass return_sites={list(observed)!r} to say so "
            "yourself."
        )
    return tuple(possible[name] for name in default if name in possible)


def _named(
    outcome: Outcome, names: Iterable[str], possible: dict[str, SiteLayout], latent: set[str]
) -> tuple[SiteLayout, ...]:
    """The layouts of the sites asked for."""
    for name in names:
        if name in latent:
            raise ArgumentError(
                f"`return_sites` asks for '{name}', a latent site: the student learns the "
                f"distribution of {outcome.words.learned} that the posterior induces, not the "
                f"posterior, so one pass cannot give it. Ask for some of {list(possible)}, or read "
                "the posterior samples."
            )
        if name not in possible:
            raise ArgumentError(
                f"`return_sites` asks for {name!r}, which is neither the observed site nor a "
                f"deterministic site that holds {outcome.words.held}; one pass can give some of "
                f"{list(possible)}."
            )
    return tuple(possible[name] for name in names)


def _possible(
    outcome: Outcome, program: Program, observed: tuple[str, ...]
) -> dict[str, SiteLayout]:
    """Layouts of the model's sites that one pass can give."""
    two, three = program.runs
    kinds = outcome.kinds(two.nodes, observed)
    layouts = {}
    for name in [name for name in two.nodes if name in kinds]:
        sizes = zip(two.shape(name), three.shape(name), strict=True)
        shape = tuple(-1 if a != b else a for a, b in sizes)
        if -1 not in shape:
            raise ArgumentError(
                f"`source`'s site '{name}' must hold a value for every input; got shape {shape} "
                "whatever their number. Put it in pyro.plate('data', len(x))."
            )
        kind, of = kinds[name]
        layouts[name] = SiteLayout(name, kind, _dtype(two.nodes[name]["value"]), shape, of)
    return layouts


def _returned(
    outcome: Outcome, program: Program, observed: tuple[str, ...]
) -> dict[str, SiteLayout]:
    """Layout of "_RETURN", where the model returns such a site, or what one would hold."""
    nodes = program.runs[0].nodes
    value, more = (run.returned for run in program.runs)
    if not isinstance(value, Tensor) or not isinstance(more, Tensor) or value.ndim != more.ndim:
        return {}
    same = (name for name in observed if nodes[name]["value"] is value)
    name = next(same, "_RETURN")
    nodes = {"_RETURN": {"value": value, "infer": {"_deterministic": True}}, **nodes}
    found = outcome.kinds(nodes, observed).get(name)
    shape = tuple(-1 if a != b else a for a, b in zip(value.shape, more.shape, strict=True))
    if found is None or -1 not in shape:
        return {}
    return {"_RETURN": SiteLayout("_RETURN", found[0], _dtype(value), shape, found[1])}


def _dtype(value: Tensor) -> str:
    """Such as "float32"."""
    return str(value.dtype).removeprefix("torch.")
