"""What the scoreboard measures; :mod:`benchmarks.scoreboard` says what each number is."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from pyro.infer import Predictive
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import pyro_opu
from benchmarks import flagship
from benchmarks.board_posteriors import Task, task
from benchmarks.memory import in_a_process, peak_of
from papers.timing import timed
from pyro_opu.judging.yardstick import typical_factor
from pyro_opu.metrics.normals import teacher_moments
from pyro_opu.metrics.uncertainty import epistemic_uncertainty
from pyro_opu.reports.answers import teacher_of
from pyro_opu.reports.comparing import RealComparison, comparisons_of

#: Draws afresh that a teacher's epistemic part is taken from, and those of a joint total.
FRESH, TOTAL = 2000, 500
#: Half-widths of central intervals of a normal, in deviations.
NORMAL = {"50": 0.67449, "90": 1.64485}
#: Seconds that calls are timed for, in turn.
SECONDS = 2.0
#: Calls after which a student has paid, at most: where `exact` is as quick, it never has.
MOST_CALLS = 1e5
#: Rows of a class of certainty that are enough to say something of it.
ENOUGH = 10

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # tables of programs and bad calls

Numbers = dict[str, float]
#: Where the student of a posterior fails most, in words.
NOTES: dict[str, str] = {}
_students: dict[tuple[str, int], pyro_opu.OnePassPredictive] = {}


def warm_up() -> None:
    """A student of one step: what torch loads late is loaded."""
    weights = torch.randn(20, 3, 2)
    source = lambda x: (x @ weights).softmax(-1)  # noqa: E731
    pyro_opu.distill(source, torch.randn(50, 3), num_steps=1, progress=False)


# Students ----------------------------------------------------------------------------------------


def student(name: str, seed: int, steps: float = 1.0) -> Numbers:
    """Distil by default, and judge at the test inputs."""
    asked = task(name)
    fast, seconds = distilled(asked, seed, steps)
    _students[name, seed] = fast
    teacher = teacher_of(asked.source, asked.test)  # of any outcome
    options = {"num_draws": 500, "seed": seed, "wasserstein_inputs": 0}
    found = pyro_opu.fidelity(fast, asked.source, asked.test, **options)
    numbers = {"draws": found.draws}
    (both,) = comparisons_of(fast, teacher)
    if isinstance(both, RealComparison):
        numbers |= of_reals(both, teacher.max_draws or FRESH, asked.test)
    else:
        numbers |= of_classes(fast, teacher, asked.test)
        numbers |= {"within 50": found.coverage_50, "within 90": found.coverage_90}
        NOTES.setdefault(name, weakest(found))  # of the first seed, as the numbers
    if asked.options.get("guide") == "joint":
        numbers["total"] = total(fast, teacher, asked.test, seed)
    exact, x = batched(asked.source), asked.test
    times = timed({"exact": lambda: exact(x), "pass": lambda: fast.distribution(x)}, SECONDS / 2)
    gain = times["exact"] - times["pass"]
    pays = seconds / gain if gain > 0 else MOST_CALLS
    return numbers | {"make": seconds, "pays": min(pays, MOST_CALLS)}


def distilled(asked: Task, seed: int, steps: float) -> tuple[pyro_opu.OnePassPredictive, float]:
    """The student, and the seconds that it took."""
    with fewer_steps(steps), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        fast = pyro_opu.distill(
            asked.source, asked.transfer, seed=seed, progress=False, **asked.options
        )
        return fast, time.perf_counter() - start


def known(seed: int) -> Numbers:
    """A student of a network that people know."""
    found = flagship.small(seed)
    kinds = {"draws": "draws", "factor": "single", "pass / network": "ratio", "distil, s": "make"}
    title = "resnet18, dropout before its head"
    return {f"{title}: {kind}": found[name] for name, kind in kinds.items()}


def of_classes(fast: Any, teacher: Any, x: Tensor) -> Numbers:
    draws = teacher.probs(x, FRESH if teacher.max_draws is None else None)
    theirs = epistemic_uncertainty(draws)
    if teacher.max_draws is None:
        theirs = theirs * (1 + 1 / FRESH)
    return {"single": factor(fast.uncertainty(x).epistemic, theirs)}


def of_reals(both: RealComparison, count: int, x: Tensor) -> Numbers:
    """The variance of the mean f, and the teacher's draws of it in the student's intervals."""
    draws = both.draws(x, count)
    mine, f = both.ask(x).normal(), draws[..., 0]
    off = (f - mine.mean.flatten()).abs() / mine.epistemic.flatten().sqrt()
    inside = {f"within {share}": float((off < z).double().mean()) for share, z in NORMAL.items()}
    theirs = teacher_moments(draws).epistemic.flatten()
    return {"single": factor(mine.epistemic.flatten(), theirs), **inside}


def factor(mine: Tensor, theirs: Tensor) -> float:
    """The typical factor between numbers ``(N,)`` at single inputs."""
    return typical_factor(mine.double().numpy(), theirs.double().numpy())


def weakest(found: Any) -> str:
    """The class of certainty whose epistemic part is farthest off, in words."""
    rows = [row for row in found.by_certainty if row.num_inputs >= ENOUGH]
    worst = max(rows, key=lambda row: abs(math.log(row.mutual_information_ratio)))
    share = 100 * (worst.mutual_information_ratio - 1)
    side = "above" if share > 0 else "below"
    return f"certainty {worst.certainty}: mutual information {abs(share):.0f} % {side}"


def total(fast: Any, teacher: Any, x: Tensor, seed: int) -> float:
    """Deviation of the mean probability of a class over all rows, over the teacher's."""
    torch.manual_seed(seed)
    mine, theirs = (each.probs(x, TOTAL).mean(1).std(0) for each in (fast, teacher))
    return float((mine / theirs).log().mean().exp())


