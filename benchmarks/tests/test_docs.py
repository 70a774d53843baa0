"""The documents' numbers are those of the results files, and say where these are old."""

import json
import re
from argparse import Namespace

import pytest

from benchmarks import docs, provenance, results

READ = docs.Path.read_text
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


#: Of a measured number: a decimal point, or a unit or a ratio behind it.
MEASURED = re.compile(
    r"\d\.\d|\d (?:%|times|ms|s|seconds|minutes|hours|points|nats|kB|MB|GB)(?![\w-])|\dth\b"
)


def by_hand(text):
    """Measured numbers that stand in a text outside of marks, code, formulas and links."""
    for pattern in (docs.TABLE, docs.VALUE, docs.MADE):
        text = pattern.sub("", text)
    text = re.sub(r"```.*?```|`[^`]*`|\$[^$]*\$|\]\([^)]*\)", "", text, flags=re.DOTALL)
    return [line for line in text.splitlines() if MEASURED.search(line)]


class TestByHand:
    """No measured number is typed by hand where documents say what is measured."""

    def test_readme(self):
        found = by_hand((docs.ROOT / "README.md").read_text())
        assert not [line for line in found if not re.search(r"Python 3|Apache-2.0", line)]

    @pytest.mark.parametrize("name", ["measured", "students"])
    def test_pages(self, name):
        assert not by_hand((docs.ROOT / "docs" / f"{name}.md").read_text())

    @pytest.mark.parametrize("text", ["it has 97.2", "5 times", "36 % less", "in 14 s.", "a 17th"])
    def test_is_found(self, text):
        assert by_hand(f"In words {text}") and not by_hand(f"In code `{text}`")
        assert not by_hand(f"<!-- value {{}} -->{text}<!-- /value -->")


def fresh(name, folder):
    """Of no results file anything has changed."""


@pytest.mark.skipif(not provenance.history(), reason="the age of results is read off git's history")
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
    new = docs.filled(text, folder, fresh)
    assert new == f"before\n{mark}\n| model |\n| --- |\n| a |\n| b |\n\n<!-- /table -->\nafter\n"
    assert docs.filled(new, folder, fresh) == new


@pytest.mark.parametrize("what", [{"table": "Other"}, {"columns": ["nothing"]}])
def test_what_is_not_there_is_named(folder, what):
    with pytest.raises(KeyError, match="has no"):
        table(folder, **what)


def test_columns_that_only_newer_files_have(folder):
    assert table(folder, columns=["student?", "model"]) == table(folder, columns=["model"])
    assert table(folder, columns={"who?": "model"})[0] == "| who |"
    for file in ("some", "newer"):
        assert docs.wanted({"file": file, "table": "Newer?"}, folder) == []


def mark(**what):
    return f"<!-- value {json.dumps({'file': 'some', 'table': 'Main', **what})} -->"


@pytest.mark.parametrize(
    ("what", "number"),
    [
        ({"rows": {"model": "a"}, "column": "accuracy"}, "97.1"),
        ({"rows": {"model": "a"}, "column": "error", "digits": 2}, "0.012"),
        ({"rows": {"model": "a"}, "column": "error", "deviation": True}, "0.0123 ± 0.0021"),
        ({"column": "accuracy", "of": "max"}, "123456"),
        ({"column": "error", "of": "min", "digits": 2}, "1.2e-05"),
        ({"rows": {"model": "a"}, "column": "accuracy", "over": "error", "digits": 2}, "7871"),
    ],
)
def test_a_number_in_a_sentence(folder, what, number):
    text = f"It is {mark(**what)}old<!-- /value --> times."
    assert docs.filled(text, folder, fresh) == text.replace("old", number)


@pytest.mark.parametrize(
    ("what", "error"),
    [({"column": "accuracy"}, "`of`"), ({"column": "nothing"}, "has no"), ({"column": "x"}, "no")],
)
def test_a_number_that_is_not_one(folder, what, error):
    with pytest.raises((KeyError, ValueError), match=error):
        docs.filled(f"It is {mark(**what)}<!-- /value -->.", folder, fresh)


def test_a_number_at_the_beginning_of_a_line(folder):
    text = f"It is\n{mark(column='accuracy', of='max')}<!-- /value -->."
    with pytest.raises(ValueError, match="begin a line"):
        docs.filled(text, folder, fresh)


