"""ArviZ's groups as plain arrays, and the one place that knows ArviZ's versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from pyro_opu.checks import check_mapping

__all__ = ["Arrays", "Groups", "Wanted", "arrays", "assembled", "found_arviz"]

#: Variables of one group by name.
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Wanted:
    """What was asked for; see :func:`pyro_opu.to_inference_data`.

    Attributes:
        log_likelihood: Whether the group of that name is wanted.
        posterior_predictive: Whether draws of the observed sites are.
        probs: Whether the class probabilities are among these.
        num_draws: S, or ``None`` for the source's own number.
        num_chains: Into how many chains the draws are cut.
    """

    log_likelihood: bool
    posterior_predictive: bool
    probs: bool
    num_draws: int | None
    num_chains: int


@dataclass(frozen=True)
class Groups:
    """What is to be converted.

    Attributes:
        values: Group -> variable -> array; draws begin with the axes (chain, draw).
        dims: Variable -> names of its other axes, from the first on.
        note: What the chains are, in words: the attribute "chains" of the posterior.
    """

    values: dict[str, Arrays]
    dims: dict[str, list[str]]
    note: str


def found_arviz() -> Any:
    """The module ``arviz``, of either generation.

    Returns:
        The module.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import arviz
    except ImportError as error:
        raise ImportError(
            "to_inference_data needs ArviZ, which is not installed: pip install 'pyro-opu[arviz]'."
        ) from error
    return arviz


def assembled(
    arviz: Any,
    groups: Groups,
    coords: Mapping[str, Sequence[Any]] | None,
    dims: Mapping[str, Sequence[str]] | None,
) -> Any:
    """``InferenceData`` of ArviZ 0.x, groups by keyword; ``DataTree`` of 1.x, groups nested.

    Args:
        arviz: The module.
        groups: What is to be converted; empty groups are left out.
        coords: Labels of dimensions, as ArviZ takes them.
        dims: Names of dimensions that go before those of ``groups``.

    Returns:
        What ``arviz.from_dict`` makes of them.

    Raises:
        TypeError: ``coords`` or ``dims`` is not a dict.
        ValueError: they do not fit the variables' shapes.
    """
    _check_named("coords", coords)
    _check_named("dims", dims)
    full = {group: values for group, values in groups.values.items() if values}
    names = {name: list(value) for name, value in {**groups.dims, **(dims or {})}.items()}
    newer = int(arviz.__version__.split(".")[0]) >= 1
    try:
        given = ((full,), {}) if newer else ((), full)
        found = arviz.from_dict(*given[0], **given[1], coords=coords, dims=names)
    except (ValueError, KeyError, IndexError) as error:  # of xarray
        raise ValueError(
            f"`coords` and `dims` must fit the variables' shapes; got {coords!r} and {dims!r}: "
            f"{str(error).splitlines()[0]}. Give a name to each axis, a value to each entry."
        ) from error
    found["posterior"].attrs["chains"] = groups.note
    return found


def _check_named(argument: str, named: Any) -> None:
    advice = f'Write {argument}={{"class": [...]}}.'
    check_mapping(argument, named, "name -> sequence", advice)


def arrays(values: Mapping[str, Tensor]) -> Arrays:
    """The same tensors in NumPy.

    Args:
        values: Tensors of any shape, on any device.

    Returns:
        Arrays of the same shapes and dtypes, by the same names.
    """
    return {name: value.detach().cpu().numpy() for name, value in values.items()}
