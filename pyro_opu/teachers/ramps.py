"""A network for answers that are constant in pieces, as those of trees are."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn

from pyro_opu.programs.plug_in import PlugIn

__all__ = ["ramp_network"]

#: Ramps of all columns together, about, and of one; rows that they are taken from.
RAMPS, MOST_RAMPS, ROWS = 512, 32, 2**14
#: Units of each hidden layer, of few columns and of many.
WIDTHS, FEW = (128, 256), 16


def ramp_network(x: Tensor, num_classes: int) -> PlugIn:
    """An untrained network that reads every column through ramps between its quantiles.

    Trees cut a column between values of it, many where it has many, however far apart. A ramp rises
    from -1 to 1 between two quantiles of the distinct values, so what changes there is nearly
    linear in it, and beyond the values nothing changes, as with trees. A perceptron on these
    features has a third of the KL of one on the columns themselves (forests on Spambase).

    Args:
        x: Inputs ``(N, D)``.
        num_classes: C.

    References:
        Gorishniy, Rubachev and Babenko (2022), On embeddings for numerical features in tabular deep
        learning, section 3.2 (piecewise linear encoding).
    """
    column, low, slope = _ramps(x[:ROWS].detach())

    def log_probs(weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        values = x.index_select(1, column.to(x.device)) - low.to(x)
        found = (values * slope.to(x)).clamp(0.0, 1.0) * 2.0 - 1.0
        for number in range(2):
            layer = nn.functional.linear(found, weights[f"w{number}"], weights[f"b{number}"])
            found = nn.functional.silu(layer)
        return nn.functional.linear(found, weights["w2"], weights["b2"]).log_softmax(-1)

    width = WIDTHS[x.shape[1] > FEW]
    sizes = enumerate(pairwise((len(column), width, width, num_classes)))
    layers = {number: nn.Linear(*size) for number, size in sizes}
    weights = {f"w{number}": layer.weight.detach() for number, layer in layers.items()}
    weights |= {f"b{number}": layer.bias.detach() for number, layer in layers.items()}
    begun = {name: value.to(x) for name, value in weights.items()}
    return PlugIn(log_probs, [begun], untrained=True)


def _ramps(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Column, beginning and slope of every ramp."""
    most = min(MOST_RAMPS, max(2, RAMPS // x.shape[1]))
    columns, ends = [], []
    for index, values in enumerate(x.T):
        distinct = values.unique()
        places = torch.linspace(0, len(distinct) - 1, min(most + 1, len(distinct)))
        knots = distinct[places.round().long()]
        ends.append(torch.stack([knots[:-1], knots[1:]]))
        columns.append(torch.full((len(knots) - 1,), index))
    low, high = torch.cat(ends, 1)
    return torch.cat(columns), low, (high - low).reciprocal()
