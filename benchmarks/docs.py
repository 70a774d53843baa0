"""Tables of the documents, filled in from the results files, so that no number is typed by hand.

python -m benchmarks.docs [--check]

A document says between two comments which table it wants; what lies between them is replaced:

    <!-- table {"file": "compact", "table": "pima", "columns": ["way", "KL, held out"]} -->
    <!-- /table -->

"columns" is a list, or a mapping from the document's headings to the columns of the results file;
without it all columns come. "rows" keeps the rows whose columns have these values, one or a list.
"deviation": false leaves "± 0.1" away, which is left away too where it is 0, that of one seed.
"digits" is the number of significant digits, 3 by default, or a mapping from headings to it.
``--check`` writes nothing and fails where a document differs from the results.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.results import FOLDER

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(<!-- table (\{.*?\}) -->\n).*?(<!-- /table -->)", re.DOTALL)
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]?\d+)?")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--check", action="store_true", help="write nothing")
    args = options.parse_args()
    stale = []
    for path in documents():
        text = path.read_text()
        new = filled(text)
        if new == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if not args.check:
            path.write_text(new)
    print(f"{'stale' if args.check else 'written'}: {', '.join(stale) or 'none'}")
    return len(stale) if args.check else 0


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str, folder: Path = FOLDER) -> str:
    """The text with all its tables made anew."""

    def one(block: re.Match[str]) -> str:
        table = "\n".join(wanted(json.loads(block[2]), folder))
        return f"{block[1]}\n{table}\n\n{block[3]}"

    return BLOCK.sub(one, text)


def wanted(what: dict[str, Any], folder: Path) -> list[str]:
    """Lines of one table, with words on the left and numbers on the right."""
    tables = json.loads((folder / f"{what['file']}.json").read_text())["tables"]
    if what["table"] not in tables:
        raise KeyError(f"{what['file']}.json has no table {what['table']!r}; it has {list(tables)}")
    rows = [row for row in tables[what["table"]] if matches(row, what.get("rows", {}))]
    columns = what.get("columns") or list(dict.fromkeys(key for row in rows for key in row))
    names = columns if isinstance(columns, dict) else {name: name for name in columns}
    unknown = [name for name in names.values() if not any(name in row for row in rows)]
    if unknown:
        raise KeyError(f"{what['file']}.json, {what['table']!r} has no column {unknown}")
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
