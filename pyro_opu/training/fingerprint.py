"""What a run of training depends on, as plain values that two runs can be compared by."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.objectives import Objective
from pyro_opu.training.fit import Judge, Source
from pyro_opu.transfer.stream import Stream

__all__ = ["describe", "fingerprint", "sketch"]

#: Length of a sketch, and the period of its signs.
BUCKETS, PERIOD = 64, 2**14
#: Deviations of draws below this share of the draws themselves are rounding.
SMALL = 1e-3


def fingerprint(
    guide: nn.Module, seed: int, feed: Source, objective: Objective, held_out: Judge, x: Tensor
) -> dict[str, Any]:
    """Everything a run depends on, by name; compared by :func:`~pyro_opu.distributed.differences`.

    Inputs, settings and shapes must be equal. The teacher's draws at the held-out inputs and what
    the transfer policy has computed are compared by a :func:`sketch`, since a machine that rounds
    otherwise changes their last bits and so any hash of them, rounded or not.

    Args:
        guide: The student before the first step.
        seed: Seed of the run.
        feed: Teacher, transfer policy, settings and ranks.
        objective: The loss, prepared.
        held_out: Inputs that judge, with the teacher's draws.
        x: All transfer inputs at hand, held out or not; the first window of a loader.

    Returns:
        Values that JSON can hold.
    """
    draws = held_out.draws.detach().cpu().float()
    mean = draws.mean(0)
    shapes = {name: list(value.shape) for name, value in guide.state_dict().items()}
    stream = feed.policy if isinstance(feed.policy, Stream) else None
    return {
        "seed": seed,
        "objective": text(objective),
        **asdict(feed.settings),
        "ranks": feed.ranks.size,
        "threads": feed.ranks.all_gather(torch.get_num_threads()),
        "device": feed.device.type,
        "guide": {"modules": text(guide), "shapes": shapes},
        "x": digest(x),
        "loader": None if stream is None else stream.settings,
        "transfer": describe(feed.policy if stream is None else stream.fitted),
        "teacher": {
            "draws held": feed.max_draws,
            "shape": list(draws.shape),
            "mean": sketch(mean),
            "deviations": sketch(draws - mean, SMALL * float(draws.norm())),
        },
    }


def digest(x: Tensor) -> str:
    """Hash of all bytes, with shape and dtype."""
    content = hashlib.sha256(f"{x.dtype} {tuple(x.shape)}".encode())
    content.update(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return content.hexdigest()


def sketch(x: Tensor, least: float = 0.0) -> dict[str, list[float]]:
    r"""A tensor of any size as a few numbers that move as far as the tensor does.

    .. math:: b_j = \frac{\sqrt{B}}{\|x\|} \sum_{i \equiv j \;(B)} s_i x_i, \qquad s_i = \pm 1

    Relative to its norm, two tensors are about as far from each other as their sketches (a count
    sketch with fixed signs).

    Args:
        x: Any shape.
        least: Least norm that is divided by.

    Returns:
        "sketch": :math:`\log \|x\|` and the B numbers b.
    """
    flat = x.detach().cpu().flatten().float()
    random = torch.Generator().manual_seed(0)
    rows = -(-len(flat) // PERIOD)
    across, along = (
        torch.randint(0, 2, (size,), generator=random).float() * 2 - 1 for size in (PERIOD, rows)
    )
    padded = nn.functional.pad(flat, (0, rows * PERIOD - len(flat))).view(rows, PERIOD)
    buckets = ((along @ padded) * across).view(-1, BUCKETS).double().sum(0)
    norm = max(float(flat.double().norm()), least, torch.finfo(torch.float32).tiny)
    return {"sketch": [math.log(norm), *(buckets * math.sqrt(BUCKETS) / norm).tolist()]}


def describe(value: Any) -> Any:
    """Settings and state of a transfer policy, or of anything else, as plain values.

    Of a dataclass all fields that are compared, and what it has computed from x (``buffers``).
    """
    if isinstance(value, Tensor):
        return sketch(value) if value.is_floating_point() else digest(value)
    if is_dataclass(value) and not isinstance(value, type):
        own = [f.name for f in fields(value) if f.compare or f.name == "buffers"]
        return {"type": type(value).__qualname__, **{k: describe(getattr(value, k)) for k in own}}
    if isinstance(value, Mapping):
        return {str(key): describe(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [describe(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else text(value)


def text(value: Any) -> str:
    """The printed form, without the addresses that are others in every process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
