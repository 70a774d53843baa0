"""Arguments of ``distill``, checked by name before any work."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from pyro_opu.checks import (
    check_bool,
    check_callable,
    check_device,
    check_path,
    check_seed,
    instance_of,
    positive_float,
    positive_int,
)
from pyro_opu.distributed import together
from pyro_opu.transfer import TransferPolicy

__all__ = ["checked_arguments"]

P = ParamSpec("P")
R = TypeVar("R")
#: ``(name, value) ->`` the value, or another of the same meaning; raises where it is none.
Check = Callable[[str, Any], Any]


def checked_arguments(train: Callable[P, R]) -> Callable[P, R]:
    """A function whose arguments named in :data:`CHECKS` are checked when it is called.

    Gradients are on inside, whatever mode the caller is in: it trains. Where several ranks call it,
    an argument that one of them refuses stops them all.
    """
    signature = inspect.signature(train)

    @functools.wraps(train)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.inference_mode(False), torch.enable_grad():
            with together():  # what one rank refuses stops the others
                try:
                    given = signature.bind(*args, **kwargs)
                except TypeError:
                    return train(*args, **kwargs)  # Python says what is missing or unknown
                for name, value in given.arguments.items():
                    default = signature.parameters[name].default
                    if name in CHECKS and (value is not None or default is not None):
                        given.arguments[name] = CHECKS[name](name, value)
            return train(*given.args, **given.kwargs)

    return checked


def _guide(name: str, guide: Any) -> nn.Module | str:
    """The name of a family, or a module that can be trained."""
    if isinstance(guide, str):
        return guide
    expected = "the name of a family or an nn.Module x -> Dirichlet"
    advice = (
        "A function or a class has no weights to train: pass an object, such as "
        "PredictiveGuide.for_inputs(x, num_classes)."
    )
    instance_of(name, guide, nn.Module, expected, advice)
    for weight in guide.parameters():
        if weight.is_meta or weight.is_inference():
            where = "on the meta device" if weight.is_meta else "made under inference_mode"
            raise ValueError(
                f"`{name}` must have weights that can be trained; got some {where}. Build it anew "
                "on a device, in the normal mode."
            )
    return guide


def _transfer(name: str, policy: Any) -> TransferPolicy:
    advice = (
        "Pass for example Mixture([(0.7, HeldOut()), (0.3, Jitter())]); inputs of a rule of your "
        "own come from a subclass with _draw(n), or from a DataLoader as `x` with HeldOut()."
    )
    return instance_of(name, policy, TransferPolicy, "a pyro_opu.transfer.TransferPolicy", advice)


def _file(name: str, path: Any) -> str | os.PathLike[str]:
    """The path of a file in a folder that exists."""
    whole = check_path(name, path)
    if whole.is_dir():
        raise ValueError(
            f"`{name}` must be the path of a file; got the folder {str(whole)!r}. Add a file name."
        )
    if not whole.parent.is_dir():
        raise FileNotFoundError(
            f"`{name}` must lie in an existing folder; {str(whole.parent)!r} does not exist. "
            "Create it first."
        )
    return path


def _trainable(_: str, x: Any) -> Any:
    """``x``, or a copy of a tensor made under ``inference_mode``, which no gradient may use."""
    return x.clone() if isinstance(x, Tensor) and x.is_inference() else x


def _site(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(
        f"`{name}` must be the name of a site; got {value!r}. Pass for example {name}='obs'."
    )


#: Checks by the argument's name. An argument whose default is None may be None.
CHECKS: dict[str, Check] = {
    "x": _trainable,
    "guide": _guide,
    "transfer": _transfer,
    "num_steps": positive_int,
    "batch_size": positive_int,
    "num_draws": positive_int,
    "learning_rate": positive_float,
    "warm_start": check_bool,
    "recalibrate": check_bool,
    "seed": lambda name, value: check_seed(value, name),
    "progress": check_bool,
    "device": lambda name, value: check_device(value, name),
    "site": _site,
    "inputs": lambda name, value: check_callable(name, value, "(*args, **kwargs) -> x"),
    "num_samples": positive_int,
    "checkpoint": _file,
    "evaluate_every": positive_int,
    "accumulate": positive_int,
}
