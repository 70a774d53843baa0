"""ArviZ's groups as plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from torch import Tensor

#: Variables of one group by name.
Arrays = dict[str, np.ndarray]


class Wanted(NamedTuple):
    """What was asked for; see :func:`pyro_opu.to_inference_data`."""

    log_likelihood: bool
    posterior_predictive: bool
    probs: bool
    num_draws: int | None
    num_chains: int


class Groups(NamedTuple):
    """What is to be converted.

    Attributes:
        values: Group -> variable -> array; draws begin with the axes (chain, draw).
        dims: Variable -> names of its other axes, from the first on.
        note: What the chains are, in words: the attribute "chains" of the posterior.
    """

    values: dict[str, Arrays]
    dims: dict[str, list[str]]
    note: str


def arrays(values: Mapping[str, Tensor]) -> Arrays:
    """Tensors as NumPy arrays, by the same names."""
    return {name: value.detach().cpu().numpy() for name, value in values.items()}
