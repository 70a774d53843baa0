"""The parts of a student, their description in its file, and the guide built from that."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.checks import (
    ArgumentError,
    ArgumentTypeError,
    check_callable,
    instance_of,
    is_sequence,
)
from pyro_opu.choosing import choice_of
from pyro_opu.guides import of_form
from pyro_opu.guides.fused import is_fused
from pyro_opu.guides.joint import DrawHeads, JointGuide
from pyro_opu.guides.novelty import Novelty
from pyro_opu.inputs import Form
from pyro_opu.parts import SiteLayout, outcome_from
from pyro_opu.utils import files

#: The kind of the files of :meth:`~pyro_opu.OnePassPredictive.save`.
KIND = "one-pass predictive"
#: Types of the entries of a student's description.
_ENTRIES: dict[str, tuple[type, ...]] = {
    "outcome": (dict,),
    "input_shape": (list,),
    "num_samples": (int,),
    "arguments": (list,),
    "sites": (list,),
    "guide": (dict, type(None)),
    "report": (dict,),
    "form": (dict,),
    "novelty": (dict, type(None)),
}
#: How the names of the tensors of its novelty begin.
_OF_NOVELTY = "novelty/"


def check_parts(
    guide: object, sites: object, arguments: Sequence[str], inputs: object, report: object
) -> None:
    """Raise a TypeError where a part of a student is of a wrong type."""
    advice = "Build one with PredictiveGuide.for_inputs(x, num_classes), or call distill."
    instance_of("guide", guide, nn.Module, "an nn.Module x -> Dirichlet", advice)
    if not (is_sequence(sites) and all(isinstance(site, SiteLayout) for site in sites)):
        raise ArgumentTypeError(
            '`sites` must be a list such as [SiteLayout("obs", "label", "int64", (-1,))]; got '
            f"{sites!r}."
        )
    if isinstance(arguments, str) or not all(isinstance(name, str) for name in arguments):
        raise ArgumentTypeError(
            f'`arguments` must be the names of a call, such as ["x", "y"]; got {arguments!r}.'
        )
    instance_of("report", report, (dict, type(None)), "a dict, or None")
    if inputs is not None:
        check_callable("inputs", inputs, "(*args, **kwargs) -> x")


def describe(student: Any) -> dict[str, Any]:
    """Describe a student for its file: the arguments of its constructor as plain values."""
    if is_fused(student.guide):
        raise ArgumentError(
            "`save` needs the student as it was before it was fused: the weights of this one are "
            "merged. Call save on what fuse() was called on, and fuse() again after load."
        )
    return {
        "outcome": student.outcome.config,
        "input_shape": student.input_shape,
        "num_samples": student.num_samples,
        "arguments": list(student.arguments),
        "sites": [_written(site) for site in student.sites],
        "guide": getattr(student.guide, "config", None),
        "report": student.report,
        "form": student.form.describe(),
        "novelty": None if student.detector is None else student.detector.config,
    }


def tensors_of(student: Any) -> dict[str, Tensor]:
    """The tensors of a student's file: those of its guide, and of its novelty."""
    of_novelty = {} if student.detector is None else student.detector.state_dict()
    named = {_OF_NOVELTY + name: value for name, value in of_novelty.items()}
    return {**student.guide.state_dict(), **named}


def _written(site: SiteLayout) -> dict[str, Any]:
    """A layout as plain values, without what is empty."""
    return {name: value for name, value in asdict(site).items() if value != ""}


