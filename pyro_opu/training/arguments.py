"""Arguments of ``distill``, checked by name before any work."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from pyro_opu.checks import (
    ArgumentError,
    check_bool,
    check_callable,
    check_device,
    check_seed,
    instance_of,
    one_of,
    positive_float,
    positive_int,
)
from pyro_opu.distributed import together
from pyro_opu.predictive import OnePassPredictive
from pyro_opu.rng import full_precision
from pyro_opu.training.options import Training
from pyro_opu.training.tuned import EFFORTS, Effort
from pyro_opu.transfer import TransferPolicy
from pyro_opu.utils.files import placed

P = ParamSpec("P")
R = TypeVar("R")
#: ``(name, value) ->`` the value, possibly converted; raises where it is not valid.
Check = Callable[[str, Any], Any]


def checked_arguments(train: Callable[P, R]) -> Callable[P, R]:
    """Check the arguments named in :data:`CHECKS` at every call, and run it with gradients on
    and without an autocast of the caller's.

    Where several ranks call it, an argument that one of them refuses stops them all.
    """
    signature = inspect.signature(train)

    @wraps(train)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.inference_mode(False), torch.enable_grad(), full_precision():
            with together():
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
    expected = "the name of a family or an nn.Module x -> Dirichlet"
    advice = (
        "A function or a class has no weights to train: pass an object, such as "
        "PredictiveGuide.for_inputs(x, num_classes)."
    )
    instance_of(name, guide, (str, nn.Module), expected, advice)
    for weight in () if isinstance(guide, str) else guide.parameters():
        if weight.is_meta or weight.is_inference():
            where = "on the meta device" if weight.is_meta else "made under inference_mode"
            raise ArgumentError(
                f"`{name}` must have weights that can be trained; got some {where}. Build it anew "
                "on a device, in the normal mode."
            )
    return guide


def _effort(name: str, effort: object) -> Effort | float:
    """A key of ``EFFORTS``, or seconds."""
    if isinstance(effort, str):
        return one_of(name, effort, EFFORTS, "Or pass a number of seconds.")
    return positive_float(name, effort, f"It is a number of seconds, or one of {list(EFFORTS)}.")


def _trainable(_: str, x: object) -> Any:
    """Copy a tensor made under ``inference_mode``, which no gradient may use."""
    return x.clone() if isinstance(x, Tensor) and x.is_inference() else x


#: Checks by the argument's name. An argument whose default is None may be None.
CHECKS: dict[str, Check] = {
    "x": _trainable,
    "guide": _guide,
    "transfer": partial(
        instance_of,
        kind=TransferPolicy,
        expected="a pyro_opu.transfer.TransferPolicy",
        advice="Pass for example Mixture([(0.7, HeldOut()), (0.3, Jitter())]); for inputs of your "
        "own pass a subclass with _draw(n), or a DataLoader as `x` with HeldOut().",
    ),
    "start": partial(
        instance_of,
        kind=OnePassPredictive,
        expected="a student that `distill` has made",
        advice="A guide to go on from is `guide=copy.deepcopy(guide)`.",
    ),
    "effort": _effort,
    "num_steps": positive_int,
    "seed": lambda name, value: check_seed(value, name),
    "progress": check_bool,
    "device": lambda name, value: check_device(value, name),
    "checkpoint": lambda name, value: placed(value, name),
    "training": partial(
        instance_of,
        kind=Training,
        expected="a pyro_opu.Training",
        advice="Pass for example Training(num_draws=8).",
    ),
    "callback": partial(check_callable, form="(record) -> None"),
}
