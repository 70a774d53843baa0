"""Tables that are answered into files: formats, every row once, and runs that were killed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyro_opu import Inputs, OnePassPredictive, distill
from pyro_opu.__main__ import main
from pyro_opu.scoring import job
from pyro_opu.scoring.tables import open_table

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pq = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.usefixtures("brief")

ROWS, PART = 100, 16
X = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0))
W = torch.randn(40, 3, 4, generator=torch.Generator().manual_seed(1))
ID = [f"{number:03}" for number in range(ROWS)]
TABLE = pa.table({"a": X[:, 0].numpy(), "id": ID, "b": X[:, 1].numpy(), "c": X[:, 2].numpy()})


@pytest.fixture(scope="module")
def fast() -> OnePassPredictive:
    return distill(lambda x: (x @ W).softmax(-1), X, num_steps=20, seed=0, progress=False)


@pytest.fixture
def folder(fast: OnePassPredictive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The student, and the table in every format, in uneven batches; parts are of 16 rows."""
    monkeypatch.setattr(job, "ROWS", PART)
    fast.save(tmp_path / "student.safetensors")
    pq.write_table(TABLE, tmp_path / "rows.parquet", row_group_size=7)
    pq.write_table(TABLE, tmp_path / "large.parquet", row_group_size=60)
    for name, opened in (("rows", pa.ipc.new_file), ("stream", pa.ipc.new_stream)):
        with pa.OSFile(str(tmp_path / f"{name}.arrow"), "wb") as sink:
            with opened(sink, TABLE.schema) as file:
                file.write_table(TABLE, max_chunksize=23)
    return tmp_path


def answer(folder: Path, table: str, output: str, *options: str) -> int:
    given = [str(folder / name) for name in ("student.safetensors", table, output)]
    return main(["answer", *given[:2], "-o", given[2], *options])


def read(path: Path) -> Any:
    if path.suffix == ".csv":
        return pd.read_csv(path, dtype={"id": str})
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pandas()
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).read_all().to_pandas()


@pytest.mark.parametrize("table", ["rows.parquet", "large.parquet", "rows.arrow", "stream.arrow"])
@pytest.mark.parametrize("output", ["out.parquet", "out.arrow", "out.csv"])
def test_every_row_is_answered_once_in_order(
    fast: OnePassPredictive, folder: Path, table: str, output: str
) -> None:
    assert answer(folder, table, output, "--columns", "a,b,c") == 0
    found = read(folder / output)
    assert list(found.columns[:2]) == ["id", "p0"] and found["id"].tolist() == ID
    wanted = fast.uncertainty(X)
    mean = found[[f"p{k}" for k in range(4)]].to_numpy()
    np.testing.assert_allclose(mean, fast.dirichlet(X).mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["epistemic"], wanted.epistemic, rtol=1e-5, atol=1e-6)
    assert not list(folder.glob("*.part*"))


class Killed(BaseException):
    """Stands for a power cut."""


def killed(*_: Any) -> None:
    raise Killed


class Mortal:
    """Answers so many parts, and dies at the next; counts the rows."""

    def __init__(self) -> None:
        self.answers, self.left, self.rows = job.answers, 0, 0

    def __call__(self, source: Any, x: Any, seed: int) -> Any:
        if not self.left:
            raise Killed
        self.left -= 1
        self.rows += len(x)
        return self.answers(source, x, seed)


