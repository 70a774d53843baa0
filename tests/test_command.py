"""The command ``pyro-opu``: every row of a table is answered, and what it reads stays as it is."""

from __future__ import annotations

import csv
import io
import random
import sys
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive

from pyro_opu import OnePassPredictive, Scorer, distill, exact
from pyro_opu.__main__ import main
from pyro_opu.export import reading
from pyro_opu.ladder.base import Exact
from pyro_opu.scoring.csv_rows import CsvRows

pytestmark = pytest.mark.usefixtures("brief")

torch.manual_seed(0)
X, W = torch.randn(80, 3), torch.randn(40, 3, 4)
QUICK: dict[str, Any] = {"num_steps": 20, "seed": 0, "progress": False}


def csv_rows(
    content: bytes, width: int, header: bool | None = None
) -> tuple[torch.Tensor, str | None]:
    """All rows of a table, read two at a time, and its header."""
    file = io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="")
    table = CsvRows(file, width, header)
    return torch.cat(list(table.blocks(2))), table.header


def teacher(x: torch.Tensor) -> torch.Tensor:
    return (x @ W).softmax(-1)


@pytest.fixture(scope="module")
def fast() -> OnePassPredictive:
    return distill(teacher, X, **QUICK)


@pytest.fixture
def folder(fast: OnePassPredictive, tmp_path: Path) -> Path:
    fast.save(f"{tmp_path / 'student'}/")
    return tmp_path / "student"


def test_inspect_and_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "input (3,) -> 4 classes" in shown
    assert "draws, held out" in shown
    assert main(["check", str(folder)]) == 0
    assert "whole" in capsys.readouterr().out


def test_inspect_says_the_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    student = distill(teacher, torch.randn(200, 3), **QUICK)
    student.save(tmp_path / "s.safetensors")
    student.export(tmp_path / "s.onnx", outputs=["mean"])
    assert main(["inspect", str(tmp_path / "s.safetensors")]) == 0
    assert f"total variation at most {student.bound():.2g} at 95 %" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "s.onnx")]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("bound: ")]
    assert len(lines) == 2  # 20 kept rows are too few for .99
    assert lines[1] == f"bound: mean within {student.bound()} of its teacher's at 0.95 of new rows"


def test_a_damaged_file_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert main(["check", str(folder)]) == 1
    assert "checksum" in capsys.readouterr().err


