"""What is said of a source beside it: how it is called, and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from pyro_opu.checks import check_callable, instance_of, positive_int

__all__ = ["SourceOptions"]


@dataclass(frozen=True)
class SourceOptions:
    """The source of a teacher, and the arguments that :func:`~pyro_opu.as_teacher` took with it."""

    source: Any = None
    site: str | None = None
    inputs: Callable[..., Tensor] | None = None
    arguments: Callable[[Any], Any] | None = None
    return_sites: Sequence[str] | None = None
    num_samples: int | None = None

    def __post_init__(self) -> None:
        if self.site is not None:
            instance_of("site", self.site, str, "the name of a site")
        if self.inputs is not None:
            check_callable("inputs", self.inputs, "(*args, **kwargs) -> x")
        if self.arguments is not None:
            check_callable("arguments", self.arguments, "x -> (args, kwargs)")
        if self.num_samples is not None:
            positive_int("num_samples", self.num_samples)

    @property
    def empty(self) -> bool:
        """Whether nothing was said beside the source."""
        return self == SourceOptions(self.source)

    def updated(self, new: SourceOptions) -> SourceOptions:
        """These, and what a later call has said beside them."""
        names = [field.name for field in fields(new) if field.name != "source"]
        said = {name: getattr(new, name) for name in names if getattr(new, name) is not None}
        return replace(self, **said)