def test_claims_lead_to_command_commit_and_file(folder, monkeypatch):
    page = docs.ROOT / "docs" / "page.md"
    number = mark(rows={"model": "a"}, column="accuracy")
    tables = '<!-- table {"file": "some", "table": "Main"} -->\nold\n<!-- /table -->'
    said = f"No number. It is {number}97.1<!-- /value --> | [so](a.md). No."
    text = f"# Page\n\n{said}\n\n## B\n\n{tables}\n"
    monkeypatch.setattr(docs, "documents", lambda: [page])
    monkeypatch.setattr(type(page), "read_text", lambda path: text if path == page else READ(path))
    whole = {"command": "c", "made": {"commit": "1234567"}, "tables": {"Main": TABLE}}
    (folder / "some.json").write_text(json.dumps(whole))
    origin = "`c` | [some](../benchmarks/results/some.md) | `1234567` |"
    equal = "golden students bit-equal"
    for old, since in (
        (None, "nothing"),
        (f"x, {equal} since", f"code; {equal}"),
        (f"x, {equal} since but for a", f"code; {equal} but for a"),
    ):
        lines = docs.claims(folder, lambda name, old=old: old).splitlines()
        rows = [line for line in lines if line.startswith("| ") and "---" not in line]
        assert rows[1:4:2] == [
            f"| It is 97.1 \\| so. | [page](page.md), Page | {origin} {since} |",
            f"| Main | [page](page.md), B | {origin} {since} |",
        ]
        assert len(rows) == 4


class TestOldResults:
    """What is quoted of a file that is older than what it measures says so."""

    def stale(self, name, folder):
        return "commit `abc1234` (2026-11-20)"

    def test_under_a_table(self, folder):
        text = '<!-- table {"file": "some", "table": "Main"} -->\n<!-- /table -->\n'
        new = docs.filled(text, folder, self.stale)
        line = "Older than the code it measures: made at commit `abc1234` (2026-11-20)."
        assert new.count(line) == 1 and new.index(line) > new.rindex("| b |")
        # Wrong where the result is fresh, and no more there once it is made again.
        assert line not in docs.filled(new, folder, fresh)

    def test_after_numbers(self, folder):
        number = f"It is {mark(column='accuracy', of='max')}<!-- /value -->."
        with pytest.raises(ValueError, match="must follow the numbers of \\['some'\\]"):
            docs.filled(number, folder, self.stale)
        text = f"{number}\n\n<!-- made -->\n<!-- /made -->\n"
        new = docs.filled(text, folder, self.stale)
        assert "measure: `some` at commit `abc1234` (2026-11-20).\n" in new
        assert docs.filled(new, folder, self.stale) == new
        assert docs.filled(new, folder, fresh) == docs.filled(text, folder, fresh)
        with pytest.raises(ValueError, match="must follow"):
            docs.filled(f"{text}{number}", folder, self.stale)


