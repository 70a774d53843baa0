"""Transfer inputs from a loader: nothing lost, nothing held-out taught, every stop taken up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from quick_distill import killed, quick, same, truth
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from widest import Widest

from pyro_opu.distributed import Ranks
from pyro_opu.training.run import run_of
from pyro_opu.transfer import HeldOut
from pyro_opu.transfer import stream as streams
from pyro_opu.transfer.stream import Passes, Stream, is_loader, row_keys

pytestmark = pytest.mark.usefixtures("brief")


def numbered(rows: int = 20) -> Tensor:
    return torch.arange(float(rows))[:, None]


def loader(rows: int = 20, size: int = 3, shuffle: bool = True) -> DataLoader:
    return DataLoader(TensorDataset(numbered(rows)), batch_size=size, shuffle=shuffle)


def taken(passes: Passes, count: int) -> list[list[float]]:
    """So many batches of this rank."""
    return [passes.own().flatten().tolist() for _ in range(count)]


class Endless(IterableDataset):
    """Batches without end, and how many of them were read."""

    def __init__(self) -> None:
        self.read = 0

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            self.read += 1
            yield torch.randn(8, 2)


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 40 rows, so that a short run goes through several."""
    monkeypatch.setattr(streams, "MOST_ROWS", 40)
    monkeypatch.setattr(streams, "LEAST_ROWS", 4)


# Passes --------------------------------------------------------------------------------------


def test_passes_go_on_without_end_and_are_shuffled_anew() -> None:
    passes = Passes(loader(), seed=0)
    rounds = [sum(taken(passes, 7), []) for _ in range(3)]
    for each in rounds:
        assert sorted(each) == numbered().flatten().tolist()
    assert rounds[0] != rounds[1] != rounds[2] != rounds[0]


def test_a_pass_ends_with_none() -> None:
    passes = Passes(loader(), seed=0)
    assert [passes.take() is None for _ in range(16)] == ([False] * 7 + [True]) * 2


def test_the_seed_decides_and_nothing_else() -> None:
    torch.manual_seed(1)
    one = taken(Passes(loader(), seed=0), 20)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    passes, other = Passes(loader(), seed=0), []
    for _ in range(20):
        other += taken(passes, 1)
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(3)
        before = torch.get_rng_state()
    assert one == other != taken(Passes(loader(), seed=1), 20)


@pytest.mark.parametrize("count", [0, 3, 7, 9, 25])
def test_back_to_a_position(count: int) -> None:
    class Noisy(IterableDataset):  # draws from torch's generator between batches
        def __iter__(self) -> Iterator[Tensor]:
            for _ in range(7):
                yield torch.randn(2, 1)

    for source in (loader(), Noisy()):
        passes = Passes(source, seed=0)
        taken(passes, count)
        position = passes.position()
        expected = taken(passes, 10)
        again = Passes(source, seed=99)
        taken(again, 2)
        again.seek(position)
        assert taken(again, 10) == expected


