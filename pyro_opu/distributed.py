"""Training by several processes: their messages, and how they find each other."""

from __future__ import annotations

import math
import os
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import nn

from pyro_opu.checks import ArgumentError

__all__ = ["ALONE", "Ranks", "attempt_store", "differences", "join", "together"]

#: Variables that ``torchrun`` sets for every process; a process group needs all of them.
ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
#: Difference of two sketches that rounding on another machine may make.
ROUNDING = 1e-3
#: Seconds between two polls for the other ranks, and until rank 0 gives up (torch's own timeout).
PAUSE, PATIENCE = 0.01, 1800.0
T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """Messages between the ``size`` processes that train one student; a process alone sends none.

    Every step sends one message: the gradients and the parts of the loss, averaged over all ranks.
    ``DistributedDataParallel`` does not fit: h and g are stepped in turn, a student returns a
    distribution, and a critic is not asked through ``forward``. ``channel`` holds the process
    group, if it is not the default one.
    """

    rank: int = 0
    size: int = 1
    channel: list[Any] = field(default_factory=list, compare=False, repr=False)

    @property
    def group(self) -> Any:
        """The process group, ``None`` for the default one."""
        return self.channel[0] if self.channel else None

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which judges, writes and shows progress for all."""
        return self.rank == 0

    def share(self, count: int) -> int:
        """This rank's part of ``count`` inputs; shares differ by one at most."""
        return count // self.size + (self.rank < count % self.size)

    def broadcast(self, value: T) -> T:
        """Send the value of rank 0 to every rank; those of the others are ignored."""
        if self.size == 1:
            return value
        box = [value if self.first else None]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return cast(T, box[0])

    def all_gather(self, value: T) -> list[T]:
        """Collect the values of all ranks, in order, on every rank."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return found

    def check_alike(self, what: Mapping[str, object]) -> None:
        """Raise a ValueError on every rank that names the values that differ between them."""
        first, *others = self.all_gather(what)
        wrong = sorted({key for other in others for key in differences(first, other)})
        if wrong:
            raise ValueError(
                f"the ranks must all distill the same; {wrong} differ between them. Call distill "
                "with the same arguments on every rank: the same transfer inputs, and posterior "
                "samples from one file or broadcast from one rank."
            )

    @torch.no_grad()
    def broadcast_state(self, *modules: nn.Module) -> None:
        """Give modules the weights and buffers that they have on rank 0."""
        if self.size == 1:
            return
        for tensor in (value for module in modules for value in module.state_dict().values()):
            sent = tensor.contiguous()
            dist.broadcast(sent, 0, group=self.group)
            if sent is not tensor:
                tensor.copy_(sent)

    def all_reduce_gradients(
        self, parameters: Sequence[nn.Parameter], values: Sequence[float], weight: float
    ) -> list[float]:
        """Replace gradients by their mean over the ranks; returns the mean of the ``values``.

        The ``weight`` is this rank's share of the inputs; the shares sum to one. A gradient that
        some ranks do not have counts as zero there.
        """
        if self.size == 1:
            return list(values)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        present = [float(p.grad is not None) for p in parameters]
        kind = torch.promote_types(gradients[0].dtype, torch.float32)
        numbers = torch.tensor([*present, *values], dtype=kind, device=gradients[0].device)
        message = torch.cat([*(g.reshape(-1) for g in gradients), numbers]) * weight
        dist.all_reduce(message, group=self.group)
        *means, numbers = message.split([*(g.numel() for g in gradients), len(numbers)])
        found = numbers.tolist()
        for parameter, mean, taken in zip(parameters, means, found, strict=False):
            parameter.grad = mean.view_as(parameter).to(parameter.dtype) if taken else None
        return found[len(present) :]

    def device(self, asked: torch.device) -> torch.device:
        """The device of this rank: "cuda" without a number is the GPU numbered ``LOCAL_RANK``."""
        if self.size == 1:
            return asked
        if asked.type == "cuda" and asked.index is None:
            asked = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        carried = dist.get_backend_config()
        if f"{asked.type}:" not in carried:
            raise ArgumentError(
                f"`device` is {asked}, but torch.distributed was initialised for {carried} alone. "
                'Call init_process_group("cpu:gloo,cuda:nccl"), or leave it to distill.'
            )
        return asked


#: A single process.
ALONE = Ranks()


def join() -> Ranks:
    """Join the default process group; under ``torchrun`` make it where there is none.

    It has gloo between CPUs and NCCL between GPUs, and stays for later calls;
    ``torch.distributed.destroy_process_group()`` ends it. Elsewhere a process is ``ALONE``.
    """
    if not dist.is_available():
        return ALONE
    if not dist.is_initialized():
        launched = all(os.environ.get(name) for name in ENVIRONMENT)
        if not launched or int(os.environ["WORLD_SIZE"]) == 1:
            return ALONE
        on_gpus = torch.cuda.is_available() and dist.is_nccl_available()
        store, rank, size = next(iter(dist.rendezvous("env://")))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpus else "gloo",
            store=attempt_store(store, rank, size),
            rank=rank,
            world_size=size,
        )
    return Ranks(dist.get_rank(), dist.get_world_size())


@contextmanager
def together() -> Iterator[Ranks]:
    """:func:`join` for one job, in a process group of its own.

    A rank that leaves with an error closes the group, so that the others do not wait for it but
    raise a RuntimeError.
    """
    ranks = join()
    if ranks.size == 1:
        yield ranks
        return
    ranks.channel.append(dist.new_group())
    try:
        yield ranks
        dist.barrier(group=ranks.group)  # an error after the last message still reaches all
    except (RuntimeError, ConnectionError) as error:
        if not isinstance(error, dist.DistBackendError) and "gloo/transport" not in str(error):
            raise
        traceback.clear_frames(error.__traceback__)  # they hold references to the group
        raise RuntimeError(
            f"rank {ranks.rank} of {ranks.size} has stopped, since another rank has left with an "
            "error or has died. Its own message says why; fix that, and start all ranks again."
        ) from error
    finally:
        dist.destroy_process_group(ranks.channel.pop())


def differences(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Names of the values that differ; sketches are compared up to rounding."""
    return sorted(k for k in one.keys() | other.keys() if not _alike(one.get(k), other.get(k)))