def batched(source: Any) -> Callable[[Tensor], Any]:
    """Exact answers of 500 draws: ``batched`` of a Predictive, class probabilities else."""
    if isinstance(source, Predictive):
        return pyro_opu.batched(source)
    teacher = pyro_opu.as_teacher(source)
    return lambda x: teacher.probs(x, None if teacher.max_draws else 500)


class fewer_steps:  # noqa: N801 - read as a function
    """Inside, the default takes this share of its steps: a worse default, made on purpose."""

    def __init__(self, share: float) -> None:
        self.share = share

    def __enter__(self) -> None:
        from pyro_opu.training import tuned

        self.module, self.before = tuned, dict(tuned.EFFORTS)
        for name, (steps, *rest) in self.before.items():
            tuned.EFFORTS[name] = (round(self.share * steps), *rest)

    def __exit__(self, *_: object) -> None:
        self.module.EFFORTS.update(self.before)


def taught(name: str, seed: int) -> pyro_opu.OnePassPredictive:
    """The student that this run has measured, or one like it."""
    if (name, seed) not in _students:
        _students[name, seed] = distilled(task(name), seed, 1.0)[0]
    return _students[name, seed]


# Novelty, speed, files ---------------------------------------------------------------------------


def novelty(seed: int) -> Numbers:
    """The digits student: how well it tells unlike inputs, and its shares of known ones."""
    fast, x = taught("digits", seed), task("digits").test
    inside = fast.novelty(x)
    generator = torch.Generator().manual_seed(seed)
    unlike = {
        "columns permuted": x[:, torch.randperm(x.shape[1], generator=generator)],
        "Gaussian noise": x.mean() + x.std() * torch.randn(x.shape, generator=generator),
    }
    truth = torch.cat([torch.zeros(len(x)), torch.ones(len(x))])
    found = {
        f"novelty of {name}: auroc": 100
        * float(roc_auc_score(truth, torch.cat([inside, fast.novelty(rows)])))
        for name, rows in unlike.items()
    }
    return found | {"novelty above .95: tail": 100 * float((inside > 0.95).double().mean())}


def speed(seed: int) -> Numbers:
    """One pass beside the plug-in network, and exact ways beside one pass."""
    found: Numbers = {}
    with torch.no_grad():
        asked = task("dropout")
        fast, plug_in = taught("dropout", seed), asked.source
        for rows in (1, 1000):
            x = asked.test.repeat(3, 1)[:rows].contiguous()
            each = {"pass": lambda x=x: fast.distribution(x), "plug-in": lambda x=x: plug_in(x)}
            times = timed(each, SECONDS)
            found[f"pass over plug-in, {rows:,} rows: ratio"] = times["pass"] / times["plug-in"]
        asked, fast = task("digits"), taught("digits", seed)
        for rows in (1, 1000):
            x = asked.test.repeat(3, 1)[:rows].contiguous()
            times = timed({"pass": lambda x=x: fast.distribution(x)}, SECONDS / 2)
            where = "1 row" if rows == 1 else f"{rows:,} rows"
            found[f"digits, one pass at {where}: ms"] = 1e3 * times["pass"]
            for name, way in exact_ways(asked, x).items():
                took = timed({"way": way}, SECONDS)["way"]
                found[f"digits, {name} at {where}: gain"] = took / times["pass"]
    return found


