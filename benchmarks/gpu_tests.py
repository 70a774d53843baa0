"""The tests that need a GPU, and those that take a device: which pass, on what.

python -m benchmarks.gpu_tests [--quick]

``pytest -m gpu``, and the whole suite by ``pytest --device cuda``. ``--quick`` runs the former
alone. Without a GPU nothing is run or written.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time

import torch

from benchmarks.provenance import ROOT
from benchmarks.results import parser, say, write

RUNS = (("-m", "gpu"), ("--device", "cuda"))


def main() -> None:
    args = parser(__doc__.splitlines()[0]).parse_args()
    if not torch.cuda.is_available():
        print("There is no GPU here: nothing has been run, and nothing is written.")
        return
    tables = {"Tests": [tested(*run) for run in RUNS[: 1 if args.quick else None]]}
    say(tables)
    if not args.quick:
        settings = {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
        write("gpu_tests", "python -m benchmarks.gpu_tests", settings, tables)
    if any(row["failed"] for row in tables["Tests"]):
        sys.exit("something failed")


def tested(*options: str) -> dict:
    """How many tests pass, fail and are skipped with these options of pytest, and the seconds."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-q", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    last = done.stdout.strip().rpartition("\n")[2]
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", last)}
    failed = sum(counts.get(word, 0) for word in ("failed", "error", "errors"))
    if not counts.get("passed") or (done.returncode and not failed):
        raise RuntimeError(done.stdout + done.stderr)
    row = {"command": " ".join(["pytest", *options]), "passed": counts["passed"], "failed": failed}
    return {**row, "skipped": counts.get("skipped", 0), "s": time.perf_counter() - start}


if __name__ == "__main__":
    main()
