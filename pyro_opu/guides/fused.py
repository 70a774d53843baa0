"""A guide in as few operations as it takes: no standardisation of its own, one head."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.distributions.base import soft_clamp
from pyro_opu.distributions.dirichlet import LOG_CONCENTRATION_RANGE
from pyro_opu.guides.base import HeadGuide
from pyro_opu.guides.dirichlet import PredictiveGuide, answer_of, merged, merged_answer, normalised
from pyro_opu.guides.joint import JointGuide
from pyro_opu.guides.networks import DefaultTrunk, Standardize
from pyro_opu.guides.plug_in import NetworkTrunk

__all__ = ["fused", "is_fused"]

#: Classes from which on two heads are quicker at many rows than one: a product of 1,001 columns
#: takes 1.4 times as long as one of 1,000.
MANY_CLASSES = 256


class Folded(Standardize):
    """Standardisation that the weights of the next layer do; it still says where inputs lie."""

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.shift.dtype)

    def folded(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The weights and biases themselves."""
        return weight, bias, torch.zeros_like(self.shift[len(self.shift) - self.last :])


class OneHeadGuide(HeadGuide):
    """A :class:`~pyro_opu.PredictiveGuide` of one trunk, whose two heads are one of C + 1 outputs.

    The last output is the recalibrated log concentration, before its soft clamp.
    """

    form = "alpha(x) = h(x) exp(g(x)), one trunk, one head"

    def __init__(self, guide: PredictiveGuide) -> None:
        super().__init__()
        self.trunk, self.law = guide.trunk, guide.law
        heads = guide.mean_head, guide.concentration_head
        self.head = copy.deepcopy(guide.mean_head)
        self.head.out_features += 1
        for name in ("weight", "bias"):
            rows = torch.cat([getattr(head, name).detach() for head in heads])
            setattr(self.head, name, nn.Parameter(rows))
        if isinstance(guide.trunk, NetworkTrunk) and guide.trunk.merges():
            for place, part in enumerate(merged(guide.trunk, *heads, guide.shift)):
                self.register_buffer(f"merged{place}", part.detach(), persistent=False)

    def forward(self, x: Tensor) -> Any:
        """The answer at ``x``: batch shape ``(N,)``, event shape ``(C,)``."""
        trunk, parts = self.trunk, tuple(self.buffers(recurse=False))
        if parts and isinstance(trunk, NetworkTrunk):  # not what stands for it
            return merged_answer(self.law, trunk, x, parts)
        outputs = self.head(trunk(x))
        log_concentration = soft_clamp(outputs[..., -1], *LOG_CONCENTRATION_RANGE)
        return answer_of(self.law, normalised(outputs[..., :-1]), log_concentration)


@torch.no_grad()
def fused(guide: nn.Module, *, trunks: bool = True) -> nn.Module:
    """A frozen copy of a guide that gives the same answers, to rounding, in fewer operations.

    The standardisation of a default network goes into its first layer, where ``MOST_OFF``
    allows it and no zeros are padded to inputs that are not centred; recalibration and, of one
    trunk, both heads of a :class:`~pyro_opu.PredictiveGuide` of fewer than 256 classes become one
    linear layer. All else stays as it is. ``trunks=False`` leaves the networks alone, as half
    precision needs.
    """
    if isinstance(guide, JointGuide):
        return JointGuide(fused(guide.marginal, trunks=trunks), copy.deepcopy(guide.heads))
    guide = copy.deepcopy(guide).requires_grad_(False).eval()
    for module in list(guide.modules()) if trunks else ():
        if isinstance(module, DefaultTrunk) and _foldable(module):
            _fold(module)
    if type(guide) is PredictiveGuide and _linear_heads(guide):
        guide.fold_calibration()
        if guide.shared and guide.mean_head.out_features < MANY_CLASSES:
            return OneHeadGuide(guide).requires_grad_(False).eval()
    return guide


def is_fused(guide: nn.Module) -> bool:
    """Whether a part of the guide has another form than its description says."""
    return any(isinstance(each, (Folded, OneHeadGuide)) for each in guide.modules())


def _linear_heads(guide: PredictiveGuide) -> bool:
    """Whether nobody has put anything else in their place."""
    return type(guide.mean_head) is type(guide.concentration_head) is nn.Linear


def _read_by_first(trunk: DefaultTrunk) -> str:
    """Name of the standardisation that the first of ``layers`` reads, and nothing else does.

    A trunk with a ``forward`` of its own says so by an attribute ``read_by_first``.
    """
    plain = type(trunk).forward is DefaultTrunk.forward
    return "standardize" if plain else getattr(trunk, "read_by_first", "")


def _foldable(trunk: DefaultTrunk) -> bool:
    """Whether the first layer can standardise without a loss of digits."""
    old = getattr(trunk, _read_by_first(trunk), None)
    first: Any = trunk.layers[0] if len(trunk.layers) else None
    if (
        type(old) is not Standardize
        or type(first) not in (nn.Linear, nn.Conv2d)
        or first.bias is None
        or first.weight.dtype not in (torch.float32, torch.float64)
        or (isinstance(first, nn.Conv2d) and (first.padding == "same" or any(first.padding)))
    ):
        return False
    return old.is_near()


def _fold(trunk: DefaultTrunk) -> None:
    """Let the first layer standardise: W' = W diag(scale), b' = b - W' location."""
    name = _read_by_first(trunk)
    old: Standardize = getattr(trunk, name)
    first: Any = copy.deepcopy(trunk.layers[0])  # networks may share it
    weight: Tensor = first.weight
    axes = (-1, *(1 for _ in weight.shape[2:]))  # those of the channels, or of the features
    weight.copy_(weight.double() * old.scale.double().reshape(axes))
    # With the weights as they are rounded, the location itself maps to the bias.
    shift = (weight.double() * old.location().reshape(axes)).flatten(1).sum(1)
    first.bias.copy_(first.bias.double() - shift)
    trunk.layers = nn.Sequential(first, *trunk.layers[1:])
    setattr(trunk, name, Folded(tuple(old.shift.shape)).to(old.shift))
    getattr(trunk, name).last = old.last
    getattr(trunk, name).load_state_dict(old.state_dict())  # near, as the old one