class TestProvenance:
    @pytest.fixture
    def room(self, monkeypatch):
        """A package of one file, which the results file "some" measures."""
        monkeypatch.setitem(provenance.MEASURES, "some", ("pyro_opu/objectives",))
        self.files = {"pyro_opu/objectives/a.py": b"x = 1\n"}
        monkeypatch.setattr(provenance, "tree", lambda: self.files)
        monkeypatch.setattr(provenance, "snapshot", lambda: self.files)

    @pytest.fixture
    def written(self, room, tmp_path, monkeypatch):
        monkeypatch.setattr(results, "FOLDER", tmp_path)
        monkeypatch.setattr(results, "_found", {})

        def write(*rows):
            results.write("some", "command", {}, {"Main": list(rows)})
            return json.loads((tmp_path / "some.json").read_text())["made"]

        return write

    def test_what_a_file_records(self, written, tmp_path):
        made = written({"ms": 1.5})
        assert set(made) == {"commit", "clean", "date", "measured"}
        assert made["date"].endswith("+00:00") and list(made["measured"]) == ["pyro_opu/objectives"]
        text = (tmp_path / "some.md").read_text()
        assert "\ncommit: " in text and "\nclean: " in text and "\nprocessor: " in text

    def test_stale_after_a_change_of_what_is_measured(self, written, tmp_path):
        written({"ms": 1.5})
        self.files["pyro_opu/objectives/a.py"] = b'"""Said anew."""\n\n# Why.\nx = 1\n'
        self.files["pyro_opu/plots/b.py"] = b"y = 2\n"
        assert provenance.staleness("some", tmp_path) is None
        self.files["pyro_opu/objectives/a.py"] = b"x = 2\n"
        assert "commit" in provenance.staleness("some", tmp_path)

    def test_stale_where_older_rows_stay(self, written, tmp_path):
        """Rows of a part made before a change, beside those of one made after it."""
        first = written({"part": "a", "ms": 1.5})["commit"]
        results.kept("some")
        self.files["pyro_opu/objectives/a.py"] = b"x = 2\n"
        assert written({"part": "a", "ms": 1.5}, {"part": "b", "ms": 3.5})["measured"] == {}
        assert f"{first} and later" in provenance.staleness("some", tmp_path)
        assert written({"part": "a", "ms": 2.5}, {"part": "b", "ms": 3.5})["measured"] != {}
        assert provenance.staleness("some", tmp_path) is None

    def test_a_run_that_was_stopped_records_the_seeds_it_finished(self, written, tmp_path):
        def of_seed(seed, args):
            if seed == 2:
                raise KeyboardInterrupt
            return {"Main": [{"seed": seed, "ms": 1.5}]}

        with pytest.raises(KeyboardInterrupt):
            results.record_seeds("some", Namespace(seeds=3, quick=False), of_seed)
        found = json.loads((tmp_path / "some.json").read_text())
        assert found["settings"]["seeds"] == len(found["tables"]["Main"]) == 2

    def test_golden_students_tell_a_move_from_a_change(self, monkeypatch, tmp_path):
        """Recorded one commit after the results, of the same library, and again today."""
        items = {"a/weights": ["1", "0.5"], "a/report": ["2", "0.5"], "b/weights": ["3", "1"]}
        recorded = tmp_path / "golden.json"
        recorded.write_text(json.dumps({"items": items | {"a/report": ["words", "0.5"]}}))
        said = {
            ("rev-list", "--reverse", "old..HEAD", "--", "golden.json"): "f" * 40 + "\n" + "e" * 40,
            ("diff", "--quiet", "old", "f" * 40, "--", "pyro_opu", "models"): "",
            ("show", f"{'f' * 40}:golden.json"): json.dumps({"items": items}),
        }
        for name, value in {"GOLDEN": recorded, "ROOT": tmp_path}.items():
            monkeypatch.setattr(provenance, name, value)
        monkeypatch.setattr(provenance, "git", lambda *arguments: said.get(arguments))
        changed = provenance.changed_students.__wrapped__
        assert changed("old") == [] and changed("unknown") is None
        recorded.write_text(json.dumps({"items": items | {"a/weights": ["other", "0.5"]}}))
        assert changed("old") == ["a"]
        recorded.write_text(json.dumps({"items": items | {"c/weights": ["new", "0.5"]}}))
        assert changed("old") == ["c"]
        recorded.write_text(json.dumps({"items": items}))
        del said["diff", "--quiet", "old", "f" * 40, "--", "pyro_opu", "models"]
        assert changed("old") is None

    def test_indentation_counts(self):
        inside, outside = (b"if a:\n    b()\n" + end for end in (b"    c()", b"c()"))
        assert provenance.code(inside) != provenance.code(outside)

    def test_what_is_measured_is_there(self):
        """A file that has moved is to be followed in the table."""
        files = provenance.tree()
        nothing = provenance.digest("no/such/file.py", files)
        listed = {path for paths in provenance.MEASURES.values() for path in paths}
        moved = [path for path in listed if provenance.digest(path, files) == nothing]
        assert not moved, f"benchmarks/provenance.py, MEASURES: {sorted(moved)}"

    @pytest.mark.skipif(not provenance.history(), reason="needs git's history")
    def test_files_without_a_record_are_of_the_commit_that_touched_them(self):
        first = provenance.made({"tables": {}}, "speed")
        assert len(first["commit"]) == 7 and len(first["date"]) == 10
