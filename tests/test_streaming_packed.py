"""Several inputs from a loader: their form in a batch, indices of the whole pass, every stop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import input_forms
import pytest
import torch
from flat import distill_flat
from quick_distill import killed
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from pyro_opu import OnePassPredictive
from pyro_opu.programs import enumerated
from pyro_opu.transfer import HeldOut
from pyro_opu.transfer import stream as streams
from pyro_opu.transfer.stream import Passes, Stream

pytestmark = pytest.mark.usefixtures("brief")

ROWS = 90
X = torch.randn(ROWS, 2, generator=torch.Generator().manual_seed(0))
GROUP, Y = torch.arange(ROWS) // 10, torch.zeros(ROWS)  # a group is in two batches at most
DRAWS = torch.randn(20, 9, generator=torch.Generator().manual_seed(1))


def affine(x: Tensor, group: Tensor) -> Tensor:
    p = torch.sigmoid(DRAWS[:, group] + x[:, 0])
    return torch.stack([1 - p, p], -1)


def curved(x: Tensor, group: Tensor) -> Tensor:
    """One without a closed form, whose students begin from scratch."""
    return affine(2 * x.sin(), group)


def loader(rows: list[Any], shuffle: bool = False) -> DataLoader:
    return DataLoader(rows, batch_size=10, shuffle=shuffle)  # type: ignore[arg-type]


def named(shuffle: bool = False) -> DataLoader:
    return loader([{"x": x, "group": g} for x, g in zip(X, GROUP, strict=True)], shuffle)


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_ROWS", 40)
    monkeypatch.setattr(streams, "LEAST_ROWS", 4)


ROW = list(zip(X, GROUP, Y, strict=True))


@pytest.mark.parametrize(
    ("rows", "form"),
    [
        ([x for x, _, _ in ROW], None),
        ([(x, y) for x, _, y in ROW], None),
        (ROW, None),  # one input, and what follows
        ([x[0] for x, _, _ in ROW], "tensor"),
        ([(g, y) for _, g, y in ROW], "tensor"),
        ([{"x": x, "group": g} for x, g, _ in ROW], "dict"),
        ([({"x": x, "group": g}, y) for x, g, y in ROW], "dict"),
        ([((x, g), y) for x, g, y in ROW], "tuple"),
        ([((x, g),) for x, g, _ in ROW], "tuple"),
    ],
)
def test_the_form_of_a_batch(rows: list[Any], form: str | None) -> None:
    passes = Passes(loader(rows), seed=0)
    first = passes.take()
    assert first is not None and len(first) == 10
    assert (passes.form.kind if passes.form.parts else None) == form
    if form in ("dict", "tuple"):
        torch.testing.assert_close(first, torch.cat([X[:10], GROUP[:10, None]], 1))


def test_indices_of_the_whole_pass_are_known(small_windows: None) -> None:
    stream = Stream(named(), 0)
    assert len(stream.first) == 40 and stream.first[:, 2].unique().tolist() == [0, 1, 2, 3]
    assert stream.form.indices == [(2, tuple(range(9)))]
    stream.follow(HeldOut(), stream.first[6:], stream.first[:6])
    drawn = torch.cat([stream.sample(20) for _ in range(30)])
    assert drawn[:, 2].unique().tolist() == list(range(9))


class Counting(IterableDataset):
    """An index that goes on and on."""

    def __iter__(self) -> Iterator[Tensor]:
        number = 0
        while True:
            yield torch.arange(number, number + 10)
            number += 10


def test_a_new_index_after_the_rows_looked_at_is_refused(
    small_windows: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "INDEXED_ROWS", 70)
    stream = Stream(DataLoader(Counting(), batch_size=None), 0)
    stream.follow(HeldOut(), stream.first[6:], stream.first[:6])
    with pytest.raises(ValueError, match=r"`x` must hold indices .* seen; got \[70, 71, 72, 73"):
        stream.sample(50)


def test_rows_of_a_later_dtype_are_those_of_the_first(small_windows: None) -> None:
    """An index that float32 would round comes in the last batch alone."""
    rows = [{"x": x, "group": 2**24 + g * (i >= 80)} for i, (x, g, _) in enumerate(ROW)]
    stream = Stream(loader(rows), 0)
    assert stream.first.dtype == torch.float64
    stream.follow(HeldOut(), stream.first, stream.first[:0])
    found = torch.cat([stream.sample(20) for _ in range(30)])
    assert found[:, 2].unique().tolist() == [2**24, 2**24 + 8]


def test_a_batch_of_another_form_is_refused() -> None:
    batches = [{"x": X, "group": GROUP}, {"x": X}]
    with pytest.raises(ValueError, match=r"must be a dict of tensors x \(N, 2\), group \(N,\); "):
        Stream(DataLoader(batches, batch_size=None), 0)  # type: ignore[arg-type]


def quick(source: Any, x: Any, **changes: Any) -> OnePassPredictive:
    settings = {"num_steps": 20, "batch_size": 16, "seed": 0, "evaluate_every": 5}
    return distill_flat(source, x, **{**settings, "progress": False, **changes})


def test_what_follows_the_inputs_is_no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """`(x, group)` is x and labels; what the model is then not given is named."""
    monkeypatch.setattr(enumerated, "MOST_NODES", 4)  # a group that is not given is summed out
    flat = loader([(x, g) for x, g, _ in ROW])
    with pytest.warns(UserWarning, match="None for group: an input of the rows belongs into x, a"):
        input_forms.quick(input_forms.posterior(), flat, num_steps=1)


@pytest.mark.filterwarnings("ignore:The student has learned little")
@pytest.mark.parametrize("kind", ["loader", "dict"])
@pytest.mark.parametrize(
    ("source", "start", "steps"),
    [(curved, "scratch", 8), (curved, "scratch", 19), (affine, "closed form", 8)],
)
def test_a_killed_run_ends_as_an_unbroken_one(
    small_windows: None,
    tmp_path: Path,
    kind: str,
    source: Any,
    start: str,
    steps: int,
) -> None:
    def x() -> Any:
        return named(shuffle=True) if kind == "loader" else {"x": X, "group": GROUP}

    expected, path = quick(source, x()), tmp_path / "run.safetensors"
    assert expected.report["start"] == start
    with killed(steps):
        quick(source, x(), checkpoint=path)
    assert path.exists()
    torch.manual_seed(12345)  # another process
    resumed = quick(source, x(), checkpoint=path)
    assert resumed.report == expected.report
    new = {"x": X[:9] + 1, "group": GROUP[::10]}
    assert torch.equal(resumed.dirichlet(new).mean, expected.dirichlet(new).mean)
    assert resumed(X[:9], GROUP[::10])["obs"].shape == (20, 9)