def read_student(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and description of a student's file, and check every entry."""
    tensors, plain = files.read(path, KIND)
    with files.description_of(path):
        config: dict[str, Any] = {name: plain[name] for name in _ENTRIES}
        for name, known in _ENTRIES.items():
            if type(config[name]) not in known:
                raise TypeError(f"{name} is {config[name]!r:.50}")
        for size in (config["num_samples"], *config["input_shape"]):
            if type(size) is not int or not 0 < size < 2**40:
                raise ValueError(f"{size!r:.50} is no size")
        config["outcome"] = outcome = outcome_from(config["outcome"])
        guide = config["guide"]
        if guide is not None and (
            guide["trunk"]["input_shape"] != config["input_shape"] or not outcome.is_sized_as(guide)
        ):
            raise ValueError("the guide is for other inputs or classes")
        config["form"] = form = Form.from_config(config["form"])
        indices = [[column, list(values)] for column, values in form.indices]
        trunk = {} if guide is None else guide["trunk"]
        if trunk.get("indices", indices) != indices or not form.fits(config["input_shape"]):
            raise ValueError("the inputs are not those of the guide")
        if not all(isinstance(name, str) for name in config["arguments"]):
            raise ValueError("an argument has no name")
        if not config["sites"]:
            raise ValueError("there are no sites")
        config["sites"] = tuple(
            SiteLayout.from_config(site, outcome.site_kinds, outcome.sizes)
            for site in config["sites"]
        )
    return tensors, config


def restore_guide(
    path: str | os.PathLike[str],
    tensors: dict[str, Tensor],
    config: dict[str, Any],
    guide: nn.Module | None,
) -> nn.Module:
    """Load the weights into the guide given, or one built by the file's description; freeze it."""
    if guide is None:
        if config["guide"] is None:
            raise ArgumentError(
                "`guide` must be given: the file holds the weights of a guide of your own and does "
                "not describe its architecture. Build it and pass guide=...; what compact_approx "
                "made is read by pyro_opu.rivals.load_compact(path, source)."
            )
        with files.description_of(path), torch.device("meta"):
            guide = _built(config["guide"], choice_of(config["outcome"]).guides)
            _check_match(guide, tensors, config["outcome"].num_classes)
    advice = "Build it, or leave it out for a guide of this package."
    instance_of("guide", guide, nn.Module, "a module with the architecture that was saved", advice)
    guide = of_form(guide, config["form"])
    _check_match(guide, tensors, config["outcome"].num_classes)
    guide.load_state_dict(tensors, assign=True)  # in the precision that was saved
    return guide.requires_grad_(False).eval()


def _built(config: dict[str, Any], families: Mapping[str, Any]) -> nn.Module:
    """The guide of a description, with fresh weights."""
    kind = config["kind"]
    if kind == JointGuide.kind:
        own = {name: value for name, value in config.items() if name not in ("family", "heads")}
        marginal = _built({**own, "kind": config["family"]}, families)
        return JointGuide(marginal, DrawHeads(**config["heads"]))
    guide: nn.Module = families[kind].from_config(config)
    return guide


def restore_novelty(
    path: str | os.PathLike[str], tensors: dict[str, Tensor], config: dict[str, Any]
) -> Novelty | None:
    """The novelty of a file, if it has one; its tensors are taken out of the others."""
    own = [name for name in tensors if name.startswith(_OF_NOVELTY)]
    found = {name.removeprefix(_OF_NOVELTY): tensors.pop(name) for name in own}
    with files.description_of(path), torch.device("meta"):
        if config["novelty"] is None:
            if found:
                raise ValueError("there are tensors of a novelty that is not described")
            return None
        novelty = Novelty(config["novelty"])
        novelty.check(math.prod(config["input_shape"]))
        shapes = {name: value.shape for name, value in novelty.state_dict().items()}
        if shapes != {name: value.shape for name, value in found.items()}:
            raise ValueError("the tensors of the novelty are not those described")
    novelty.load_state_dict(found, assign=True)
    return novelty.eval()


def _check_match(guide: nn.Module, tensors: dict[str, Tensor], num_classes: int | None) -> None:
    """Raise a ValueError where a guide's parameters have other names or shapes than the file's."""
    own, found = (
        {name: (tuple(value.shape), value.is_floating_point()) for name, value in state.items()}
        for state in (guide.state_dict(), tensors)
    )
    if own == found:
        return
    head = own.get("mean_head.weight")  # of a PredictiveGuide
    if num_classes and head is not None and head[0][0] != num_classes:
        raise ArgumentError(
            f"`guide` must have {num_classes} classes, as the file; it has {head[0][0]}. "
            f"Build it with num_classes={num_classes}."
        )
    wrong = sorted(name for name in own.keys() | found.keys() if own.get(name) != found.get(name))
    raise ArgumentError(
        f"`guide` must have the parameters of the file; these differ: {wrong[:5]}. Build it with "
        "the architecture that was saved."
    )
