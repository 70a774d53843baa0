"""Trunks by kind, from their descriptions."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from pyro_opu.guides.affine import AffineTrunk
from pyro_opu.guides.moments import TRUNKS as TOLD
from pyro_opu.guides.networks import Convolutions, Indexed, Perceptron

__all__ = ["build_trunk"]

TRUNKS = {**TOLD, AffineTrunk.kind: AffineTrunk}
_SIZED = {"perceptron": Perceptron, "convolutions": Convolutions}


def build_trunk(config: dict[str, Any]) -> tuple[nn.Module, int]:
    """Build the trunk of a description; returns it with the width of its features."""
    if config["kind"] in TRUNKS:
        trunk = TRUNKS[config["kind"]](config)
        return trunk, trunk.num_features
    shape, hidden = tuple(config["input_shape"]), tuple(config["hidden"])
    activation = config.get("activation", "relu")  # the only one, before it was written down
    if config["kind"] == "indexed":
        return Indexed(shape, hidden, activation, config["indices"]), hidden[-1]
    return _SIZED[config["kind"]](shape, hidden, activation), (math.prod(shape), *hidden)[-1]