@pytest.mark.parametrize("table", ["rows.parquet", "large.parquet", "rows.arrow", "rows.csv"])
def test_a_run_that_was_killed_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], table: str
) -> None:
    """Killed before every part, and before the move: each row is answered once, by one of both."""
    lines = [",".join(map(repr, row)) for row in X.tolist()]
    (folder / "rows.csv").write_text("\n".join(["a,b,c", *lines]))
    options = [] if table == "rows.csv" else ["--columns", "a,b,c"]
    assert answer(folder, table, "whole.csv", *options) == 0
    whole, parts = (folder / "whole.csv").read_bytes(), -(-ROWS // PART)
    for alive in range(parts + 1):
        mortal = Mortal()
        with monkeypatch.context() as patch:
            patch.setattr(job, "answers", mortal)
            mortal.left = alive
            with monkeypatch.context() as last, pytest.raises(Killed):
                last.setattr(job, "join", killed)
                answer(folder, table, "out.csv", *options)
            assert not (folder / "out.csv").exists() and mortal.rows == min(ROWS, alive * PART)
            mortal.left = parts
            capsys.readouterr()
            assert answer(folder, table, "out.csv", *options) == 0
        assert (folder / "out.csv").read_bytes() == whole and mortal.rows == ROWS
        said = f"goes on after {alive * PART} rows"
        assert (said in capsys.readouterr().err) == bool(alive)
        (folder / "out.csv").unlink()
        assert not list(folder.glob("*.part*"))


def test_a_run_begins_anew_where_a_file_has_changed(
    fast: OnePassPredictive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(job, "join", killed)
        answer(folder, "rows.parquet", "out.csv", "--columns", "a,b,c")
    (folder / "out.csv.parts" / "000003.0123456789abcdef.part").write_bytes(b"half")
    pq.write_table(TABLE.slice(50), folder / "rows.parquet")
    assert answer(folder, "rows.parquet", "out.csv", "--columns", "a,b,c") == 0
    assert read(folder / "out.csv")["id"].tolist() == ID[50:]
    assert not list(folder.glob("*.part*"))


def test_a_folder_of_somebody_else_is_left_alone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "out.csv.parts").mkdir()
    (folder / "out.csv.parts" / "letter.txt").write_text("mine")
    assert answer(folder, "rows.parquet", "out.csv", "--columns", "a,b,c") == 1
    assert "`output` must leave the name" in capsys.readouterr().err
    assert (folder / "out.csv.parts" / "letter.txt").read_text() == "mine"


def replaced(name: str, values: Any) -> Any:
    return TABLE.set_column(TABLE.column_names.index(name), name, pa.array(values))


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (TABLE, [], r"`table\['id'\]` must hold numbers; it holds text"),
        (TABLE, ["--columns", "a,b"], r"must name 3 numbers of a row"),
        (TABLE, ["--columns", "a,b,d"], r"lacks \['d'\]"),
        (TABLE, ["--columns", "a,b,c", "--header"], "`header` is of CSV alone"),
        (replaced("b", [0.0] * 70 + [None] * 30), ["--columns", "a,b,c"], "row 70 has nan in"),
        (TABLE.rename_columns(["a", "p0", "b", "c"]), ["--columns", "a,b,c"], r"got \['p0'\]"),
        (TABLE.slice(0, 0), ["--columns", "a,b,c"], "at least one row"),
    ],
)
def test_tables_that_are_refused_leave_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], table: Any, options: list[str], message: str
) -> None:
    pq.write_table(table, folder / "rows.parquet")
    (folder / "out.parquet").write_text("former")
    assert answer(folder, "rows.parquet", "out.parquet", *options) == 1
    assert re.search(message, capsys.readouterr().err)
    assert (folder / "out.parquet").read_text() == "former"
    assert not list(folder.glob("*.part*"))


def test_columns_of_a_csv_file_are_all_inputs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "rows.csv").write_text("a,b,c\n1,2,3\n")
    assert answer(folder, "rows.csv", "out.csv", "--columns", "a,b,c") == 1
    assert "`columns` must be left out" in capsys.readouterr().err


def test_lists_of_one_length_are_a_matrix(fast: OnePassPredictive, folder: Path) -> None:
    flat = pa.array(X.flatten().numpy())
    pq.write_table(
        pa.table({"x": pa.FixedSizeListArray.from_arrays(flat, 3), "id": ID}),
        folder / "rows.parquet",
    )
    assert answer(folder, "rows.parquet", "out.parquet", "--columns", "x") == 0
    found = read(folder / "out.parquet")
    assert found["id"].tolist() == ID
    np.testing.assert_allclose(found["epistemic"], fast.uncertainty(X).epistemic, rtol=1e-5)


def test_a_table_with_names_is_read_by_them(tmp_path: Path) -> None:
    """Categories by text, dictionary or category; a missing value; others stay beside."""
    ward = np.array(["A", "B", "ICU"])[np.arange(ROWS) % 3]
    lactate = np.where(np.arange(ROWS) % 5 == 0, np.nan, X[:, 0].numpy())
    table = pd.DataFrame({"lactate": lactate, "ward": ward, "id": ID})
    inputs = Inputs.of(table[["lactate", "ward"]], missing=("lactate",))
    level = torch.randn(30, 3, generator=torch.Generator().manual_seed(2))

    def posterior(lactate: Any, lactate_missing: Any, ward: Any) -> torch.Tensor:
        p = (level[:, ward] + lactate.float() * ~lactate_missing).sigmoid()
        return torch.stack([1 - p, p], -1)

    fast = distill(posterior, inputs, num_steps=10, seed=0, progress=False)
    fast.save(tmp_path / "student.safetensors")
    for kind in (str, "category"):
        given = pa.Table.from_pandas(table.astype({"ward": kind}), preserve_index=False)
        pq.write_table(given, tmp_path / "rows.parquet")
        assert answer(tmp_path, "rows.parquet", "out.parquet") == 0
        found = read(tmp_path / "out.parquet")
        assert found["id"].tolist() == ID and "ward" not in found
        expected = fast.uncertainty(table[["lactate", "ward"]]).epistemic
        np.testing.assert_allclose(found["epistemic"], expected, rtol=1e-4)


