"""Whether a bad call gets a clear error, a raw one, or none."""

from __future__ import annotations

import re
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import torch

import pyro_opu
from bad_calls import (  # noqa: F401 - each enters its cases
    distilling,
    joint,
    measures,
    models,
    objectives,
    plots,
    rivals,
    samplers,
    students,
    tables,
)
from bad_calls.guard import confined
from bad_calls.table import CASES

#: Where errors of our own come from, those of the models too.
HOME = str(Path(pyro_opu.__file__).parent)
ARGUMENT = re.compile(r"`[^`]+`")


def judged(call: Callable[[], Any]) -> tuple[str, str]:
    """What became of a call, and the message.

    An error is "clear" if the package itself raised it and its message names an argument in
    backticks; any other is "raw". A call that returns, or leaves a file behind, is "silent".
    """
    torch.default_generator.manual_seed(0)
    pyro.clear_param_store()
    with confined() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = call()
        except Exception as error:  # noqa: BLE001 - any error is an outcome
            left = [path.name for path in folder.iterdir()] + figures()
            outcome = "silent" if left else "clear" if is_clear(error) else "raw"
            said = f"{type(error).__name__}: {error}"
            return outcome, " ".join((f"{said} Left: {left}" if left else said).split())
    return "silent", f"returned a value of type {type(value).__name__}"


def figures() -> list[str]:
    """Figures that are open: what is drawn is checked first."""
    drawn = sys.modules.get("matplotlib.pyplot")
    return [f"figure {number}" for number in drawn.get_fignums()] if drawn else []


def is_clear(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].filename.startswith(HOME) and bool(ARGUMENT.search(str(error)))


def counted() -> Counter[str]:
    """How many cases of the table are clear, raw and silent."""
    return Counter(judged(call)[0] for call in CASES.values())
