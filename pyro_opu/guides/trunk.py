"""Students that are one trunk and one linear head."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from pyro_opu.checks import positive_int
from pyro_opu.distributions import Answer
from pyro_opu.guides.networks import Convolutions, Perceptron, build_trunk, default_trunk_config


def check_head(trunk: Any, num_features: Any, num_classes: Any) -> None:
    """Check what a trunk and a linear head on it are made of.

    Args:
        trunk: A module.
        num_features: F, the width of its output.
        num_classes: C >= 2.

    Raises:
        TypeError: ``trunk`` is not a module.
        ValueError: ``num_features`` or ``num_classes`` is not an integer, or too small.
    """
    if not isinstance(trunk, nn.Module):
        raise TypeError(
            "`trunk` must be an nn.Module x -> features (N, F); got "
            f"{type(trunk).__name__}. For a linear head on x itself pass nn.Flatten()."
        )
    positive_int("num_features", num_features)
    positive_int("num_classes", num_classes, 2, "Two classes are [1 - p, p].")


class TrunkGuide(nn.Module):
    """A trunk, a linear head, and what the head's outputs mean; a family says the last.

    Args:
        trunk: Any module ``x (N, ...) -> features (N, F)``.
        num_features: F.
        num_classes: C >= 2.

    Raises:
        TypeError: ``trunk`` is not a module.
        ValueError: fewer than two classes, or no features.
    """

    #: Name in a saved file, and for ``distill(guide=...)``.
    kind: ClassVar[str]
    config: dict[str, Any] | None = None

    def __init__(self, trunk: nn.Module, num_features: int, num_classes: int) -> None:
        super().__init__()
        check_head(trunk, num_features, num_classes)
        self.trunk = trunk
        self.num_classes = num_classes
        self.head = nn.Linear(num_features, self.num_outputs(num_classes))

    def num_outputs(self, num_classes: int) -> int:
        """Numbers that the head gives for every input."""
        raise NotImplementedError

    def answer(self, outputs: Tensor) -> Answer:
        """The distribution that the head's outputs ``(N, num_outputs)`` stand for."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """What else the constructor takes, by name; as JSON."""
        return {}

    def forward(self, x: Tensor) -> Answer:
        """The distribution at ``x``: batch shape ``(N,)``, event shape ``(C,)``."""
        return self.answer(self.head(self.trunk(x)))

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TrunkGuide:
        """Build the guide that ``guide.config`` describes, with fresh weights."""
        trunk, features = build_trunk(config["trunk"])
        guide = cls(trunk, features, config["num_classes"], **config.get("options", {}))
        guide.config = {**config, "kind": cls.kind, "options": guide.options()}
        return guide

    @classmethod
    def for_inputs(
        cls,
        x: Tensor,
        num_classes: int,
        *,
        hidden: tuple[int, ...] | None = None,
        **options: Any,
    ) -> TrunkGuide:
        """A guide sized to the inputs.

        Args:
            x: Inputs ``(N, *input_shape)``; their mean and scale standardise what the guide sees.
            num_classes: C.
            hidden: Widths of the hidden layers; by default chosen by the input's size.
            **options: What else the constructor takes.

        Returns:
            The guide, with fresh weights drawn from torch's default generator.
        """
        trunk = default_trunk_config(x, hidden)
        guide = cls.from_config({"trunk": trunk, "num_classes": num_classes, "options": options})
        if isinstance(guide.trunk, (Perceptron, Convolutions)):
            guide.trunk.fit_scale(x)
        return guide.to(x.device)
