"""A scorer gives each kind of batch back with the answers, loads once, and travels as a path."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyro_opu import OnePassPredictive, Scorer, distill
from pyro_opu.export.reading import ReadProgram
from pyro_opu.scoring import scorer as module
from pyro_opu.scoring.batches import inputs_of

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pytestmark = pytest.mark.usefixtures("brief")

X = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
W = torch.randn(40, 3, 4, generator=torch.Generator().manual_seed(1))
COLUMNS = {"a": X[:, 0].numpy(), "id": np.arange(50), "b": X[:, 1].numpy(), "c": X[:, 2].numpy()}


def posterior(x: torch.Tensor) -> torch.Tensor:
    return (x @ W).softmax(-1)


@pytest.fixture(scope="module")
def fast() -> OnePassPredictive:
    return distill(posterior, X, num_steps=20, seed=0, progress=False)


@pytest.fixture
def path(fast: OnePassPredictive, tmp_path: Path) -> Path:
    fast.save(tmp_path / "student.safetensors")
    return tmp_path / "student.safetensors"


@pytest.fixture
def scorer(path: Path) -> Scorer:
    return Scorer(path, ["a", "b", "c"], threads=None)


def heard(fast: OnePassPredictive) -> Any:
    """What it says at X in the pass that novelty hears, which merges no weights."""
    (table,) = fast._tables_of(*fast._answer_and_novelty(X)).values()
    torch.testing.assert_close(table.epistemic, fast.uncertainty(X).epistemic)
    return table


def as_column(found: Any, name: str) -> Any:
    values = found[name]
    return np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)


BATCHES: dict[str, Callable[[], Any]] = {
    "dict": lambda: dict(COLUMNS),
    "pandas": lambda: pd.DataFrame(COLUMNS, index=np.arange(50) + 7),
    "table": lambda: pa.table(COLUMNS),
    "record batch": lambda: pa.RecordBatch.from_pydict(COLUMNS),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_a_batch_comes_back_with_the_answers(
    fast: OnePassPredictive, scorer: Scorer, kind: str
) -> None:
    batch = BATCHES[kind]()
    found = scorer(batch)
    assert type(found) is type(batch)
    names = list(found) if kind in ("dict", "pandas") else found.schema.names
    assert names == [*COLUMNS, *scorer.outputs]
    for name, values in COLUMNS.items():
        np.testing.assert_array_equal(as_column(found, name), values)
    np.testing.assert_allclose(as_column(found, "epistemic"), heard(fast).epistemic, rtol=1e-6)
    mean = np.stack([as_column(found, f"p{k}") for k in range(4)], 1)
    np.testing.assert_allclose(mean, fast.dirichlet(X).mean, rtol=1e-6)
    if kind == "pandas":
        assert found.index.equals(batch.index) and list(batch) == list(COLUMNS)


@pytest.mark.parametrize("kind", BATCHES)
def test_no_rows_have_the_same_columns(scorer: Scorer, kind: str) -> None:
    some = BATCHES[kind]()
    none = {k: v[:0] for k, v in some.items()} if kind == "dict" else some[:0]
    whole, found = scorer(some), scorer(none)
    for name in scorer.outputs:
        assert len(found[name]) == 0
        assert as_column(found, name).dtype == as_column(whole, name).dtype


def test_an_iterator_gives_an_iterator(scorer: Scorer) -> None:
    frame = BATCHES["pandas"]()
    found = scorer(iter([frame[:20], frame[20:]]))
    assert hasattr(found, "__next__")
    pd.testing.assert_frame_equal(pd.concat(found), scorer(frame), rtol=1e-5)


def test_it_travels_as_a_path_and_loads_once(
    scorer: Scorer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = pickle.dumps(scorer)
    assert len(sent) < 1000
    loads: list[Any] = []
    monkeypatch.setattr(module, "load", lambda *given: loads.append(given) or LOAD(*given))
    module._loaded.cache_clear()  # as in another process
    monkeypatch.chdir(path.parent.parent)
    arrived = pickle.loads(sent)
    assert not loads
    arrived(dict(COLUMNS))
    pickle.loads(sent)(dict(COLUMNS))
    assert len(loads) == 1


LOAD = module.load


def test_threads_are_set_where_it_is_read(path: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        module._loaded.cache_clear()
        Scorer(path)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_another_file_in_its_place_is_refused(
    fast: OnePassPredictive, scorer: Scorer, path: Path
) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    module._loaded.cache_clear()
    with pytest.raises(ValueError, match="`path` must be the file that the scorer was made with"):
        scorer(dict(COLUMNS))


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ([1, 2], TypeError, "`batch` must be a dict of arrays.*got list"),
        (COLUMNS | {"p0": X[:, 0]}, ValueError, r"other names than the answers; got \['p0'\]"),
        ({"a": [1.0]}, ValueError, r"lacks \['b', 'c'\]"),
        (COLUMNS | {"b": ["x"] * 50}, TypeError, r"`batch\['b'\]` must hold numbers; it holds"),
        (COLUMNS | {"b": [np.inf] * 50}, ValueError, "row 0 has inf in the column 'b'"),
        (COLUMNS | {"b": [b"1"] * 50}, TypeError, r"`batch\['b'\]` must hold numbers; it holds"),
        (COLUMNS | {"b": [1.0] * 9}, ValueError, "columns of one length; got .*'b': 9"),
        (COLUMNS | {"b": 1.0}, TypeError, r"`batch\['b'\]` must be a column"),
        (COLUMNS | {"b": [[1.0], [1.0, 2.0]] * 25}, ValueError, "as many numbers in every row"),
        (COLUMNS | {"b": [[1.0], None] * 25}, ValueError, "as many numbers in every row"),
        (COLUMNS | {"b": np.ma.masked_equal([1.0] + [2.0] * 49, 1.0)}, ValueError, "row 0 has nan"),
        (COLUMNS | {"b": X.numpy()}, ValueError, "must name 3 numbers of a row.*have 5"),
    ],
)
def test_batches_that_are_refused(scorer: Scorer, batch: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        scorer(batch)


def test_a_matrix_in_one_column(fast: OnePassPredictive, path: Path) -> None:
    """Ray's tensors are such columns; all columns are inputs unless some are named."""
    wanted = heard(fast).epistemic
    for batch in ({"data": X.numpy()}, pd.DataFrame({"data": list(X.numpy())})):
        found = Scorer(path, threads=None)(batch)
        np.testing.assert_allclose(found["epistemic"], wanted, rtol=1e-6)


def test_an_index_that_a_student_has_not_seen_is_refused_for_its_program() -> None:
    """A program answers it with NaN; one with the draws inside knows every index that they do."""
    group = {"name": "group", "shape": [], "dtype": "int64", "values": [0, 1, 2], "source": []}
    x = {"name": "x", "shape": [2], "dtype": "float32", "values": None, "source": []}
    form, outputs = {"kind": "dict", "parts": [x, group]}, {"inputs": [{}], "outputs": {}}
    described = {"pyro_opu_version": "1", "num_classes": 2, "form": form, **outputs}
    columns = {"group": [0, 3], "x_1": [1.0, 2.0], "x_0": [3.0, 4.0]}
    student = ReadProgram(dict, described)
    with pytest.raises(ValueError, match=r"`batch\['group'\]` must hold indices.*seen; got \[3\]"):
        inputs_of(student, columns, None)
    assert inputs_of(student, columns | {"group": [0, 2]}, None)[1].tolist() == [4.0, 2.0, 2.0]
    draws = ReadProgram(dict, described | {"num_draws": 9})
    assert inputs_of(draws, columns, None)[1].tolist() == [4.0, 2.0, 3.0]