def test_a_row_group_is_read_page_by_page(fast: OnePassPredictive, tmp_path: Path) -> None:
    """One of six megabytes: what Arrow holds of it at a time is a tenth at most."""
    x = np.random.default_rng(0).standard_normal((3, 500_000), dtype=np.float32)
    table, path = pa.table(list(x), "abc"), tmp_path / "rows.parquet"
    plain: dict[str, Any] = {"use_dictionary": False, "data_page_size": 2**14}
    pq.write_table(table, path, row_group_size=x.shape[1], **plain)
    rows, before, held = 0, pa.total_allocated_bytes(), []
    for block in open_table(str(path), fast, 2**12).blocks:
        held.append(pa.total_allocated_bytes() - before)
        rows += len(block.x)
    assert rows == x.shape[1] and max(held) < path.stat().st_size / 10


#: Runs the command, and prints the most memory that it took, in MB.
PEAK = """
import sys
from pyro_opu.__main__ import main
assert main(sys.argv[1:]) == 0
[line] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(line.split()[1]) / 1e3)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no peak to read")
def test_a_million_rows_in_one_row_group_take_bounded_memory(tmp_path: Path) -> None:
    """64 columns, 256 MB of numbers: at most 300 MB more than a thousand rows take."""
    w, x = torch.randn(20, 64, 4), torch.randn(1_000_000, 64)
    fast = distill(lambda x: (x @ w).softmax(-1), x[:200], num_steps=5, seed=0, progress=False)
    fast.save(tmp_path / "student.safetensors")
    peaks = []
    for rows in (1000, len(x)):
        table = pa.table(list(x[:rows].T.numpy()), [f"x{k}" for k in range(64)])
        pq.write_table(table, tmp_path / "rows.parquet", row_group_size=rows)
        given = [str(tmp_path / name) for name in ("student.safetensors", "rows.parquet")]
        words = ["answer", *given, "-o", str(tmp_path / "out.parquet")]
        done = subprocess.run(
            [sys.executable, "-c", PEAK, *words], capture_output=True, text=True, check=True
        )
        peaks.append(float(done.stdout.split()[-1]))
    assert peaks[1] - peaks[0] < 300, peaks


def test_two_runs_do_not_write_the_same_output(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another student's answers, begun in the middle of a run, do not mix with those of the run."""
    answers, others = job.answers, []

    def interrupted(source: Any, x: Any, seed: int) -> Any:
        if not others:
            others.append(None)
            others.append(answer(folder, "large.parquet", "out.csv", "--columns", "b,a,c"))
        return answers(source, x, seed)

    given = "rows.parquet", "out.csv", "--columns", "a,b,c"
    assert answer(folder, *given) == 0
    whole = (folder / "out.csv").read_bytes()
    monkeypatch.setattr(job, "answers", interrupted)
    assert answer(folder, *given) == 0
    assert others == [None, 1] and "one run at a time" in capsys.readouterr().err
    assert (folder / "out.csv").read_bytes() == whole and not list(folder.glob("*.part*"))


@pytest.mark.parametrize("kind", ["file", "link"])
def test_numbered_files_of_somebody_else_are_left_alone(folder: Path, kind: str) -> None:
    """A folder that only looks like parts, as it has no plan; the table itself is in it."""
    parts, table = folder / "out.csv.parts", folder / "mine" / "000001"
    table.parent.mkdir()
    table.write_text("1,2,3\n")
    parts.symlink_to(table.parent) if kind == "link" else table.parent.rename(parts)
    assert answer(folder, "out.csv.parts/000001", "out.csv") == 1
    assert (parts / "000001").read_text() == "1,2,3\n"


