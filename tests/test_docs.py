"""The documents' tables are those of the results files."""

import json

import pytest

from benchmarks import docs

TABLE = [
    {"model": "a", "data": "x", "accuracy": 97.123, "error": "0.01234 ± 0.0021"},
    {"model": "b", "data": "y", "accuracy": 123456.0, "error": "1.234e-05 ± 0"},
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "some.json").write_text(json.dumps({"tables": {"Main": TABLE}}))
    return tmp_path


def table(folder, **what):
    return docs.wanted({"file": "some", "table": "Main", **what}, folder)


def test_committed_documents_are_not_stale():
    for path in docs.documents():
        text = path.read_text()
        assert docs.filled(text) == text, f"run python -m benchmarks.docs: {path.name} is stale"


def test_columns_rows_and_digits(folder):
    assert table(folder, columns={"who": "model", "acc": "accuracy"}, rows={"data": "x"}) == [
        "| who | acc |",
        "| --- | --: |",
        "| a | 97.1 |",
    ]
    lines = table(
        folder, columns=["accuracy", "error"], rows={"data": ["x", "y"]}, digits={"error": 2}
    )
    assert lines[2:] == ["| 97.1 | 0.012 ± 0.0021 |", "| 123456 | 1.2e-05 |"]
    assert table(folder, columns=["error"], deviation=False)[2] == "| 0.0123 |"


def test_filling_replaces_only_between_the_marks(folder):
    mark = '<!-- table {"file": "some", "table": "Main", "columns": ["model"]} -->\n'
    text = f"before\n{mark}old\n<!-- /table -->\nafter\n"
    new = docs.filled(text, folder)
    assert new == f"before\n{mark}\n| model |\n| --- |\n| a |\n| b |\n\n<!-- /table -->\nafter\n"
    assert docs.filled(new, folder) == new


@pytest.mark.parametrize("what", [{"table": "Other"}, {"columns": ["nothing"]}])
def test_what_is_not_there_is_named(folder, what):
    with pytest.raises(KeyError, match="has no"):
        table(folder, **what)
