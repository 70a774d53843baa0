"""Several processes train one student; what each of them does is in ``rank_worker.py``."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_worker import start
from safetensors.torch import load_file
from torch import nn

from pyro_opu.distributed import ALONE, ENVIRONMENT, Ranks, attempt_store, join
from pyro_opu.rng import fold_in
from pyro_opu.training.batches import Batches
from pyro_opu.training.plan import Plan
from pyro_opu.transfer import HeldOut

HERE = Path(__file__).parent
Found = tuple[dict[str, Any], dict[str, Any]]


def torchrun(folder: Path, mode: str, *options: str) -> None:
    """Two ranks on this machine, one thread each; what they print is shown if they fail."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", *options, str(HERE / "rank_worker.py"), str(folder), mode]
    environment = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]


def fork_two(folder: Path, mode: str) -> None:
    """Two ranks on this machine, forked from a process that has imported the package once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pyro_opu"])
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [
        context.Process(target=start, args=(rank, store.port, folder, mode)) for rank in (0, 1)
    ]
    for rank in ranks:
        rank.start()
    try:
        for rank in ranks:
            rank.join(300)
    finally:
        for rank in ranks:
            rank.kill()
    said = [path.read_text() for path in folder.glob("error-*")]
    assert [rank.exitcode for rank in ranks] == [0, 0], "\n".join(said)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks wrote who lived to the end; pytest-xdist's processes share one launch."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, done = shared / "ranks", shared / "ranks-done"
    try:
        folder.mkdir()
    except FileExistsError:
        for _ in range(3000):
            if done.exists():
                break
            time.sleep(0.1)
    else:
        try:
            fork_two(folder, "whole")
        finally:
            done.touch()
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    """What each of them found."""
    first, second = (json.loads((folder / f"found-{rank}.json").read_text()) for rank in (0, 1))
    return first, second


def same_weights(one: Path, other: Path) -> bool:
    mine, theirs = load_file(one), load_file(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)


def test_all_ranks_end_with_the_same_weights(folder: Path, found: Found) -> None:
    # A guide with other initial weights on each rank, buffers of its own batches, h and g in turn.
    assert same_weights(folder / "weights-0.safetensors", folder / "weights-1.safetensors")
    assert found[0]["report"] == found[1]["report"]
    scores = [record["energy_distance"] for record in found[0]["report"]["history"]]
    assert min(scores) < scores[0]


def test_each_rank_draws_its_own_share_of_a_batch(found: Found) -> None:
    assert [each["sizes"] for each in found] == [[9], [8]]
    assert [each["share"] for each in found] == [[9, 1, 1], [8, 1, 0]]
    assert found[0]["first batch"][:8] != found[1]["first batch"]


def test_ranks_share_the_labels(found: Found) -> None:
    # 32 inputs each, in whole shares of a batch: 3 of 9, and 4 of 8.
    assert [each["labelled"] for each in found] == [27, 32]


def test_ranks_that_see_other_indices_know_all(folder: Path, found: Found) -> None:
    assert [each["several inputs"] for each in found] == [[[2, [0, 1, 2, 3, 4, 5]]]] * 2
    assert same_weights(folder / "several-0.safetensors", folder / "several-1.safetensors")


def test_joint_draws_are_the_same_on_all_ranks(found: Found) -> None:
    assert torch.tensor(found[0]["joint"]).shape == (12, 3, 3)
    assert found[0]["joint"] == found[1]["joint"]


def test_without_a_seed_rank_0_decides(found: Found) -> None:
    assert found[0]["seed"] == found[1]["seed"]


def test_messages(found: Found) -> None:
    assert [each["same"] for each in found] == [0, 0]
    assert [each["all"] for each in found] == [[0, 1]] * 2


def test_gradients_are_averaged_by_the_ranks_shares(found: Found) -> None:
    for each in found:
        # (1, 2) / 4 + (5, 6) * 3/4; 0 / 4 + (8, 0) * 3/4; no gradient anywhere.
        assert each["average"]["gradients"] == [[4.0, 5.0], [6.0, 0.0], None]
        assert each["average"]["values"] == [0.75, 1.0]


def test_a_step_of_two_ranks_is_that_of_one_on_the_whole_batch(found: Found) -> None:
    assert found[0]["step"] == found[1]["step"]
    for mine, alone in zip(found[0]["step"], found[0]["step alone"], strict=True):
        # Rounding of float32 sums taken in another order.
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(alone), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "other inputs",
            "ValueError: the ranks must all distill the same; ['teacher', 'transfer', 'x'] differ",
        ),
        ("other policy", "ValueError: the ranks must all distill the same; ['transfer'] differ"),
        ("narrow", "ValueError: the ranks must all distill the same; ['teacher'] differ"),
        (
            "other steps",
            "ValueError: the ranks must all distill the same; ['labelled', 'warm_steps'] differ",
        ),
        ("small batch", "ArgumentError: `batch_size` must be at least 2, the number of ranks"),
        ("not finite", "DistillationError: the loss is not finite at step 0: parts {'loss': nan}"),
    ],
)
def test_what_is_wrong_on_one_rank_stops_all(found: Found, name: str, message: str) -> None:
    for each in found:
        assert each[name].startswith(message), each[name]


def test_a_row_differs_on_one_rank_whether_it_judges_or_is_taught(found: Found) -> None:
    message = "ValueError: the ranks must all distill the same; ['x'] differ between them"
    for each in found:
        assert all(said.startswith(message) for said in each["a row"])


def test_an_argument_that_one_rank_refuses_stops_all_before_there_is_a_group(folder: Path) -> None:
    first, second = ((folder / f"refused-{rank}.txt").read_text() for rank in (0, 1))
    assert first.startswith("RuntimeError: rank 0 of 2 has stopped, since another rank has left")
    assert second == "ArgumentError: `num_steps` must be a positive integer; got 0."


def test_whether_to_refine_is_the_word_of_rank_0(found: Found) -> None:
    assert [each["apart"] for each in found] == [["objective", "start", "warm start"]] * 2


def test_a_rank_that_leaves_early_does_not_keep_the_others_waiting(found: Found) -> None:
    assert "the user's own" in found[1]["left"]
    assert found[0]["left"].startswith("RuntimeError: rank 0 of 2 has stopped, since another rank")


@pytest.mark.slow
def test_a_killed_rank_is_started_again_and_ends_as_an_unbroken_run(
    folder: Path, tmp_path: Path
) -> None:
    torchrun(tmp_path, "mortal", "--max-restarts", "1")
    for rank in (0, 1):
        note = json.loads((tmp_path / f"resumed-{rank}.json").read_text())
        assert note["attempt"] == 1
        assert same_weights(
            tmp_path / f"resumed-{rank}.safetensors", folder / f"unbroken-{rank}.safetensors"
        )
        assert note["steps"] < 20  # it did not begin again


# One process ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [1, 6, 256])
def test_shares_add_up_and_differ_by_one_at_most(size: int, count: int) -> None:
    shares = [Ranks(rank, size).share(count) for rank in range(size)]
    assert sum(shares) == count and max(shares) - min(shares) <= 1


def test_a_process_alone_says_nothing() -> None:
    layer = nn.Linear(2, 1)
    layer.weight.grad = gradient = torch.ones(1, 2)
    assert ALONE.all_reduce_gradients(list(layer.parameters()), [1.5], 1.0) == [1.5]
    assert layer.weight.grad is gradient and layer.bias.grad is None
    ALONE.broadcast_state(layer)
    ALONE.check_alike({"seed": 0})
    assert ALONE.first and ALONE.broadcast(3) == 3 and ALONE.all_gather(3) == [3]
    assert ALONE.device(torch.device("cuda")) == torch.device("cuda")


def test_without_torchrun_a_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    assert join() == ALONE
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, "1")  # torchrun with one process: WORLD_SIZE is 1
    assert join() == ALONE and not torch.distributed.is_initialized()


def test_each_rank_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr("torch.distributed.get_backend_config", lambda: "cpu:gloo,cuda:nccl")
    ranks = Ranks(7, 8)
    assert ranks.device(torch.device("cuda")) == torch.device("cuda:3")
    assert ranks.device(torch.device("cuda:1")) == torch.device("cuda:1")
    assert ranks.device(torch.device("cpu")) == torch.device("cpu")
    monkeypatch.setattr("torch.distributed.get_backend_config", lambda: "cuda:nccl")
    with pytest.raises(ValueError, match="`device` is cpu, but .* initialised for cuda:nccl alone"):
        ranks.device(torch.device("cpu"))


def test_more_ranks_than_inputs_are_refused() -> None:
    plan = Plan(10, 0, 3, 4, 4, 1e-3, 5)
    policy = HeldOut().fit(torch.zeros(5, 2))
    Batches(lambda x, n: x, policy, plan, torch.device("cpu"), ranks=Ranks(0, 3))
    with pytest.raises(ValueError, match="`batch_size` must be at least 4, the number of ranks"):
        Batches(lambda x, n: x, policy, plan, torch.device("cpu"), ranks=Ranks(0, 4))


def test_branches_of_a_seed_are_others() -> None:
    seeds = {fold_in(seed, number) for seed in (-1, 0, 1, 2**63) for number in range(5)}
    assert len(seeds) == 20 and all(0 <= seed < 2**63 for seed in seeds)
    assert fold_in(1, 2) == fold_in(1, 2)


# Finding each other --------------------------------------------------------------------------


def met(store: dist.Store, size: int, first: int = 0) -> list[dist.Store]:
    """The stores that the ranks come out with, who come one after another from ``first`` on."""
    with ThreadPoolExecutor(size) as pool:
        coming = []
        for rank in (*range(first, size), *range(first)):
            coming.append((rank, pool.submit(attempt_store, store, rank, size)))
            time.sleep(0.03)
        return [future.result(30) for _, future in sorted(coming, key=lambda each: each[0])]


@pytest.mark.parametrize("first", [0, 1, 2])
def test_ranks_of_an_attempt_never_read_what_dead_ones_wrote(first: int) -> None:
    store = dist.HashStore()
    for attempt in range(3):
        stores = met(store, 3, first)
        assert not any(each.check(["address"]) for each in stores)
        stores[1].set("address", str(attempt))
        assert stores[0].get("address") == stores[2].get("address") == str(attempt).encode()
        # Another attempt, of which rank 1 died after its question and the others before theirs.
        store.set("pyro_opu/asks/1", f"dead {attempt}")


def test_a_rank_that_does_not_come_is_named() -> None:
    store = dist.HashStore()
    store.set("pyro_opu/asks/1", "dead")
    with pytest.raises(TimeoutError, match=r"ranks \[1, 2\] of 3 have not come. Call distill on"):
        attempt_store(store, 0, 3, patience=0.1)
