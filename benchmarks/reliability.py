"""What must not happen, tried many times: how often it did.

python -m benchmarks.reliability [--quick]

A check is a function ``check(quick, folder) -> rows`` in ``CHECKS``. A row says "what" was tried,
how many times ("tried"), how often it went "wrong", and anything else worth knowing. The command
fails if anything went wrong.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.reliability_files import (
    damaged_files,
    exported_far_out,
    killed_writers,
    many_writers,
    time_stamps,
)
from benchmarks.reliability_runs import (
    answers_meanwhile,
    concurrent_runs,
    killed_runs,
    unlike_ranks,
)
from benchmarks.results import parser, say, write

Row = dict[str, Any]


def main() -> int:
    args = parser(__doc__.splitlines()[0]).parse_args()
    rows: list[Row] = []
    for check in CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            found = check(args.quick, Path(folder))
        say({check.__name__.replace("_", " "): found})
        rows += found
    if not args.quick:
        write("reliability", "python -m benchmarks.reliability", {}, {"Checks": rows})
    return sum(row["wrong"] for row in rows)


#: All checks, in the order of the table. Those that fork come first, before torch has threads.
CHECKS: list[Callable[[bool, Path], list[Row]]] = [
    killed_runs,
    unlike_ranks,
    answers_meanwhile,
    concurrent_runs,
    damaged_files,
    many_writers,
    killed_writers,
    exported_far_out,
    time_stamps,
]

if __name__ == "__main__":
    sys.exit(1 if main() else 0)
