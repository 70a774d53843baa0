"""The file of a command: its heading, its tables, and what a stopped run goes on from."""

from __future__ import annotations

from pathlib import Path

import pytest

from papers import results

DOC = '"""What is found.\n\npython -m folder.study\n\nHow ``it`` is done.\n"""\n'


def study(folder: Path) -> str:
    file = folder / "study.py"
    file.write_text(DOC)
    return str(file)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_nothing_is_written_unless_asked(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = study(tmp_path)
    for options in ([], ["--write", "--quick"]):
        args = results.parser(DOC).parse_args(options)
        results.finish(file, args, {"Numbers": [{"a": 1.23456, "b": "x"}]})
        assert "| 1.235 | x |" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()


def test_the_page(tmp_path: Path) -> None:
    args = results.parser(DOC, seeds=4).parse_args(["--write"])
    results.finish(study(tmp_path), args, {"Numbers": [{"a": 1}, {"b": 2.0}]}, draws=5)
    text = (tmp_path / "results" / "study.md").read_text()
    heading, rest = text.split("How `it` is done.")
    assert heading.startswith("# What is found\n\nMade by `python -m ")
    assert "study --write`: pyro_opu " in heading and "commit" in heading
    assert heading.endswith("Settings: seeds 4; draws 5.\n\n")
    assert rest == "\n\n## Numbers\n\n| a | b |\n| --- | --- |\n| 1 |  |\n|  | 2 |\n"


def test_seeds_are_averaged_and_resumed(tmp_path: Path) -> None:
    file, made = study(tmp_path), []

    def of_seed(seed: int, args: object) -> results.Tables:
        made.append(seed)
        return {"T": [{"way": way, "n": seed + k, "ok": seed > 0} for k, way in enumerate("ab")]}

    for options in (["--seeds", "1"], ["--seeds", "3", "--resume", "--write"]):
        args = results.parser(DOC, seeds=2).parse_args(options)
        results.record_seeds(file, args, of_seed, {"T": ("way",)})
    assert made == [0, 1, 2]
    text = (tmp_path / "results" / "study.md").read_text()
    assert "| a | 3 | 1 ± 1 | 2 of 3 |" in text and "| b | 3 | 2 ± 1 | 2 of 3 |" in text
    args = results.parser(DOC, seeds=1).parse_args(["--quick"])
    results.record_seeds(file, args, of_seed, lambda rows: {"Of one": rows["T"]})
    assert made[-1] == 0 and len(results.kept(file)["T"]) == 6


def test_spread() -> None:
    assert results.spread([1.0, 3.0]) == "2 ± 1.4"
    assert results.spread([0.1 + 0.2 - 0.3, 0.0]) == "2.776e-17 ± 3.9e-17"
    assert results.spread([1.0, -1.0 + 1e-13]) == "0 ± 1.4"
    assert results.spread([7.0]) == "7"
