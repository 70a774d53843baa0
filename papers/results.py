"""What a command found: tables that it prints, and with ``--write`` one Markdown file of them.

The file ``results/NAME.md`` stands beside the command. Its heading says the command, version,
commit, date and settings, then what the docstring of the command says. Rows of single seeds are
not written: while a command runs they are in the user's cache, where ``--resume`` finds them.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import pyro_opu
from papers.datasets.sources import cache_folder
from pyro_opu.utils import files

Row = dict[str, Any]
Tables = dict[str, list[Row]]
#: Options that are no settings.
OPTIONS = ("quick", "write", "resume", "picture")


def parser(text: str, seeds: int | None = None) -> argparse.ArgumentParser:
    """Options that all commands have; what is repeated over seeds can be resumed.

    Args:
        text: The command's docstring, whose first line is shown.
        seeds: How many by default.
    """
    found = argparse.ArgumentParser(description=text.partition("\n")[0])
    found.add_argument("--quick", action="store_true", help="in seconds; nothing is written")
    found.add_argument("--write", action="store_true", help="write results/NAME.md")
    if seeds is not None:
        found.add_argument("--seeds", type=int, default=seeds)
        found.add_argument("--resume", action="store_true", help="go on where a run stopped")
    return found


def finish(file: str, args: argparse.Namespace, tables: Tables, **settings: Any) -> None:
    """Print the tables; with ``--write`` they are the results file too.

    Args:
        file: ``__file__`` of the command.
        args: Its options, which are settings.
        tables: Title -> rows, each a dict column -> value.
        settings: Other settings.
    """
    say(tables)
    if args.write and not args.quick:
        given = {key: value for key, value in vars(args).items() if key not in OPTIONS}
        text = page(Path(file), made(), given | settings, tables)
        folder = Path(file).parent / "results"
        folder.mkdir(exist_ok=True)
        files.put(folder / f"{Path(file).stem}.md", text.encode())


def made() -> str:
    """Version, commit, date and machine."""
    folder = Path(__file__).parent

    def git(*words: str) -> str:
        asked = ["git", "-C", str(folder), *words]
        return subprocess.run(asked, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--", ":/*.py")
    commit = (
        f"{git('rev-parse', '--short', 'HEAD') or 'unknown'}{' with changes' if changed else ''}"
    )
    date = datetime.now(UTC).date()
    return (
        f"pyro_opu {pyro_opu.__version__}, commit {commit}, {date}, torch {torch.__version__}, "
        f"{processor()}, {torch.get_num_threads()} of {os.cpu_count()} threads"
    )


def processor() -> str:
    """Its name; where the system does not say it, its architecture."""
    info = Path("/proc/cpuinfo")
    names = [
        line.partition(": ")[2]
        for line in (info.read_text().splitlines() if info.exists() else ())
        if line.startswith("model name")
    ]
    return names[0] if names else platform.machine()


def page(file: Path, made: str, settings: dict[str, Any], tables: Tables) -> str:
    """The results file of a command."""
    title, *rest = (ast.get_docstring(ast.parse(file.read_text())) or file.stem).split("\n\n")
    command = f"python -m {file.parent.name}.{file.stem}"
    text = [part for part in rest if not part.startswith("python -m ")]
    lines = [f"# {title.rstrip('.')}", "", f"Made by `{command} --write`: {made}.", ""]
    if settings:
        lines += ["Settings: " + "; ".join(f"{k} {v}" for k, v in settings.items()) + ".", ""]
    lines += ["\n\n".join(text).replace("``", "`")] if text else []
    for name, rows in tables.items():
        lines += ["", f"## {name}", "", *markdown(rows)]
    return "\n".join(lines).rstrip("\n").replace("\n\n\n", "\n\n") + "\n"


def markdown(rows: list[Row]) -> list[str]:
    """The rows as lines of a Markdown table."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for row in rows:
        lines.append("| " + " | ".join(shown(row.get(key, "")) for key in columns) + " |")
    return lines


def shown(value: Any) -> str:
    """A number with four digits, anything else as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def say(tables: Tables) -> None:
    """Print the tables."""
    for title, rows in tables.items():
        print(f"\n{title}\n" + "\n".join(markdown(rows)), flush=True)


def record_seeds(
    file: str,
    args: argparse.Namespace,
    of_seed: Callable[[int, Any], Tables],
    tables_of: Callable[[Tables], Tables] | dict[str, tuple[str, ...]],
    **settings: Any,
) -> None:
    """One seed after another; tables of all seeds are printed, and written, after each.

    Args:
        file: ``__file__`` of the command.
        args: Options, with "seeds" and "resume".
        of_seed: Rows of a seed by title.
        tables_of: The tables of the rows of all seeds; or the columns by which the rows of each
            title are averaged.
        settings: Other settings.
    """
    rows = kept(file) if args.resume and not args.quick else {}
    for seed in range(args.seeds):
        if not any(row["seed"] == seed for each in rows.values() for row in each):
            for title, new in of_seed(seed, args).items():
                rows.setdefault(title, []).extend({"seed": seed, **row} for row in new)
            if not args.quick:
                keep(file, rows)
        if isinstance(tables_of, dict):
            tables = {title: over_seeds(rows[title], by) for title, by in tables_of.items()}
        else:
            tables = tables_of(rows)
        finish(file, args, tables, **{**settings, "seeds": seed + 1})


def keep(file: str, rows: Any) -> None:
    """Put what an unfinished command has found into the user's cache."""
    path = _cached(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.put(path, json.dumps(rows).encode())


def kept(file: str) -> Any:
    """What :func:`keep` has put there; an empty dict where there is nothing."""
    path = _cached(file)
    return json.loads(path.read_text()) if path.exists() else {}


def _cached(file: str) -> Path:
    return cache_folder() / "results" / f"{Path(file).parent.name}_{Path(file).stem}.json"


def spread(values: list[float]) -> str:
    """``mean ± standard deviation`` over seeds; a mean that is nothing but rounding is 0."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    mean = statistics.mean(values)
    if abs(mean) < 1e-12 * max(map(abs, values)):
        mean = 0.0
    return f"{mean:.4g} ± {deviation:.2g}" if len(values) > 1 else f"{mean:.4g}"


def over_seeds(rows: list[Row], by: tuple[str, ...]) -> list[Row]:
    """Mean ± deviation over seeds of all numbers, one row for each value of these columns.

    A yes or no becomes how often it was yes; other words are left out.
    """
    groups: dict[tuple, list[Row]] = {}
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