def test_a_shorter_loader_cannot_be_taken_up() -> None:
    passes = Passes(loader(), seed=0)
    taken(passes, 6)
    with pytest.raises(ValueError, match="a pass has ended before batch 6. Pass the same loader"):
        Passes(loader(rows=9), seed=0).seek(passes.position())


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("batch", [3, 20])
def test_ranks_take_the_batches_in_turn(size: int, batch: int) -> None:
    alone = taken(Passes(loader(size=batch), seed=0), 12)
    shared = [Passes(loader(size=batch), 0, Ranks(rank, size)) for rank in range(size)]
    parts = [taken(passes, 12 // size) for passes in shared]
    assert [parts[i % size][i // size] for i in range(12)] == alone


def test_of_a_divided_loader_each_rank_takes_all() -> None:
    seen = []
    for rank in range(2):
        data = TensorDataset(numbered())
        sampler = DistributedSampler(data, num_replicas=2, rank=rank)
        passes = Passes(DataLoader(data, 5, sampler=sampler), 0, Ranks(rank, 2))
        seen.append([sum(taken(passes, 2), []) for _ in range(2)])
    for one, other in zip(*seen, strict=True):
        assert sorted(one + other) == numbered().flatten().tolist()
    assert seen[0][0] != seen[0][1]  # the sampler was told that a new pass began


def test_what_a_loader_is() -> None:
    assert is_loader(loader()) and is_loader(Endless()) and is_loader(iter([1]))
    for other in (numbered(), numbered().numpy(), [1.0], (1.0,), {"x": 1}, "x", 3, None):
        assert not is_loader(other)


# Streams -------------------------------------------------------------------------------------


def test_row_keys_are_equal_for_equal_rows_only() -> None:
    x = torch.randn(2000, 5)
    for kind in (torch.float64, torch.float32, torch.float16):
        keys = row_keys(x.to(kind))
        assert len(keys.unique()) == len(x.to(kind).unique(dim=0))
        assert torch.equal(row_keys(x.to(kind)[7:9]), keys[7:9])
    assert len(torch.cat([row_keys(x), row_keys(x.flip(1))]).unique()) == 4000  # order counts


def test_row_keys_take_less_than_the_rows() -> None:
    x = torch.randn(2000, 500)
    with Widest() as widest:
        row_keys(x)
    assert widest.bytes <= x.nbytes


def test_a_window_is_joined_without_a_second_one(small_windows: None) -> None:
    """What is joined leaves the list, and a run keeps no first window beside its own rows."""
    parts = [torch.full((2, 3), float(k)) for k in range(4)]
    whole = streams._concatenate(parts)
    assert not parts and whole[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    with run_of(None, loader(rows=100), seed=0) as run:
        assert run.stream is not None and not len(run.stream.first)
        assert len(run.inputs.tensor) == 42


def test_a_window_goes_before_the_next_is_looked_at(small_windows: None) -> None:
    held: list[object] = []

    class Looks(HeldOut):
        def _statistics(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            held.append(stream.fitted)
            return super()._statistics(x)

    stream = Stream(loader(rows=100), 0)
    stream.follow(Looks(), stream.first, stream.first[:0])
    stream.sample(len(stream.first) + 1)
    assert held == [None, None] and stream.fitted is not None
    stream.let_go()
    assert stream.fitted is None and not stream._coming


def test_the_first_window_is_no_larger_than_it_may_be(small_windows: None) -> None:
    assert len(Stream(loader(rows=20), 0).first) == 20  # the pass ends
    assert len(Stream(loader(rows=500), 0).first) == 42  # the batch that fills it is whole


def test_as_many_rows_are_read_as_drawn(small_windows: None) -> None:
    endless = Endless()
    stream = Stream(endless, 0)
    assert endless.read == 5
    stream.follow(HeldOut(), stream.first, stream.first[:0])
    for drawn in range(10, 500, 10):
        assert stream.sample(10).shape == (10, 2)
        assert endless.read == 5 + math.ceil(drawn / 8)


def test_windows_move_over_all_rows_but_those_held_out(small_windows: None) -> None:
    stream = Stream(loader(rows=300), 0)
    held_out, rest = stream.first[:10], stream.first[10:]
    stream.follow(HeldOut(), rest, held_out)
    drawn = [stream.sample(16) for _ in range(400)]
    assert set(drawn[0].flatten().tolist()) <= set(rest.flatten().tolist())
    seen = set(torch.cat(drawn).flatten().tolist())
    assert not seen & set(held_out.flatten().tolist())
    # 6400 draws from 290 rows, windows of 32: a row is missed in all of about 20 passes with
    # a probability of e^-20 at most.
    assert len(seen) == 290


def test_a_policy_is_fitted_to_every_window_anew(small_windows: None) -> None:
    fits = []

    class Watched(HeldOut):
        def fit(self, x: Tensor) -> HeldOut:
            fits.append(x)
            return super().fit(x)

    stream = Stream(loader(rows=300, shuffle=False), 0)
    stream.follow(Watched(), stream.first[10:], stream.first[:10])
    for _ in range(4):
        stream.sample(33)
    assert [len(x) for x in fits] == [32, 33, 33, 33, 33]
    assert [x[0].item() for x in fits] == [10, 42, 75, 108, 141]


def test_held_out_rows_that_are_taught_too_do_not_stop_the_stream() -> None:
    stream = Stream(DataLoader(torch.ones(12, 2), 4), 0)
    stream.follow(HeldOut(), stream.first[4:], stream.first[:4])
    assert torch.equal(stream.sample(50), torch.ones(50, 2))


@pytest.mark.parametrize("steps", [0, 1, 5, 23])
def test_a_stream_goes_on_where_it_was(small_windows: None, steps: int) -> None:
    def begun() -> Stream:
        stream = Stream(loader(rows=100), 7)
        return stream.follow(HeldOut(), stream.first[6:], stream.first[:6])

    stream = begun()
    for _ in range(steps):
        stream.sample(10)
    position = stream.position()
    again = begun()
    again.seek(position)
    for _ in range(20):
        torch.manual_seed(1)
        expected = stream.sample(10)
        torch.manual_seed(1)
        assert torch.equal(again.sample(10), expected)


# Distilling ----------------------------------------------------------------------------------


def rows_of_two(count: int) -> DataLoader:
    x = torch.randn(count, 2, generator=torch.Generator().manual_seed(5))
    return DataLoader(TensorDataset(x, torch.zeros(count)), batch_size=7, shuffle=True)


@pytest.mark.slow
def test_a_teacher_is_learnt_from_a_stream_without_end(small_windows: None) -> None:
    endless = Endless()
    settings = {"num_steps": 300, "num_draws": 16, "learning_rate": 5e-3, "evaluate_every": 100}
    fast = quick(x=endless, loss="moments", batch_size=64, transfer=HeldOut(), **settings)
    # The first window, and 64 rows a step.
    assert endless.read == 5 + 300 * 64 // 8
    new = torch.randn(300, 2)
    found, expected = fast.dirichlet(new), truth(new)
    # Optimisation, 300 steps judged by 6 inputs: 20 % of alpha_0 in the typical case.
    assert (found.log_concentration - expected.log_concentration).abs().median() < 0.2
    assert (found.mean - expected.mean).abs().mean() < 0.02


def test_the_same_seed_gives_the_same_student(small_windows: None) -> None:
    one = quick(x=rows_of_two(200))
    torch.manual_seed(5)
    assert same(one, quick(x=rows_of_two(200)))
    assert not same(one, quick(x=rows_of_two(200), seed=1))


@pytest.mark.parametrize("steps", [1, 8, 15, 19])
def test_a_killed_run_ends_as_an_unbroken_one(
    small_windows: None, tmp_path: Path, steps: int
) -> None:
    expected = quick(x=rows_of_two(200))
    path = tmp_path / "run.safetensors"
    with killed(steps):
        quick(x=rows_of_two(200), checkpoint=path)
    assert path.exists() == (steps > 5)
    torch.manual_seed(12345)  # another process
    resumed = quick(x=rows_of_two(200), checkpoint=path)
    assert same(resumed, expected) and resumed.report == expected.report


def test_a_regressor_from_a_stream(small_windows: None) -> None:
    w = torch.randn(20, 1, generator=torch.Generator().manual_seed(0))
    endless = Endless()
    fast = quick(lambda x: (w * x[:, 0], torch.ones(20, 1)), endless, loss="moments")
    assert endless.read == 5 + 20 * 16 // 8  # the first window was read once
    assert fast.uncertainty(torch.zeros(4, 2)).total.shape == (4,)