@pytest.mark.parametrize("header", ["", "a,b,c\n"])
def test_answers_are_those_of_the_student(
    fast: OnePassPredictive, folder: Path, tmp_path: Path, header: str
) -> None:
    table = tmp_path / "rows.csv"
    table.write_text(header + "\n".join(",".join(map(repr, row)) for row in X.tolist()))
    assert main(["answer", str(folder), str(table), "-o", str(tmp_path / "out.csv")]) == 0
    with open(tmp_path / "out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(X)
    means = torch.tensor([[float(row[f"p{k}"]) for k in range(4)] for row in rows])
    torch.testing.assert_close(means, fast.dirichlet(X).mean, rtol=1e-5, atol=1e-6)  # seven digits
    epistemic = torch.tensor([float(row["epistemic"]) for row in rows])
    torch.testing.assert_close(epistemic, fast.uncertainty(X).epistemic, rtol=1e-5, atol=1e-6)


def test_a_real_y_is_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = torch.randn(30, 3)
    student = distill(lambda x: (weights @ x.mT, torch.ones(30, 1)), X, **QUICK)
    student.save(tmp_path / "s.safetensors")
    (tmp_path / "rows.csv").write_text("1,2,3\n4,5,6\n")
    assert main(["answer", str(tmp_path / "s.safetensors"), str(tmp_path / "rows.csv")]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.startswith("mean,total,aleatoric,epistemic")
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n", "must have 3 columns"),
        ("a,b,c\n1,x,3\n", "line 2 has 'x' in column 2"),
        ("a,b,c\n", "at least one row"),
    ],
)
def test_bad_tables(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (tmp_path / "rows.csv").write_text(text)
    assert main(["answer", str(folder), str(tmp_path / "rows.csv")]) == 1
    assert message in capsys.readouterr().err


def test_export(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file itself is that of `student.export`."""
    written: list[Path] = []
    monkeypatch.setattr(OnePassPredictive, "export", lambda _, path: written.append(Path(path)))
    assert main(["export", str(folder), str(tmp_path / "student.pt2")]) == 0
    assert written == [tmp_path / "student.pt2"]


BOM = b"\xef\xbb\xbf"
TWO = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


@pytest.mark.parametrize(
    ("content", "header"),
    [
        (b"1,2,3\n4,5,6\n", None),
        (b"1,2,3\n4,5,6", None),
        (b"1,2,3\r\n4,5,6\r\n\r\n\n", None),
        (b"1,2,3\r4,5,6\r", None),
        (BOM + b"1,2,3\n4,5,6\n", None),
        (BOM + b"a,b,c\n1,2,3\n4,5,6\n", "a,b,c"),
        ("größe,\u7532,c d\n1,2,3\n4,5,6\n".encode(), "größe,\u7532,c d"),
        (b'"1","2"," 3 "\n+4,5e0,.6e1\n', None),
        (b"p0,x1,1st\n1,2,3\n4,5,6\n", "p0,x1,1st"),
    ],
)
def test_tables_that_are_read_whole(content: bytes, header: str | None) -> None:
    rows, found = csv_rows(content, 3)
    assert (rows.tolist(), found) == (TWO, header)


UNCLEAR = ["1,,3", "NA,2,3", "1,2,3x", "=1+1,2,3", "True,2,3", ",,", "NA,NA,NA", "TRUE,FALSE,TRUE"]
UNCLEAR += ["a,2,c", "nan,1,2", "inf,1,2", "0,1,2", "1e400,1,2", "'1','2','3'a,2,3", "a,,c"]


@pytest.mark.parametrize("first", UNCLEAR)
@pytest.mark.parametrize("bom", [b"", BOM])
def test_a_first_line_that_may_be_a_row_is_refused(first: str, bom: bytes) -> None:
    content = bom + f"{first}\n1,2,3\n4,5,6\n".encode()
    with pytest.raises(ValueError, match=r"`table` must .*line"):
        csv_rows(content, len(first.split(",")) if "'" in first else 3)
    if "'" not in first:
        assert csv_rows(content, 3, header=True)[0].tolist() == TWO
    if first == "0,1,2":
        assert csv_rows(content, 3, header=False)[0].tolist() == [[0.0, 1.0, 2.0], *TWO]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1,2,3\n\n4,5,6\n", "line 2 is empty and others follow"),
        (b"1,2,3\n1,,3\n", "line 2 has '' in column 2"),
        (b"1,2,3\nNA,2,3\n", "line 2 has 'NA' in column 1"),
        (b"a,b,c\nd,e,f\n1,2,3\n", "line 2 has 'd'"),
        (b"a,b\n1,2,3\n", "line 1 has 2"),
        (b",a,b,c\n0,1,2,3\n", "line 1 has 4"),
        (b"1;2;3\n", "separated by commas.*line 1 has 1"),
        (b'1,2,3\n"1,2,3\n4,5,6\n', "line 3"),
        (b"", "at least one row"),
        (b"\n\n", "at least one row"),
        (b"\xe9,b,c\n1,2,3\n", "text in UTF-8; it has .* soon after line 0"),
        ("1,2,3\n".encode("utf-16"), "text in UTF-8"),
        ("1,2,3\n".encode("utf-16-le"), "line 2 has 1"),
        (b"1,2," + b"3" * 200_000 + b"\n", "line 1 is not: field larger"),
        (b"1,2,3\n1,2,inf\n", "line 2 has 'inf' in column 3"),
    ],
)
def test_what_would_lose_a_row_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"`table` .*{message}"):
        csv_rows(content, 3)


@pytest.mark.parametrize("content", [b"1\n\n2\n", b"\n1\n2\n", b'1\n""\n2\n', b"1\n \n2\n"])
def test_an_empty_line_of_one_column_may_be_a_missing_row(content: bytes) -> None:
    with pytest.raises(ValueError, match="`table` must"):
        csv_rows(content, 1)


@pytest.mark.parametrize("seed", range(200))
def test_rows_out_are_rows_in_or_the_table_is_refused(seed: int) -> None:
    """Tables of random cells, with or without a header: none loses a row, none of numbers fails."""
    draw = random.Random(seed)
    width, count = draw.randint(1, 3), draw.randint(1, 4)
    rows = [[draw.uniform(-9, 9) for _ in range(width)] for _ in range(count)]
    cells = [[repr(value) for value in row] for row in rows]
    strange = draw.random() < 0.5
    if strange:
        odd = ["", "NA", "x", "True", "1x", "-", "#REF!", "1,5", "nan"]
        cells[draw.randrange(count)][draw.randrange(width)] = draw.choice(odd)
    header = draw.random() < 0.5
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=draw.choice(["\n", "\r\n"]))
    writer.writerows(([[f"col{k}" for k in range(width)]] if header else []) + cells)
    content = draw.choice([b"", BOM]) + text.getvalue().encode()
    try:
        found, line = csv_rows(content, width)
    except ValueError as error:
        assert strange and "`table`" in str(error)
        return
    # One word alone in the first line of a single column is a header for all that can be seen.
    named = header or cells[0] in (["x"], ["1x"], ["1,5"])
    assert (line is not None) == named
    assert found.tolist() == (rows if header or not named else rows[1:])


def test_the_header_is_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_text("a,b,c\n1,2,3\n")
    assert main(["answer", str(folder), str(tmp_path / "rows.csv")]) == 0
    assert "took line 1 for a header: a,b,c" in capsys.readouterr().err
    (tmp_path / "rows.csv").write_text("0,1,2\n1,2,3\n")
    for flag, rows in {"--header": 1, "--no-header": 2}.items():
        assert main(["answer", flag, str(folder), str(tmp_path / "rows.csv")]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 1 + rows
    assert main(["answer", str(folder), str(tmp_path / "rows.csv")]) == 1
    assert "--no-header" in capsys.readouterr().err


def test_rows_from_a_pipe(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BOM + b"1,2,3\n4,5,6\n")))
    assert main(["answer", str(folder), "-"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize("command", ["answer", "export"])
@pytest.mark.parametrize("through", ["name", "link", "hard link"])
def test_what_is_read_is_not_replaced(
    fast: OnePassPredictive,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    through: str,
) -> None:
    fast.save(tmp_path / "student.pt2")
    fast.save(f"{tmp_path / 'student'}/")
    table = tmp_path / "rows.csv"
    table.write_text("1,2,3\n")
    read = [(tmp_path / "student.pt2", tmp_path / "student.pt2")]
    read += [(tmp_path / "student", path) for path in (tmp_path / "student").iterdir()]
    read += [(tmp_path / "student", table)] if command == "answer" else []
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for number, (student, path) in enumerate(read):
        output = path
        if through != "name":
            output = tmp_path / f"{number}.pt2"
            (output.symlink_to if through == "link" else output.hardlink_to)(path)
        given = [str(student), str(table), "-o", str(output)]
        assert main(["answer", *given] if command == "answer" else ["export", given[0], given[3]])
        assert "`output` must be another file" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in before}


def test_an_output_is_whole_or_as_it_was(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, output = tmp_path / "rows.csv", tmp_path / "out.csv"
    output.write_text("former")
    table.write_text("1,2,3\n1,x,3\n")
    given = ["answer", str(folder), str(table), "-o", str(output)]
    assert main(given) == 1
    table.write_text("1,2,3\n")
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
        assert main(given) == 1
    assert output.read_text() == "former"
    assert main(given) == 0
    assert len(output.read_text().splitlines()) == 2
    assert not list(tmp_path.glob("*.part"))
    assert main([*given[:-1], str(tmp_path / "no" / "out.csv")]) == 1
    assert "`output` must lie in an existing folder" in capsys.readouterr().err


# A program in the place of a student ---------------------------------------------------------

S, GROUPS, ROWS = 30, 3, 200
GROUP = torch.arange(ROWS) % GROUPS
ROWS_OF = torch.randn(ROWS, 2, generator=torch.Generator().manual_seed(1))
HEADER = "group,x_1,x_0"
LINES = [f"{g},{b!r},{a!r}" for g, (a, b) in zip(GROUP.tolist(), ROWS_OF.tolist(), strict=True)]


def grouped(x: torch.Tensor, group: torch.Tensor) -> None:
    a = pyro.sample("a", dist.Normal(torch.zeros(GROUPS), 1.0).to_event(1))
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Bernoulli(logits=a[group] + x @ w))


@pytest.fixture(scope="module")
def posterior() -> Exact:
    torch.manual_seed(0)
    samples = {"a": torch.randn(S, GROUPS), "w": torch.randn(S, 2)}
    found: Exact = exact(Predictive(grouped, samples))
    found.draws((ROWS_OF, GROUP))
    return found


@pytest.fixture(scope="module", params=[".pt2", pytest.param(".onnx", marks=pytest.mark.slow)])
def program(
    posterior: Exact, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("program") / f"exact{request.param}"
    if request.param == ".onnx":
        pytest.importorskip("onnxruntime")
    posterior.export(path, outputs="mean, epistemic, quantile_0.1, labels")
    return path


def test_a_program_answers_as_exact_does(
    posterior: Exact, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "ROWS", 64)  # four blocks
    table, output = tmp_path / "rows.csv", tmp_path / "out.csv"
    table.write_text("\n".join([HEADER, *LINES]))
    assert main(["answer", str(program), str(table), "-o", str(output)]) == 0
    with open(output, newline="") as file:
        rows = list(csv.DictReader(file))
    wanted = posterior.uncertainty((ROWS_OF, GROUP), quantiles=[0.1])
    columns = {
        "p1": wanted.mean[:, 1],
        "epistemic": wanted.epistemic,
        "quantile_0.1_0": wanted.quantiles[0, :, 0],
    }
    for name, values in columns.items():
        found = torch.tensor([float(row[name]) for row in rows])
        torch.testing.assert_close(found, values, rtol=1e-5, atol=1e-6)
    labels = torch.tensor([[int(row[f"labels_{s}"]) for s in range(S)] for row in rows])
    assert not torch.equal(labels[:64], labels[64:128])
    probs = posterior.probs((ROWS_OF, GROUP))[..., 1].double()
    sigma = float((probs * (1 - probs)).sum().sqrt())  # the seed is fixed, so that it never fails
    assert abs(float(labels.sum() - probs.sum())) < 5 * sigma


def test_a_scorer_takes_a_program(posterior: Exact, program: Path) -> None:
    scorer = Scorer(program, threads=None)
    batch = {"x_1": ROWS_OF[:, 1], "group": GROUP, "x_0": ROWS_OF[:, 0]}
    found = scorer(batch)
    wanted = posterior.uncertainty((ROWS_OF, GROUP)).epistemic
    torch.testing.assert_close(torch.tensor(found["epistemic"]), wanted, rtol=1e-5, atol=1e-6)
    labels = [name for name in scorer.outputs if name.startswith("labels")]
    again, moved = scorer(batch), scorer(batch | {"x_0": ROWS_OF[:, 0] + 1e-4})
    assert len(labels) == S and all((found[name] == again[name]).all() for name in labels)
    assert any((found[name] != moved[name]).any() for name in labels)


def test_a_program_is_inspected_and_checked(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(program)]) == 0
    shown = capsys.readouterr().out
    assert f"with {S} draws inside" in shown and f"output: labels ({S}, N), class" in shown
    assert main(["check", str(program)]) == 0
    assert main(["export", str(program), str(tmp_path / "again.pt2")]) == 1
    assert "is a program already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("group,x_0,x_2\n0,1,2\n", "`table` must have the columns"),
        ("1,2,0.5\n", "whole ones from 0 on where it takes an index"),
        ("1,2,-1\n", "whole ones from 0 on where it takes an index"),
        ("1e39,2,0\n", "finite in the program's precision"),
        (f"1,2,{GROUPS}\n", "an index that the posterior does not have"),
        ("1,2\n", "must have 3 columns"),
    ],
    ids=["names", "half", "negative", "large", "index", "columns"],
)
def test_tables_that_a_program_refuses(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (tmp_path / "rows.csv").write_text(text)
    assert main(["answer", str(program), str(tmp_path / "rows.csv")]) == 1
    assert message in capsys.readouterr().err


def test_files_that_are_no_programs(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_text("1,2,0\n")
    foreign = tmp_path / "foreign.pt2"
    module = torch.nn.Linear(2, 2)
    torch.export.save(torch.export.export(module, (torch.zeros(2, 2),)), foreign)
    (tmp_path / "noise.onnx").write_bytes(b"noise")
    cut = tmp_path / f"cut{program.suffix}"
    cut.write_bytes(program.read_bytes()[:-1000])
    for path in (foreign, tmp_path / "noise.onnx", cut):
        assert main(["answer", str(path), str(tmp_path / "rows.csv")]) == 1
        assert "`path` must be" in capsys.readouterr().err
