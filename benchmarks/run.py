"""All benchmarks one after another: ``python -m benchmarks.run [--quick]``."""

from __future__ import annotations

import subprocess
import sys

NAMES = (
    "main_job",
    "newcomer",
    "bad_input",
    "reliability",
    "pyro_programs",
    "digits_fidelity",
    "known_answers",
    "known_outcomes",
    "concentration",
    "refinements",
    "adversarial",
    "export_check",
    "batched",
    "speed",
    "memory",
    "scale",
    "gpu_tests",
    "polya_gamma",
    "logistic_regression",
    "sgld",
    "mnist_sgld",
    "mnist_dropout",
    "mnist_students",
    "many_classes",
    "gaussian_process",
    "teachers",
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


def main() -> int:
    failed = []
    for name in NAMES:
        command = [sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:]]
        print(f"\n== {' '.join(command[1:])}", flush=True)
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    print(
        f"\n{len(NAMES) - len(failed)} of {len(NAMES)} benchmarks ran; failed: {failed or 'none'}"
    )
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
