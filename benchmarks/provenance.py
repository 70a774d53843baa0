"""Where a result comes from: the commit, the date, and the state of what it measures.

A results file holds a digest of every file and folder in :data:`MEASURES`, as the command that made
it found them. It is stale where one of them has another digest now: docstrings, comments and blank
lines do not count. A file from before there were digests counts as made at the commit that touched
it last, and is stale where that commit differs from the working tree in what it measures.
"""

from __future__ import annotations

import ast
import hashlib
import json
import platform
import subprocess
from datetime import datetime, timezone
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = Path(__file__).parent / "results"
GOLDEN = FOLDER / "golden_students.json"
#: What is said of them, how many that have changed are named, and the end of the items compared.
EQUAL, MOST_CHANGED, WEIGHTS = "golden students bit-equal", 6, "/weights"
#: What the commit's name ends in where rows are of several states.
LATER = " and later"
#: What golden students are made by.
LIBRARY = ("pyro_opu", "models")
#: Quoting results changes these, and they change no result.
QUOTING = ("benchmarks/results", "docs", "README.md", "CHANGELOG.md")


def under(room: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{room}/{name}" for name in names)


TEACHERS = under("pyro_opu", "teachers")
#: What a student answers with.
STUDENTS = under("pyro_opu", "guides", "distributions", "predictive")
TRAINING = (
    *under("pyro_opu", "distillation.py", "training", "outcomes", "objectives", "transfer"),
    "pyro_opu/metrics/marginals.py",
)
DISTILLED = (*TEACHERS, *STUDENTS, *TRAINING)
FIDELITY = (
    *under("pyro_opu/reports", "fidelity.py", "*judging.py", "certainty.py"),
    *under("pyro_opu/metrics", "distances.py", "coverage.py"),
)
DETECTION = ("pyro_opu/reports/detection.py", "pyro_opu/reports/readings.py", "pyro_opu/metrics")
_CHAINS = under("pyro_opu/samplers", "latents.py", "minibatches.py")
GIBBS = (*_CHAINS, *under("pyro_opu/samplers", "affine.py", "polya_gamma.py"))
LANGEVIN = (
    *_CHAINS,
    *under("pyro_opu/samplers", "potential.py", "schedules.py", "sgld.py", "tempering.py"),
)
POSTERIORS = ("models", *GIBBS, *LANGEVIN, "benchmarks/posteriors.py", "benchmarks/digits.py")
PAPERS = (*DISTILLED, *DETECTION, "models", "benchmarks/paper_tables.py")
REGRESSION = (*TEACHERS, *STUDENTS, *TRAINING, *LANGEVIN)
PROCESSES = under(
    "models",
    *(
        "gaussian_process.py",
        "kernels.py",
        "likelihoods.py",
        "normals.py",
        "pseudo_observations.py",
    ),
    *("quadrature.py", "sgpmc.py"),
)
DARK_KNOWLEDGE = under("pyro_opu/rivals", "base.py", "bayesian_dark_knowledge.py", "online.py")
#: Results file -> what it measures, beside the command itself; files, folders and patterns.
MEASURES: dict[str, tuple[str, ...]] = {
    "adversarial": (*DISTILLED, *FIDELITY),
    "batch_bald": ("pyro_opu/joint", *DISTILLED, "models", "benchmarks/digits.py"),
    "batched": (
        *under("pyro_opu/predictive", "batched.py", "quick_ops.py"),
        *under("pyro_opu/teachers", "batched.py", "runs.py", "cost.py"),
        "benchmarks/timing.py",
    ),
    "before_after": ("benchmarks/teachers.py", *DISTILLED, *FIDELITY),
    "boston": (*REGRESSION, *DARK_KNOWLEDGE),
    "compact": (*under("pyro_opu/rivals", "base.py", "compact.py", "subsets.py"), *TEACHERS),
    "concentration": DISTILLED,
    "dark_knowledge": ("pyro_opu/rivals", *LANGEVIN, *DISTILLED),
    "digits_fidelity": (*DISTILLED, *FIDELITY, *DETECTION, "benchmarks/digits.py"),
    "export_check": ("pyro_opu/export", *STUDENTS),
    "following": (*DISTILLED, *FIDELITY, "models", *GIBBS),
    "forests": DISTILLED,
    "novelty": DISTILLED,
    "conformal": DISTILLED,
    "gaussian_process_closed_form": (*PROCESSES, "benchmarks/gaussian_process.py"),
    "gaussian_process_pima": (*PROCESSES, "benchmarks/gaussian_process.py"),
    "gaussian_process_spambase": (*PROCESSES, "benchmarks/gaussian_process.py"),
    "intervals": (*DISTILLED, "pyro_opu/metrics/coverage.py", *POSTERIORS),
    "joint_testbed": (*DISTILLED, "models/neural_network.py"),
    "known_answers": (*DISTILLED, *FIDELITY),
    "known_outcomes": DISTILLED,
    "laplace_bridge": (
        "pyro_opu/distributions/bridge.py",
        "pyro_opu/metrics/top_k.py",
        "models/laplace.py",
    ),
    "laplace_mnist": ("pyro_opu/distributions/bridge.py", "models", *DISTILLED, *DETECTION),
    "local_fidelity": (*FIDELITY, *under("pyro_opu/reports", "local.py", "regions.py")),
    "logistic_regression": ("models/logistic_regression.py", *GIBBS),
    "main_job": (*DISTILLED, *FIDELITY, *DETECTION, "benchmarks/digits.py"),
    "many_classes": (*DISTILLED, *FIDELITY, "benchmarks/memory.py"),
    "on_gpu": (
        *DISTILLED,
        *under("pyro_opu", "export/capture.py", "utils/graphs.py", "utils/chunks.py"),
        *under("benchmarks", "mnist_dropout.py", "speed_models.py"),
    ),
    "memory": (*DISTILLED, *FIDELITY, "pyro_opu/utils/chunks.py"),
    "mnist_dropout": ("models/neural_network.py",),
    "mnist_students": (*DISTILLED, *FIDELITY, *DETECTION, "benchmarks/mnist_dropout.py"),
    "mnist_sgld": (*LANGEVIN, "models/neural_network.py"),
    "newcomer": ("pyro_opu", "models"),
    "opu_table1": (*PAPERS, "benchmarks/tabular_protocol.py", "pyro_opu/rivals"),
    "opu_table2": (*PAPERS, "benchmarks/mnist_dropout.py", "benchmarks/mnist_sgld.py"),
    "opu_table3": (*PAPERS, "benchmarks/tabular_protocol.py", "benchmarks/gaussian_process.py"),
    "paying": (*DISTILLED, *POSTERIORS, "benchmarks/timing.py"),
    "polya_gamma": (*GIBBS, "models/logistic_regression.py"),
    "refinements": DISTILLED,
    "richer_guides": (*DISTILLED, *FIDELITY),
    "scale": (*DISTILLED, "pyro_opu/distributed.py", "benchmarks/scale_worker.py"),
    "sgld": (*LANGEVIN, "models/neural_network.py"),
    "speed": (
        *DISTILLED,
        *under("pyro_opu", "export/capture.py", "utils/graphs.py"),
        *under("benchmarks", "speed_*.py", "memory.py", "timing.py"),
    ),
    "students": (*DISTILLED, *FIDELITY, *DETECTION, *POSTERIORS, "pyro_opu/rivals"),
    "teachers": (*DISTILLED, *FIDELITY, *POSTERIORS),
    "toy_regression": (*REGRESSION, *DARK_KNOWLEDGE),
}


def measured(name: str) -> tuple[str, ...]:
    """What the results file of this name measures; the whole package where nobody has said."""
    own = f"benchmarks/{name}.py"
    listed = MEASURES.get(name, LIBRARY)
    return (*dict.fromkeys(listed), *[own] * (ROOT / own).exists())


def tree(root: Path = ROOT) -> dict[str, bytes]:
    """Path -> contents of all code that is there now."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for folder in ("pyro_opu", "models", "benchmarks")
        for path in sorted((root / folder).rglob("*.py"))
    }


@cache
def snapshot() -> dict[str, bytes]:
    """The code as the first call of this process finds it, which is before anything is measured."""
    return tree()


def digests(name: str, files: dict[str, bytes]) -> dict[str, str]:
    """Path -> digest of its code, for all that the results file of this name measures."""
    return {path: digest(path, files) for path in measured(name)}


def digest(path: str, files: dict[str, bytes]) -> str:
    """Digest of the files that a path names: a file, a folder, or a pattern."""
    total = hashlib.sha256()
    for file, contents in files.items():
        if file.startswith(f"{path}/") or fnmatch(file, path):
            total.update(f"{file}\n".encode() + code(contents))
    return total.hexdigest()[:12]


@cache
def code(source: bytes) -> bytes:
    """The lines of Python that are no docstring, comment or blank."""
    said = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(source.splitlines(), 1)
    bare = [line.rstrip() for number, line in lines if number not in said]
    return b"\n".join(line for line in bare if line and not line.lstrip().startswith(b"#"))


def git(*arguments: str) -> str | None:
    """What git says in this repository, None where it fails or is not there."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def history() -> bool:
    """Whether this is a checkout with its whole history, and no unpacked archive."""
    return git("rev-parse", "--is-shallow-repository") == "false"


@cache
def source() -> dict[str, Any]:
    """The commit, whether nothing but what quotes results differs from it, and the time.

    As the first call of this process finds them, which is to be made before anything is measured.
    """
    changed = git("status", "--porcelain", "--", ".", *(f":!{path}" for path in QUOTING))
    commit = git("rev-parse", "--short=7", "HEAD")
    return {
        "commit": commit or "unknown",
        "clean": None if changed is None else not changed,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def processor() -> str:
    """The name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def made(whole: dict[str, Any], name: str) -> dict[str, Any]:
    """Where the contents of a results file come from: "commit", "date", "measured"."""
    if "made" in whole:
        return whole["made"]
    said = git("log", "-1", "--format=%H %as", "--", f"benchmarks/results/{name}.json") or ""
    commit, _, day = said.partition(" ")
    return {"commit": commit[:7] or "unknown", "date": day}


def record(name: str, older: dict[str, Any] | None) -> dict[str, Any]:
    """What is written of the source of some tables; ``older`` is the file that rows stay from.

    Where these rows are of another state of what is measured the file is stale from the start.
    """
    now = digests(name, snapshot())
    if older is None or made(older, name).get("measured") == now:
        return {**source(), "measured": now}
    before = made(older, name)["commit"].removesuffix(LATER)
    return {**source(), "commit": before + LATER, "measured": {}}


def staleness(name: str, folder: Path = FOLDER) -> str | None:
    """Where and when a results file was made that is older than what it measures; else None.

    It says so where nothing but the place of the code can have changed, as far as the golden
    students (``benchmarks/golden.py``) show it; few that have changed are named.
    """
    whole = json.loads((folder / f"{name}.json").read_text())
    found = made(whole, name)
    if "measured" in found:
        fresh = found["measured"] == digests(name, tree())
    else:
        fresh = git("diff", "--quiet", found["commit"], "--", *measured(name)) is not None
    if fresh:
        return None
    changed, since = changed_students(found["commit"].removesuffix(LATER)), ""
    if changed is not None and len(changed) <= MOST_CHANGED:
        but = f" but for {', '.join(changed)}" if changed else ""
        since = f", {EQUAL} since{but}"
    return f"commit `{found['commit']}` ({found['date'][:10]}){since}"


@cache
def changed_students(commit: str) -> list[str] | None:
    """Golden students recorded now whose weights are not those of a commit; None if unknown.

    They are recorded in that commit, or in the next that records any, if the library is the same.
    One that was not recorded then may have other weights.
    """
    path = GOLDEN.relative_to(ROOT).as_posix()
    if git("cat-file", "-e", f"{commit}:{path}") is None:
        later = git("rev-list", "--reverse", f"{commit}..HEAD", "--", path)
        if not later or git("diff", "--quiet", commit, later[:40], "--", *LIBRARY) is None:
            return None
        commit = later[:40]
    old = json.loads(git("show", f"{commit}:{path}") or "{}").get("items", {})
    new = json.loads(GOLDEN.read_text())["items"]
    every = [key for key in new if key.endswith(WEIGHTS)]
    if not old.keys() & set(every):
        return None
    return [
        key.removesuffix(WEIGHTS) for key in every if key not in old or old[key][0] != new[key][0]
    ]