def test_a_stream_without_its_end_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cut between two batches, where Arrow reads it as a shorter one; and anywhere else."""
    whole = (folder / "stream.arrow").read_bytes()
    shorter = 0
    for end in range(len(whole) - 8, 0, -8):
        (folder / "stream.arrow").write_bytes(whole[:end])
        try:
            with pa.ipc.open_stream(whole[:end]) as stream:
                shorter += len(stream.read_all()) < ROWS
        except (pa.ArrowInvalid, OSError):
            continue
        assert answer(folder, "stream.arrow", "out.csv", "--columns", "a,b,c") == 1
        assert "`table` must be a whole arrow file" in capsys.readouterr().err
    assert shorter > 2 and not list(folder.glob("out*"))


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("content", [b"", b"no table", None, "empty", "folder"])
def test_files_that_are_no_tables(
    folder: Path, capsys: pytest.CaptureFixture[str], suffix: str, content: Any
) -> None:
    path = folder / f"rows.{suffix}"
    whole = path.read_bytes()
    path.unlink()
    if content == "folder":
        path.mkdir()
    elif content == "empty" and suffix == "arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, TABLE.schema):
            pass
    elif content == "empty":
        pq.write_table(TABLE[:0], path)
    else:
        path.write_bytes(whole[:-40] if content is None else content)
    assert answer(folder, path.name, "out.csv", "--columns", "a,b,c") == 1
    assert capsys.readouterr().err.startswith("pyro-opu: `table` must ")
    assert not list(folder.glob("out*"))


@pytest.fixture(scope="module")
def wards() -> tuple[OnePassPredictive, Any]:
    """A student of a table with a ward called NA, a date, a truth value and numbers that miss."""
    place = np.arange(ROWS)
    table = pd.DataFrame(
        {
            "lactate": np.where(place % 5 == 0, np.nan, X[:, 0].double().numpy()),
            "ward": np.array(["A", "NA", "None"])[place % 3],
            "day": pd.date_range("2020-01-01", periods=ROWS),
            "grade": pd.Categorical(place % 4),
            "old": place % 2 == 0,
        }
    )
    level = torch.randn(30, 4, generator=torch.Generator().manual_seed(2))

    def posterior(
        lactate: Any, lactate_missing: Any, ward: Any, day: Any, grade: Any, old: Any
    ) -> torch.Tensor:
        score = level[:, ward] - level[:, grade] + lactate.float() * ~lactate_missing + old * 1.0
        p = (score + (day.float() - 18_300) / 30).sigmoid()
        return torch.stack([1 - p, p], -1)

    inputs = Inputs.of(table, missing=("lactate",))
    return distill(posterior, inputs, num_steps=10, seed=0, progress=False), table


def test_a_csv_file_with_names_is_read_by_them(
    wards: tuple[OnePassPredictive, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks; NA is a ward here, and only elsewhere a missing value."""
    fast, table = wards
    fast.save(tmp_path / "student.safetensors")
    expected = fast.uncertainty(table).epistemic
    monkeypatch.setattr(job, "ROWS", PART)
    for form in (
        table,
        table[table.columns[::-1]],
        table.assign(id=ID, grade=table.grade.astype(float)),
    ):
        form.to_csv(tmp_path / "rows.csv", index=False)
        assert answer(tmp_path, "rows.csv", "out.csv") == 0
        np.testing.assert_allclose(read(tmp_path / "out.csv")["epistemic"], expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [lines[0], *(f"{line},7" for line in lines[1:])], "line 2 has 6"),
        (lambda lines: [*lines[:7], lines[7] + ",7", *lines[8:]], "line 8 has 6"),
        (lambda lines: [*lines[:7], lines[7].rsplit(",", 1)[0], *lines[8:]], "line 8 has 4"),
        (lambda lines: [*lines[:7], "", *lines[7:]], "line 8 is empty"),
        (lambda lines: [lines[0] + ",day", *(f"{line},7" for line in lines[1:])], r"twice .*day"),
        (lambda lines: lines[1:], "must have the columns"),
        (lambda lines: lines[:1], "at least one row"),
        (lambda lines: [], "at least one row"),
        (
            lambda lines: [line.replace("2020-01-", "01/02/20") for line in lines],
            "must hold a date",
        ),
        (lambda lines: [*lines[:40], "x" + lines[40], *lines[41:]], r"`table\[32:\]\['lactate'\]`"),
    ],
)
def test_a_csv_file_with_names_is_refused_where_a_row_would_be_lost(
    wards: tuple[OnePassPredictive, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: Any,
    message: str,
) -> None:
    fast, table = wards
    fast.save(tmp_path / "student.safetensors")
    monkeypatch.setattr(job, "ROWS", PART)
    lines = table.to_csv(index=False).splitlines()
    (tmp_path / "rows.csv").write_text("\n".join(change(lines)))
    assert answer(tmp_path, "rows.csv", "out.csv") == 1
    assert re.search(message, capsys.readouterr().err)
    assert not list(tmp_path.glob("out*"))
