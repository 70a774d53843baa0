"""Names of dimensions, read off the plates of a Pyro model's run."""

from __future__ import annotations

from typing import Any

from pyro_opu.interop.groups import Arrays
from pyro_opu.teachers.sites import site_kind

__all__ = ["plate_names", "probs_name", "site_dims"]


def site_dims(
    sites: dict[str, Any], observed: dict[str, Any], groups: dict[str, Arrays]
) -> dict[str, list[str]]:
    """Names of dimensions: plates, for latent and observed sites, "probs" and the inputs.

    Args:
        sites: Sample sites of one run of the model, name -> node of the trace.
        observed: The observed ones among them.
        groups: Arrays of the groups "observed_data" and "constant_data".

    Returns:
        Variable -> names of its axes after chain and draw.
    """
    names = {name: plate_names(name, node) for name, node in sites.items()}
    classes = [name for name in observed if site_kind(observed[name]["fn"]) is not None]
    for name in classes:
        probs = probs_name(name, classes)
        names[probs] = [*names[name], probs.replace("probs", "class")]
    rows = {groups["observed_data"][n].shape[0]: names[n][0] for n in observed if names[n]}
    plates = {plate for given in names.values() for plate in given}
    for name, array in groups["constant_data"].items():
        if array.ndim and len(array) in rows and not plates & set(groups["constant_data"]):
            names.setdefault(name, [rows[len(array)]])
    return names


def probs_name(site: str, classes: list[str]) -> str:
    """Name under which the class probabilities of a site go.

    Args:
        site: The site.
        classes: All sites that have classes.

    Returns:
        "probs", or ``probs_`` and the site where there are several.
    """
    return "probs" if len(classes) == 1 else f"probs_{site}"


def plate_names(name: str, node: Any) -> list[str]:
    """For every batch dimension of a site the plate's name, or else the site's and a number.

    Args:
        name: The site.
        node: Its node in a trace.

    Returns:
        As many names as the site's batch shape has axes.
    """
    shape = node["fn"].batch_shape
    frames = {frame.dim: frame for frame in node["cond_indep_stack"] if frame.vectorized}
    return [
        frames[dim - len(shape)].name
        if dim - len(shape) in frames and frames[dim - len(shape)].size == size
        else f"{name}_dim_{dim}"
        for dim, size in enumerate(shape)
    ]
