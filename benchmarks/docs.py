"""Copy numbers from the results files into the documents, so that none is typed by hand.

python -m benchmarks.docs [--check]

Two comments mark a table in a document; the lines between them are replaced:

    <!-- table {"file": "compact", "table": "pima", "columns": ["way", "KL, held out"]} -->
    <!-- /table -->

"columns" is a list, or a mapping from the document's headings to the columns of the results file;
without it all columns are shown. A heading that ends in "?" is omitted if the file has no such
column, and a table whose name ends in "?" if the file has no such table. "rows" keeps the rows
whose columns have these values, one or a list. "deviation": false omits "± 0.1", as does a
deviation of 0, that of one seed. "digits" is the number of significant digits, 3 by default, or a
mapping from headings to it.

Comments mark a single number in a sentence too, but never at the beginning of a line:

    in <!-- value {"file": "main_job", "table": "Time", "rows": {"": "all, s"}, "column": "value"}
    -->289<!-- /value --> seconds

It is a cell of one row, or the "min" or "max" of several rows with "of"; "over" divides it by
another column of its row.

If a file is older than the code it measures (:mod:`benchmarks.provenance`), a line under its table
says so. For single numbers the next such pair of comments says so, and may be empty:

    <!-- made -->
    <!-- /made -->

A last pair of comments takes one table of all numbers in sentences, and one of all tables, of all
documents, each with the command, the commit and the file behind it:

    <!-- claims -->
    <!-- /claims -->

``--check`` writes nothing and fails where a document differs from the results.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.provenance import EQUAL, made, staleness
from benchmarks.results import FOLDER

ROOT = Path(__file__).parent.parent
TABLE = re.compile(r"(<!-- table (\{.*?\}) -->\n).*?(<!-- /table -->)", re.DOTALL)
VALUE = re.compile(r"(<!-- value (\{.*?\})\s-->).*?(<!-- /value -->)", re.DOTALL)
MADE = re.compile(r"(<!-- made -->\n).*?(<!-- /made -->)", re.DOTALL)
TABLE_MARK = re.compile(r"<!-- table (\{.*?\}) -->")
CLAIMS = re.compile(r"(<!-- claims -->\n).*?(<!-- /claims -->)", re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
SENTENCE = re.compile(r"(?<=[.:;])\s+(?=[A-Z`*(])")
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]?\d+)?")
#: Name of a results file and its folder -> the commit and day of one that is stale.
Staleness = Callable[[str, Path], str | None]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--check", action="store_true", help="write nothing")
    args = options.parse_args()
    differ = []
    for path in sorted(documents(), key=lambda path: path.stem == "claims"):  # it reads the others
        text = path.read_text()
        new = filled(text)
        if new == text:
            continue
        differ.append(str(path.relative_to(ROOT)))
        if not args.check:
            path.write_text(new)
    print(f"{'differ' if args.check else 'written'}: {', '.join(differ) or 'none'}")
    return len(differ) if args.check else 0


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str, folder: Path = FOLDER, stale: Staleness = staleness) -> str:
    """The text with all its tables, numbers and places of their sources made anew."""
    known: dict[str, str | None] = {}

    def source(name: str) -> str | None:
        if name not in known:
            known[name] = stale(name, folder)
        return known[name]

    def table(block: re.Match[str]) -> str:
        what = json.loads(block[2])
        lines = wanted(what, folder)
        old = source(what["file"]) if lines else None
        if old:
            lines += ["", f"Older than the code it measures: made at {old}."]
        return f"{block[1]}\n" + "\n".join(lines) + f"\n\n{block[3]}"

    def number(block: re.Match[str]) -> str:
        return f"{block[1]}{value(json.loads(block[2]), folder)}{block[3]}"

    if re.search(r"^\s*<!-- value", text, re.MULTILINE):
        raise ValueError("a number must not begin a line, where a comment takes all of it")
    text = sources(VALUE.sub(number, TABLE.sub(table, text)), source)
    return CLAIMS.sub(lambda block: f"{block[1]}\n{claims(folder, source)}\n{block[2]}", text)


def claims(folder: Path, source: Callable[[str], str | None]) -> str:
    """Tables of what the documents claim, and of where each claim comes from."""
    found: dict[str, list[str]] = {"sentence": [], "table": []}

    def claim(kind: str, said: str, path: Path, section: str, name: str) -> None:
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", said).replace("|", "\\|")
        cells = words, f"{place(path)}, {section}", *origin(name, folder, source)
        found[kind].append(f"| {' | '.join(cells)} |")

    for path in documents():
        section = ""
        for paragraph in re.split(r"\n\s*\n|\n(?=[-*#] )", path.read_text()):
            if heading := re.match(r"#+ (.*)", paragraph):
                section = heading[1]
            for mark in TABLE_MARK.finditer(paragraph):
                what = json.loads(mark[1])
                if wanted(what, folder):
                    claim("table", what["table"].strip("?"), path, section, what["file"])
            for sentence in SENTENCE.split(paragraph):
                said = " ".join(COMMENT.sub("", sentence).split()).lstrip("*- ")
                files = [json.loads(mark[2])["file"] for mark in VALUE.finditer(sentence)]
                for name in dict.fromkeys(files):
                    claim("sentence", said, path, section, name)
    rest = ("page", "command", "results file", "commit", "since")
    lines = []
    for kind, rows in found.items():
        lines += [f"## Every {kind}", "", f"| {' | '.join((kind, *rest))} |"]
        lines += ["| --- " * (1 + len(rest)) + "|", *rows, ""]
    return "\n".join(lines)


def origin(name: str, folder: Path, source: Callable[[str], str | None]) -> tuple[str, ...]:
    """A results file's command, its name, its commit, and what has changed since."""
    whole = json.loads((folder / f"{name}.json").read_text())
    old = source(name)
    since = "code" if old else "nothing"
    if old and EQUAL in old:
        since = f"code; {EQUAL}{old.partition(f'{EQUAL} since')[2]}"
    link = f"[{name}](../benchmarks/results/{name}.md)"
    return f"`{whole['command']}`", link, f"`{made(whole, name)['commit']}`", since


