"""The tests that need a GPU, those that take a device, and all others beside one.

python -m benchmarks.gpu_tests [--only gpu device all] [--workers 4]

``pytest -m gpu``; ``pytest --device cuda -m device``, one of every kind on the GPU; and the whole
suite by ``pytest --device cuda``. ``--quick`` runs the first alone. Without a GPU nothing is run or
written.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import torch

from papers.results import finish, parser

RUNS = {
    "gpu": ("-m", "gpu"),
    "device": ("--device", "cuda", "-m", "device"),
    "all": ("--device", "cuda"),
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS))
    options.add_argument("--workers", type=int, default=4, help="processes of pytest-xdist")
    args = options.parse_args()
    if not torch.cuda.is_available():
        print("There is no GPU here: nothing has been run, and nothing is written.")
        return
    only = args.only[:1] if args.quick else args.only
    rows = [tested(*RUNS[name], "-n", str(args.workers)) for name in only]
    settings = {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    finish(__file__, args, {"Tests": rows}, **settings)
    if any(row["failed"] for row in rows):
        sys.exit("something failed")


def tested(*options: str) -> dict:
    """How many tests pass, fail and are skipped with these options of pytest, and the seconds.

    What pytest says is printed as it comes: a run that is stopped has said how far it was.
    """
    start = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-q", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=Path(__file__).parent.parent, **pipes) as run:
        lines = []
        for line in run.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    said = "".join(lines)
    last = said.strip().rpartition("\n")[2]
    names = re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", last)}
    failed = sum(counts.get(word, 0) for word in ("failed", "error", "errors"))
    if not counts.get("passed") or (run.returncode and not failed):
        raise RuntimeError(f"pytest left with status {run.returncode} after: {last}")
    row = {"command": " ".join(["pytest", *options]), "passed": counts["passed"], "failed": failed}
    row |= {"skipped": counts.get("skipped", 0), "s": time.perf_counter() - start}
    return {**row, "which": ", ".join(names)} if names else row


if __name__ == "__main__":
    main()
