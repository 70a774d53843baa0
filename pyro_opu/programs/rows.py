"""A Pyro model as a function of its inputs alone, at any number of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import pyro
import torch
from pyro import primitives
from pyro.poutine.messenger import Messenger
from pyro.poutine.subsample_messenger import SubsampleMessenger
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pyro_opu.checks import ArgumentError
from pyro_opu.inputs import Form
from pyro_opu.programs.samples import SamplesError
from pyro_opu.programs.signature import Arguments, Call, Model, parameters_of
from pyro_opu.programs.trace import before_calls, fresh_latents, is_deterministic
from pyro_opu.programs.vmap import Draws
from pyro_opu.rng import exclusive, replaced
from pyro_opu.utils.laws import Node, is_subsample
from pyro_opu.utils.warnings import warn_user

T = TypeVar("T")
#: What the "infer" of a site says of which some values are observed and others drawn.
IMPUTED = "imputed"
#: The model that is asked, and about how many rows.
_ASKED: ContextVar[tuple[AnyRows, int] | None] = ContextVar("asked model", default=None)
_pyro_subsample = SubsampleMessenger._subsample
_pyro_masked = primitives._masked_observe


class AnyRows:
    """A model, or guide, that may be tied to the rows it was trained on.

    Labels of the training rows (closed over, or from ``pyro.condition``) are not those of other
    rows: such a site takes a value from its distribution. A plate of fixed size, or one that is
    subsampled, has as many rows as are asked about (:meth:`freed`). Batch normalisation that was
    left in training mode, as ``SVI`` leaves it, is run in evaluation mode: its statistics stay. A
    site with an ``obs_mask`` is one site, whose missing values are a latent, ``..._unobserved``.

    Attributes:
        plates: Names of the plates that are resized.
        max_rows: The most rows that labels closed over have a value for; ``None``: any number.
        sizes: Sizes of plates, labels and masks, among which is the number of the training rows.
        redrawn: Sites that are observed at other rows, and take values from their distributions.
    """

    def __init__(self, model: Model, call: Call) -> None:
        self.model, self.call = model, call
        self.parameters = parameters_of(model)
        self.none: dict[str, None] = {}  # given to parameters that have neither input nor default
        self.plates: frozenset[str] = frozenset()
        self.max_rows: int | None = None
        self.sizes: set[int] = set()
        self.redrawn: set[str] = set()
        self._seen: dict[str, tuple[int, int]] = {}
        self._training: set[nn.Module] = set()  # that are run in evaluation mode

    def __call__(self, x: Tensor) -> Any:
        args, kwargs = self._arguments(x)
        with _asked(self, len(x)), _Rows(self) as rows, _evaluated(self._training):
            self._seen = rows.plates
            return self.model(*args, **kwargs)

    def as_written(self, x: Tensor) -> Any:
        """What ``Predictive`` runs: nothing but the modes of normalisations is another."""
        args, kwargs = self._arguments(x)
        with _evaluated(self._training):
            return self.model(*args, **kwargs)

    def knows(self, name: str, value: Tensor, shape: torch.Size) -> bool:
        """Whether the observed value of a site is one of these rows, not of the training rows.

        Labels that were those of other rows once are so whatever the number of rows.
        """
        try:
            fits = torch.broadcast_shapes(value.shape, shape) == shape
        except RuntimeError:
            fits = False
        if not fits:
            self.sizes |= set(value.shape)
            self.redrawn.add(name)
        return name not in self.redrawn

    def _arguments(self, x: Tensor) -> Arguments:
        args, kwargs = self.call(x)
        left = list(self.parameters.items())[len(args) :]
        left = [(name, each) for name, each in left if name not in kwargs]
        self.none = {name: None for name, each in left if each.default is each.empty}
        return args, {**self.none, **kwargs}

    def freed(self, run: Callable[[], T]) -> T:
        """What ``run`` gives, with those plates resized without which it raises.

        The plates of one size that a failed run has met are tried together, from the
        largest: that of the training rows.
        """
        with exclusive(), _found_in_training(self._training):
            return self._freed(run)

    def _freed(self, run: Callable[[], T]) -> T:
        try:
            return run()
        except Exception:
            seen, before = self._seen, self.plates
            for size in sorted(set(seen.values()), reverse=True):
                self.plates = before | {name for name, other in seen.items() if other == size}
                try:
                    found = run()
                except Exception:  # noqa: BLE001, S112 - the first error is raised
                    continue
                self.max_rows = size[0]
                return found
            self.plates = before
            raise


@contextmanager
def _found_in_training(found: set[nn.Module]) -> Iterator[None]:
    """Add normalisations that are called in training mode to the set, and stop their training."""
    stopped = set[nn.Module]()

    def stop(module: nn.Module) -> None:
        own = isinstance(module, _BatchNorm)
        if own and module.training and module.track_running_stats:
            stopped.add(module.eval())

    try:
        with before_calls(stop):
            yield
    finally:
        for module in stopped:
            module.train()
    new = stopped - found
    found |= stopped
    if new:
        warn_user(
            "the model normalises batches in training mode, as SVI leaves it; the teacher is run "
            "in evaluation mode, and its statistics stay as they are. A Predictive changes them: "
            "call .eval() on the network."
        )


@contextmanager
def _evaluated(modules: set[nn.Module]) -> Iterator[None]:
    """Modules in evaluation mode."""
    training = [module for module in modules if module.training]
    for module in training:
        module.eval()
    try:
        yield
    finally:
        for module in training:
            module.train()


@contextmanager
def _asked(model: AnyRows, rows: int) -> Iterator[None]:
    """Let Pyro make plates of so many rows, and one site of an observed one with a mask."""
    token = _ASKED.set((model, rows))  # threads that are not ours find Pyro as it is
    try:
        with (
            replaced(SubsampleMessenger, "_subsample", staticmethod(_subsample)),
            replaced(primitives, "_masked_observe", _masked_observe),
        ):
            yield
    finally:
        _ASKED.reset(token)


def _subsample(
    name: str,
    size: int | None = None,
    subsample_size: int | None = None,
    subsample: Any = None,
    use_cuda: bool | None = None,
    device: str | None = None,
) -> tuple[int, int, Any]:
    """Pyro's, which makes a plate's rows; of those that are resized, or of some of x, all of x."""
    if (asked := _ASKED.get()) is not None:
        model, rows = asked
        model.sizes |= {each for each in (size, subsample_size) if each not in (None, rows)}
        if name in model.plates or (size == rows and subsample is None):
            size, subsample_size, subsample = rows, None, None
    return _pyro_subsample(name, size, subsample_size, subsample, use_cuda, device)


def _masked_observe(
    name: str, fn: Any, obs: Tensor | None, obs_mask: Any, *args: object, **kwargs: Any
) -> Any:
    """Pyro's, which makes three sites of one; for a model that is asked, one of the distribution.

    Missing values are drawn, as Pyro draws them, since another site may depend on them.
    """
    if (asked := _ASKED.get()) is None:
        return _pyro_masked(name, fn, obs, obs_mask, *args, **kwargs)
    model, rows = asked
    model.sizes |= set(obs_mask.shape) - {rows}
    if obs is None:
        return pyro.sample(name, fn, *args, **kwargs)
    infer: Any = {**(kwargs.pop("infer", None) or {}), IMPUTED: True}
    value = pyro.sample(f"{name}_unobserved", fn, *args, infer={**infer}, **kwargs)
    if model.knows(name, obs, value.shape):
        known = torch.as_tensor(obs_mask, device=value.device)
        value = torch.where(known[(...,) + (None,) * fn.event_dim], obs, value)
    return pyro.sample(name, fn, *args, obs=value, infer=infer, **kwargs)


def tied_to_rows(model: AnyRows, latents: Draws, few: tuple[Tensor, Tensor]) -> frozenset[str]:
    """Latents of the training rows, which are not those of the few that are asked about."""
    try:
        two, three = (model.freed(partial(fresh_latents, model, {}, each)) for each in few)
    except Exception:  # noqa: BLE001 - a model that cannot be run without its latents either
        return frozenset()
    grow = {name for name in latents.keys() & two.keys() if two[name].shape != three[name].shape}
    tied = frozenset(name for name in grow if latents[name].shape != two[name].shape)
    if tied:
        given = f" It was given None for {', '.join(model.none)}: an input of the rows belongs "
        given = f"{given}into x, a tuple or dict." if model.none else ""
        warn_user(
            f"the posterior's {sorted(tied)} are latents of the rows that it was trained on; at "
            "other rows they are as the model has them, given its other latents. Leave them out to "
            f"say so yourself.{given}"
        )
    return tied


class _Rows(Messenger):
    """Notes the plates, and gives sites that are observed at other rows a value at these."""

    def __init__(self, model: AnyRows) -> None:
        super().__init__()
        self.plates: dict[str, tuple[int, int]] = {}
        self.model = model

    def _pyro_sample(self, msg: Node) -> None:
        fn, value = msg["fn"], msg["value"]
        if is_subsample(msg):
            self.plates[msg["name"]] = fn.size, fn.subsample_size or fn.size
        elif msg["is_observed"] and isinstance(value, Tensor) and not is_deterministic(msg):
            if IMPUTED not in msg["infer"] and not self.model.knows(msg["name"], value, fn.shape()):
                msg["value"] = fn.sample()

    def _pyro_post_sample(self, msg: Node) -> None:
        if IMPUTED in msg["infer"] and msg["value"].shape != msg["fn"].shape():
            found, expected = tuple(msg["value"].shape), tuple(msg["fn"].shape())
            raise ValueError(f"'{msg['name']}' has shape {found} for {expected}")


@contextmanager
def explained(model: AnyRows, x: Tensor, samples: Draws, form: Form) -> Iterator[None]:
    """Raise an error that says how a model must be written where it cannot be run."""
    try:
        yield
    except SamplesError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        dtypes = {v.dtype for v in samples.values() if v.is_floating_point()} - {x.dtype}
        hint = f" Some posterior samples are {dtypes.pop()}: convert x to it." if dtypes else ""
        if none := ", ".join(model.none):
            called = ", ".join(["x", *(f"{name}=..." for name in model.none)])
            hint += (
                f" It was given None for {none}. What all rows share is given by arguments=lambda "
                f"x: ((x,), dict({called[3:]})), what each row has by inputs, x=(x, ...)."
            )
        hint += f" {form.advice}" if form.advice else ""
        raise ArgumentError(
            f"`source`'s model must run as model(x), at any number of rows; at x of shape "
            f"{(2, *x.shape[1:])}, {x.dtype}, it raised {type(error).__name__}: {reason}.{hint} "
            "Its first argument must be the inputs and all others optional; for a model called "
            "otherwise pass inputs=... to as_teacher, and for several inputs a tuple or dict as x. "
            "Nothing in it may have the size of the training rows:\n"
            "    def model(x, y=None):\n"
            "        with pyro.plate('data', len(x)):\n"
            "            pyro.sample('obs', ..., obs=y)\n"
            "Where every group has a latent of its own, the group is an input of whole numbers, "
            "and the model takes a[group]."
        ) from error
