"""Golden students: whether short seeded runs still end with the very bits that were recorded.

    python -m benchmarks.golden                     compare with results/golden_students.json
    python -m benchmarks.golden --only mixture      those whose names begin so
    python -m benchmarks.golden --write FILE.json   record

A change that only moves code leaves every digest as it is. Digests belong to a version of torch
and a processor; where those differ from the recorded ones, so may bits. Weights are compared
without the names of the parameters, and reports both with their keys and as the bare numbers
("values"), so that a renamed key shows as such.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pyro
import torch

from benchmarks import provenance, results
from benchmarks.golden_cases import CASES
from benchmarks.golden_digest import Digest

RECORDED = results.FOLDER / "golden_students.json"
#: What a quick run makes.
QUICK = ("function", "regression")


def run(name: str) -> dict[str, Digest]:
    """The digests of a case by name; torch's generator begins the same for each."""
    pyro.set_rng_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {f"{name}/{item}": Digest.of(value) for item, value in CASES[name]().items()}


def machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pyro": pyro.__version__,
        "processor": provenance.processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def wanted(name: str, prefixes: list[str]) -> bool:
    """Whether a case has items that begin with one of the prefixes; every case without any."""
    return not prefixes or any(
        f"{name}/".startswith(prefix) or prefix.startswith(f"{name}/") for prefix in prefixes
    )


def made(names: list[str]) -> tuple[dict[str, Digest], dict[str, str]]:
    """Digests by item, and the errors of the cases that failed."""
    found, failed = {}, {}
    for name in names:
        start = time.perf_counter()
        try:
            found |= run(name)
        except Exception as error:  # noqa: BLE001 - the others are compared all the same
            failed[name] = f"{type(error).__name__}: {error}"
        print(f"{name} ({time.perf_counter() - start:.1f} s)", file=sys.stderr, flush=True)
    return found, failed


def differences(found: dict[str, Digest], recorded: dict[str, list[str]]) -> list[str]:
    """What is other than it was recorded, missing, or new, a line each."""
    lines = []
    for name in sorted({*found, *recorded}):
        if name not in found:
            lines.append(f"{name}: recorded, and no longer made")
        elif name not in recorded:
            lines.append(f"{name}: made, and not recorded")
        elif found[name].sha != recorded[name][0]:
            lines.append(f"{name}: sum {recorded[name][1]} recorded, {found[name].total} now")
    return lines


def main() -> int:
    options: argparse.ArgumentParser = results.parser(__doc__.splitlines()[0])
    options.add_argument("--write", type=Path, metavar="FILE", help="record, compare nothing")
    options.add_argument("--against", type=Path, metavar="FILE", default=RECORDED)
    options.add_argument("--only", nargs="+", default=[], metavar="PREFIX")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    names = [name for name in CASES if wanted(name, chosen.only)]
    if chosen.quick:
        names = list(QUICK)
    if not names:
        options.error(f"--only must begin the names of cases, such as mixture; got {chosen.only}")
    found, failed = made(names)
    for name, error in failed.items():
        print(f"{name}: {error}")
    if chosen.quick:
        print(f"{len(found)} items made, none compared")
        return len(failed)
    if chosen.write:
        if failed:
            print("nothing is written")
            return 1
        items = [
            f"  {json.dumps(name)}: {json.dumps([each.sha, each.total])}"
            for name, each in sorted(found.items())
        ]
        made_by = json.dumps({**provenance.source(), **machine()})
        whole = ",\n".join(items)
        chosen.write.write_text(f'{{"made": {made_by},\n "items": {{\n{whole}\n }}}}\n')
        print(f"{len(items)} items recorded in {chosen.write}")
        return 0
    whole = json.loads(chosen.against.read_text())
    now = machine()
    for key, value in now.items():
        if whole["made"][key] != value:
            print(f"{key} is {value}, recorded with {whole['made'][key]}: bits may differ by that")
    known = {
        name: item
        for name, item in whole["items"].items()
        if not chosen.only or any(name.startswith(prefix) for prefix in chosen.only)
    }
    if chosen.only:
        found = {k: v for k, v in found.items() if any(k.startswith(p) for p in chosen.only)}
    lines = differences(found, known)
    print("\n".join([*lines, f"{len(known)} items recorded, {len(lines)} differ"]))
    return int(bool(lines or failed))


if __name__ == "__main__":
    sys.exit(main())
