"""Results files: what was measured, by which command, with which versions."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import torch

import pyro_opu
from benchmarks import provenance
from pyro_opu.utils import files

FOLDER = Path(__file__).parent / "results"


#: Results files as this process found them, by name.
_found: dict[str, dict[str, Any]] = {}


def parser(description: str) -> argparse.ArgumentParser:
    """Options that all commands have; what the results are of is read now, before the work."""
    provenance.source()
    provenance.snapshot()
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--quick", action="store_true", help="small sizes, nothing is written")
    return options


def write(name: str, command: str, settings: dict[str, Any], tables: dict[str, list[dict]]) -> None:
    """Write ``results/name.json`` and a Markdown table of each list of rows beside it.

    Both say at which commit they were made, whether the tree was clean, when, and on what.

    Args:
        name: Stem of the two files.
        command: The command line that makes them.
        settings: Sizes, seeds and the like.
        tables: Title -> rows, each a dict column -> value.
    """
    machine = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pyro": pyro.__version__,
        "pyro_opu": pyro_opu.__version__,
        "processor": provenance.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    FOLDER.mkdir(exist_ok=True)
    made = provenance.record(name, _found.get(name) if stay(name, tables) else None)
    whole = {"command": command, "made": made, "settings": settings, "machine": machine}
    whole["tables"] = tables
    files.put(FOLDER / f"{name}.json", (json.dumps(whole, indent=1) + "\n").encode())
    lines = [f"# {name.replace('_', ' ')}", "", f"Made by `{command}`.", ""]
    said = {key: made[key] for key in ("commit", "clean", "date")} | settings | machine
    lines += [f"{key}: {value}  " for key, value in said.items()]
    for title, rows in tables.items():
        lines += ["", f"## {title}", "", *markdown(rows)]
    files.put(FOLDER / f"{name}.md", ("\n".join(lines) + "\n").encode())


def kept(name: str) -> dict[str, list[dict]]:
    """The tables of ``results/name.json`` by title, to go on from; none where there is no file."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return {}
    whole = json.loads(path.read_text())
    _found.setdefault(name, whole)
    return whole["tables"]


def stay(name: str, tables: dict[str, list[dict]]) -> bool:
    """Whether some measured row is one of the file that this process found."""
    old = _found.get(name, {"tables": {}})["tables"]
    return any(
        row in old.get(title, []) and any(isinstance(value, float) for value in row.values())
        for title, rows in tables.items()
        for row in rows
    )


def finished(rows: list[dict], ways: int) -> list[dict]:
    """Rows of the seeds that have all ``ways`` of theirs: what a run goes on from."""
    found = Counter(row["seed"] for row in rows)
    return [row for row in rows if found[row["seed"]] == ways]


def markdown(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as lines of a Markdown table."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for row in rows:
        lines.append("| " + " | ".join(shown(row.get(key, "")) for key in columns) + " |")
    return lines


def shown(value: Any) -> str:
    """A number with four digits, anything else as it is."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def spread(values: list[float]) -> str:
    """``mean ± standard deviation`` over seeds; a mean that is nothing but rounding is 0."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    mean = statistics.mean(values)
    if abs(mean) < 1e-12 * max(map(abs, values)):
        mean = 0.0
    return f"{mean:.4g} ± {deviation:.2g}"


def record_seeds(
    name: str,
    args: Any,
    of_seed: Callable[[int, Any], dict[str, list[dict]]],
    means: dict[str, tuple[str, ...]] | None = None,
) -> None:
    """Tables of one seed after another, said and written as they come; nothing is where quick.

    The settings in the file have the number of seeds that its tables hold.

    Args:
        name: Of the results file.
        args: Options, with "seeds".
        of_seed: Rows of a seed by title.
        means: Titles whose rows are averaged over seeds, and by which columns; these tables are
            written first, and are said in the place of theirs.
    """
    tables: dict[str, list[dict]] = {}
    for seed in range(args.seeds):
        for title, rows in of_seed(seed, args).items():
            tables.setdefault(title, []).extend(rows)
        averaged = {
            f"{title}, mean": over_seeds(tables[title], by) for title, by in (means or {}).items()
        }
        say(
            averaged | {title: rows for title, rows in tables.items() if title not in (means or {})}
        )
        if not args.quick:
            settings = vars(args) | {"seeds": seed + 1}
            write(name, f"python -m benchmarks.{name}", settings, averaged | tables)


def over_seeds(rows: list[dict], by: tuple[str, ...]) -> list[dict]:
    """Mean ± deviation over seeds of all numbers, one row for each value of these columns.

    Of a yes or no it is said how often it was yes; other words are left out.
    """
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name, "") for name in by), []).append(row)
    found = []
    for key, group in groups.items():
        same = {name: value for name, value in zip(by, key, strict=True) if name in group[0]}
        others = [name for name in group[0] if name not in (*by, "seed")]
        parts = {name: _over_seeds([row[name] for row in group]) for name in others}
        known = {name: value for name, value in parts.items() if value is not None}
        found.append({**same, "seeds": len(group), **known})
    return found


def _over_seeds(values: list[Any]) -> str | None:
    if all(value in ("yes", "no") or isinstance(value, bool) for value in values):
        return f"{sum(value in ('yes', True) for value in values)} of {len(values)}"
    if all(isinstance(value, (int, float)) for value in values):
        return spread([float(value) for value in values])
    return None


def say(tables: dict[str, list[dict]]) -> None:
    """Print the tables."""
    for title, rows in tables.items():
        print(f"\n{title}\n" + "\n".join(markdown(rows)), flush=True)