def place(path: Path) -> str:
    """A link from a page of the documents to one of them."""
    file = path.relative_to(ROOT / "docs") if path.is_relative_to(ROOT / "docs") else None
    return f"[{path.stem}]({file or '../' + path.name})"


def sources(text: str, source: Callable[[str], str | None]) -> str:
    """The text with every place filled that says which numbers before it are old."""
    parts, start = [], 0
    for place in MADE.finditer(text):
        before = text[start : place.start()]
        said = [f"`{name}` at {old}" for name, old in quoted(before, source).items()]
        line = "Numbers in the text that are older than the code they measure: "
        parts += [before, place[1], f"\n{line}{'; '.join(said)}.\n\n" * bool(said), place[2]]
        start = place.end()
    left = quoted(text[start:], source)
    if left:
        raise ValueError(f"<!-- made --> must follow the numbers of {sorted(left)}, which are old")
    return "".join(parts) + text[start:]


def quoted(text: str, source: Callable[[str], str | None]) -> dict[str, str]:
    """Results files that single numbers of a text are of, as far as they are old."""
    names = sorted({json.loads(block[2])["file"] for block in VALUE.finditer(text)})
    return {name: old for name in names if (old := source(name))}


def rows_of(what: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """The rows that a mark asks for."""
    path, title = folder / f"{what['file']}.json", what["table"].removesuffix("?")
    if title != what["table"] and not path.exists():
        return []
    tables = json.loads(path.read_text())["tables"]
    if title not in tables and title == what["table"]:
        raise KeyError(f"{what['file']}.json has no table {title!r}; it has {list(tables)}")
    return [row for row in tables.get(title, []) if matches(row, what.get("rows", {}))]


def value(what: dict[str, Any], folder: Path) -> str:
    """One number, of one row or the least or largest of several."""
    rows, column, over = rows_of(what, folder), what["column"], what.get("over")
    if not rows or any(name not in row for row in rows for name in (column, over) if name):
        raise KeyError(f"{what['file']}.json, {what['table']!r} has no {column!r} for {what}")
    if len(rows) > 1 and what.get("of") not in ("min", "max"):
        raise ValueError(f"`of` must be 'min' or 'max' for {len(rows)} rows; got {what}")
    if "of" not in what and not over:
        return cell(rows[0][column], what.get("digits", 3), what.get("deviation", False))
    numbers = [number_in(row[column]) / (number_in(row[over]) if over else 1.0) for row in rows]
    return rounded((min if what.get("of") == "min" else max)(numbers), what.get("digits", 3))


def number_in(told: Any) -> float:
    """The number that a cell begins with."""
    begins = NUMBER.match(str(told))
    if not begins:
        raise ValueError(f"a number was expected; got {told!r}")
    return float(begins[0])


def wanted(what: dict[str, Any], folder: Path) -> list[str]:
    """Lines of one table, with words on the left and numbers on the right."""
    rows = rows_of(what, folder)
    if not rows and what["table"].endswith("?"):
        return []
    columns = what.get("columns") or list(dict.fromkeys(key for row in rows for key in row))
    names = columns if isinstance(columns, dict) else {name: name.strip("?") for name in columns}
    there = {key for row in rows for key in row}
    unknown = [n for head, n in names.items() if n not in there and not head.endswith("?")]
    if unknown:
        raise KeyError(f"{what['file']}.json, {what['table']!r} has no column {unknown}")
    names = {head.removesuffix("?"): name for head, name in names.items() if name in there}
    digits, deviation = what.get("digits", 3), what.get("deviation", True)
    if not isinstance(digits, dict):
        digits = dict.fromkeys(names, digits)
    cells = [
        [cell(row.get(name, ""), digits.get(head, 3), deviation) for head, name in names.items()]
        for row in rows
    ]
    right = [
        all(NUMBER.match(line[k]) or line[k] == "" for line in cells) for k in range(len(names))
    ]
    lines = ["| " + " | ".join(names) + " |"]
    lines.append("| " + " | ".join("--:" if number else "---" for number in right) + " |")
    return lines + ["| " + " | ".join(line) + " |" for line in cells]


def matches(row: dict[str, Any], only: dict[str, Any]) -> bool:
    return all(row.get(k) in (v if isinstance(v, list) else [v]) for k, v in only.items())


def cell(value: Any, digits: int, deviation: bool) -> str:
    """A number with so many significant digits, alone or before its deviation."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return rounded(float(value), digits)
    mean, sign, spread = str(value).partition(" ± ")
    if not sign or not NUMBER.fullmatch(mean):
        return str(value)
    number = rounded(float(mean), digits)
    return f"{number} ± {spread}" if deviation and spread != "0" else number


def rounded(value: float, digits: int) -> str:
    """Whole numbers in full, and no exponent where the number is easily read without one."""
    text = f"{value:.{digits}g}"
    if "e+" in text:
        return f"{value:.0f}"
    return text


if __name__ == "__main__":
    sys.exit(main())
