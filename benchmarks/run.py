"""All benchmarks: ``python -m benchmarks.run [--quick]``.

One after another, since most are timed. Quick ones time nothing: as many at once as there are
cores, but for those that wait for processes of their own, which are last.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

NAMES = (
    "main_job",
    "newcomer",
    "digits_fidelity",
    "known_answers",
    "known_outcomes",
    "concentration",
    "refinements",
    "adversarial",
    "export_check",
    "batched",
    "paying",
    "speed",
    "memory",
    "scale",
    "gpu_tests",
    "on_gpu",
    "polya_gamma",
    "logistic_regression",
    "sgld",
    "mnist_sgld",
    "mnist_dropout",
    "mnist_students",
    "many_classes",
    "gaussian_process",
    "teachers",
    "intervals",
    "forests",
    "novelty",
    "conformal",
    "joint_testbed",
    "batch_bald",
    "following",
    "local_fidelity",
    "before_after",
    "compact",
    "laplace_bridge",
    "laplace_mnist",
    "dark_knowledge",
    "boston",
    "toy_regression",
    "richer_guides",
    "students",
    "opu_table1",
    "opu_table2",
    "opu_table3",
    "golden",
    "pictures",
)

#: They start processes, and give up on one that does not answer in time.
ALONE = ("scale", "newcomer")


def main() -> int:
    together: tuple[str, ...] = ()
    if "--quick" in sys.argv[1:]:
        together = tuple(name for name in NAMES if name not in ALONE)
    failed = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, (code, text) in zip(together, pool.map(quick, together), strict=True):
            print(text, end="", flush=True)
            failed += [name] * bool(code)
    for name in NAMES:
        if name not in together and timed(name):
            failed.append(name)
    print(
        f"\n{len(NAMES) - len(failed)} of {len(NAMES)} benchmarks ran; failed: {failed or 'none'}"
    )
    return len(failed)


def command(name: str) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:]]


def timed(name: str) -> int:
    """The exit status of a benchmark, which prints as it goes."""
    print(f"\n== {' '.join(command(name)[1:])}", flush=True)
    return subprocess.run(command(name), check=False).returncode


def quick(name: str) -> tuple[int, str]:
    """The exit status of a benchmark on one thread, and what it printed."""
    start = time.perf_counter()
    done = subprocess.run(
        command(name),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    head = f"\n== {' '.join(command(name)[1:])}: {time.perf_counter() - start:.0f} s\n"
    return done.returncode, head + done.stdout


if __name__ == "__main__":
    sys.exit(main())
