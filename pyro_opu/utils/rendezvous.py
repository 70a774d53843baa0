"""How the ranks of one attempt find each other where those of an earlier one have died."""

from __future__ import annotations

import time
from uuid import uuid4

import torch.distributed as dist

__all__ = ["attempt_store"]

#: Seconds between two looks at who has come, and until rank 0 gives up, as long as torch waits.
PAUSE, PATIENCE = 0.01, 1800.0


def attempt_store(
    store: dist.Store, rank: int, size: int, patience: float = PATIENCE
) -> dist.Store:
    """The launcher's store, under a name that the ranks of this attempt alone have.

    ``torchrun`` keeps its store while it starts workers again, and what the dead ones have written
    there, their addresses among it, is read by the living (pytorch issue 135712; the restart count
    is no name, since machines count for themselves). Here rank 0 makes up a name, and gives it to
    each of the others under a word that the other has made up: no answer can be an old one.

    Args:
        store: That of the launcher, the same for all ranks.
        rank: Number of this process.
        size: How many there are.
        patience: Seconds that rank 0 waits for the others.

    Returns:
        A view of the store, empty at first.

    Raises:
        TimeoutError: a rank has not come by then.
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