def _alike(one: object, other: object) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() == other.keys() == {"sketch"}:
            pairs = zip(one["sketch"], other["sketch"], strict=True)
            return all(math.isclose(a, b, rel_tol=0, abs_tol=ROUNDING) for a, b in pairs)
        return not differences(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)


def attempt_store(
    store: dist.Store, rank: int, size: int, patience: float = PATIENCE
) -> dist.Store:
    """The launcher's store, under a prefix that only the ranks of this attempt know.

    ``torchrun`` keeps its store when it restarts workers, so that they read what dead ones wrote,
    such as addresses (pytorch issue 135712; the restart count differs between machines). Here rank
    0 draws a prefix, and answers each of the others under a word that this one has drawn, so that
    no answer is an old one. After ``patience`` seconds it raises a TimeoutError.
    """
    own = uuid4().hex
    if rank:
        store.set(f"pyro_opu/asks/{rank}", own)
        name = store.get(f"pyro_opu/answer/{own}").decode()  # waits for it
        store.set(f"pyro_opu/heard/{name}/{rank}", "")
        return dist.PrefixStore(f"pyro_opu/{name}", store)
    missing, end = set(range(1, size)), time.monotonic() + patience
    while missing:
        for other in sorted(missing):
            if store.check([f"pyro_opu/asks/{other}"]):
                word = store.get(f"pyro_opu/asks/{other}").decode()  # or that of a dead one
                store.set(f"pyro_opu/answer/{word}", own)
            if store.check([f"pyro_opu/heard/{own}/{other}"]):
                missing.remove(other)
        if time.monotonic() > end:
            raise TimeoutError(
                f"ranks {sorted(missing)} of {size} have not come. Call distill on every rank that "
                "was started; if one has died, its own error says why."
            )
        time.sleep(PAUSE)
    return dist.PrefixStore(f"pyro_opu/{own}", store)
