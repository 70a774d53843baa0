"""Students as folders, and the command that reads saved ones."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pyro_opu import OnePassPredictive, distill, fidelity
from pyro_opu.__main__ import main
from pyro_opu.predictive.folder import model_card

pytestmark = pytest.mark.usefixtures("coarse")

torch.manual_seed(0)
X, W = torch.randn(80, 3), torch.randn(40, 3, 4)
QUICK: dict[str, Any] = {"num_steps": 20, "seed": 0, "progress": False}


def teacher(x: torch.Tensor) -> torch.Tensor:
    return (x @ W).softmax(-1)


@pytest.fixture(scope="module")
def fast() -> OnePassPredictive:
    return distill(teacher, X, **QUICK)


@pytest.fixture
def folder(fast: OnePassPredictive, tmp_path: Path) -> Path:
    fast.save(f"{tmp_path / 'student'}/")
    return tmp_path / "student"


def test_a_folder_holds_weights_description_and_card(fast: OnePassPredictive, folder: Path) -> None:
    assert {each.name for each in folder.iterdir()} == {
        "model.safetensors",
        "config.json",
        "README.md",
    }
    for path in (folder, str(folder), f"{folder}/", folder / "model.safetensors"):
        loaded = OnePassPredictive.load(path)
        assert torch.equal(loaded.dirichlet(X).mean, fast.dirichlet(X).mean)
    config = json.loads((folder / "config.json").read_text())
    assert (config["input_shape"], config["num_classes"]) == ([3], 4)
    fast.save(folder)  # again


def test_a_card_says_what_the_report_knows(fast: OnePassPredictive, folder: Path) -> None:
    card = (folder / "README.md").read_text()
    header = card.split("---")[1]
    assert "library_name: pyro_opu" in header
    assert "license: other" in header
    assert "pipeline_tag: tabular-classification" in header
    assert str(fast.report) in card
    found = fidelity(fast, teacher, X)
    full = model_card(fast, fidelity=found, data="made up", license="mit", name="Mine")
    assert "license: mit" in full
    assert "# Mine" in full
    assert "- Data: made up." in full
    assert str(found) in full
    fast.save(folder, card=full)
    assert (folder / "README.md").read_text() == full


def test_what_save_refuses(fast: OnePassPredictive, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="existing folder"):
        fast.save(f"{tmp_path}/a/b/")
    with pytest.raises(ValueError, match="`card` needs a folder"):
        fast.save(tmp_path / "one.safetensors", card="text")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        fast.save(f"{tmp_path / 'file'}/")


def test_inspect_and_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "input (3,) -> 4 classes" in shown
    assert "x attainable held out" in shown
    assert main(["check", str(folder)]) == 0
    assert "whole" in capsys.readouterr().out


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
        ("a,b,c\n1,x,3\n", "line 2 has could not convert"),
        ("a,b,c\n", "at least one row"),
    ],
)
def test_bad_tables(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (tmp_path / "rows.csv").write_text(text)
    assert main(["answer", str(folder), str(tmp_path / "rows.csv")]) == 1
    assert message in capsys.readouterr().err


def test_export(folder: Path, tmp_path: Path) -> None:
    assert main(["export", str(folder), str(tmp_path / "student.pt2")]) == 0
    assert (tmp_path / "student.pt2").stat().st_size > 0