def exact_ways(asked: Task, x: Tensor) -> dict[str, Callable[[], Any]]:
    """Calls that give 500 labels of every row."""
    exact = pyro_opu.batched(asked.source)
    ways: dict[str, Callable[[], Any]] = {
        "Predictive": lambda: asked.source(x),
        "batched": lambda: exact(x),
    }
    if importlib.util.find_spec("numpyro"):
        ways["NumPyro's jit"] = numpyro_labels(asked.source.posterior_samples, x)
    return ways


def numpyro_labels(samples: dict[str, Tensor], x: Tensor) -> Callable[[], Any]:
    """NumPyro's ``Predictive`` of the same logistic regression, compiled as a whole."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import Predictive as Theirs

    draws = {name: jnp.asarray(value.numpy()) for name, value in samples.items()}

    def model(x: Any) -> None:
        theta = {
            name: numpyro.sample(
                name, dist.Normal(0.0, 1.0).expand(value.shape[1:]).to_event(value.ndim - 1)
            )
            for name, value in draws.items()
        }
        with numpyro.plate("data", len(x)):
            numpyro.sample("obs", dist.Categorical(logits=x @ theta["weight"] + theta["bias"]))

    labels = jax.jit(lambda key, some, x: Theirs(model, some, parallel=True)(key, x)["obs"])
    key, inputs = jax.random.key(0), jnp.asarray(x.numpy())
    return lambda: labels(key, draws, inputs).block_until_ready()


def exported(seed: int) -> Numbers:
    """Largest difference between a student and its exported file, in class probabilities."""
    import onnxruntime

    found = {}
    for name in ("cancer", "digits"):
        fast, x = taught(name, seed), task(name).test
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder, "student.onnx"))
            fast.export(path, x)
            session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
            (mean,) = session.run(["mean"], {"x": x.numpy()})
        gap = torch.from_numpy(mean) - fast.distribution(x).mean
        found[f"{name}, ONNX against torch: error"] = float(gap.abs().max())
    return found


# Programs, bad calls, memory ---------------------------------------------------------------------


def bad_calls() -> Numbers:
    """Calls in the table of tests/bad_calls that raise nothing, and those whose error is raw."""
    from bad_calls.judged import counted

    found = counted()
    return {f"bad calls, {what}: failures": found[what] for what in ("silent", "raw")}


def programs(seed: int) -> Numbers:
    """Programs in the table of tests/programs, each class counted by itself."""
    from programs.judged import CLASSES, PROGRAMS

    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        found = Counter(pool.map(partial(program, seed), PROGRAMS))
    kinds = {"faithful": "programs", "refused": "other"}
    return {f"Pyro programs, {each}: {kinds.get(each, 'failures')}": found[each]
            for each in CLASSES}  # fmt: skip


def program(seed: int, title: str) -> str:
    """The class of a program, in a process of its own."""
    from programs.judged import measured

    torch.set_num_threads(1)
    return str(measured(title, seed)["class"])


def memory() -> Numbers:
    """Megabytes that ``distill`` adds, in a process of its own."""
    return {f"{name}: memory": in_a_process(__name__, name) for name in LARGE}


def many_rows() -> Callable[[], Any]:
    """60,000 rows of 16 columns, 10 classes, 500 draws."""
    weight = torch.randn(500, 16, 10)
    source, x = (lambda x: (x @ weight).softmax(-1)), torch.randn(60_000, 16)
    return lambda: pyro_opu.distill(source, x, num_steps=50, seed=0, progress=False)


def many_images() -> Callable[[], Any]:
    """12,000 images of 3 x 32 x 32, and a convolution with dropout."""
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
        nn.Flatten(), nn.Dropout(0.5), nn.Linear(256, 10),
    ).eval()  # fmt: skip
    x = torch.randn(12_000, 3, 32, 32)
    return lambda: pyro_opu.distill(
        network, x, num_steps=20, transfer=pyro_opu.transfer.HeldOut(), seed=0, progress=False
    )


LARGE: dict[str, Callable[[], Callable[[], Any]]] = {
    "60,000 rows, 500 draws": many_rows,
    "12,000 images 3 x 32 x 32": many_images,
}


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("name", choices=LARGE)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    call = LARGE[options.parse_args().name]()
    warm_up()
    print(peak_of(call))
    sys.exit()
