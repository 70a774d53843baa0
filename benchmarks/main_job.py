"""The main job: a Pyro model with NUTS draws on real digits, distilled, swapped and compared.

python -m benchmarks.main_job

scikit-learn's digits on their first 16 principal components; Bayesian multinomial logistic
regression; 500 draws of NUTS; `distill`; then accuracy, fidelity, out-of-domain scores and time of
teacher and student, and a picture, by default `out/main_job.png`, which git ignores. One seed.
A distance of the teacher is that of two halves of its draws.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import NamedTuple

import pyro
import torch
from pyro.infer import MCMC, NUTS, Predictive
from pyro.ops.stats import split_gelman_rubin
from torch import Tensor

import pyro_opu
from benchmarks.main_job_picture import draw
from papers.digits import Digits, Split, digits
from papers.results import finish, parser
from papers.timing import timed
from pyro_opu.models.logistic_regression import logistic_regression

COMPONENTS = 16


class Task(NamedTuple):
    """Digits as principal components, and inputs that are no digits, made in pixel space."""

    data: Digits
    outside: dict[str, Tensor]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--picture", type=Path, default=Path("out/main_job.png"))
    args = options.parse_args()
    count, warmup, budget = (20, 20, 0.0) if args.quick else (500, 300, 3.0)
    task = principal_components(args.seed)
    begin = time.perf_counter()

    model = logistic_regression(10)
    samples, seconds = {}, {}
    seconds["NUTS"], samples = run_nuts(model, task.data.train, count, warmup, args.seed)
    predictive = Predictive(model, posterior_samples=samples)

    start = time.perf_counter()
    fast = pyro_opu.distill(
        predictive,
        task.data.transfer.x,
        seed=args.seed,
        **({"num_steps": 5} if args.quick else {}),
    )
    seconds["distill"] = time.perf_counter() - start

    x, y = task.data.test
    report = pyro_opu.fidelity(fast, predictive, x, extra=task.outside, seed=args.seed)
    scores = pyro_opu.detection(fast, predictive, x, y, task.outside, seed=args.seed)
    print(f"\nFidelity ({fast.report['kept']})\n\n{report}\n\n{scores}")
    both = timed({"one pass": lambda: fast(x), "Predictive": lambda: predictive(x)}, budget)
    seconds["all"] = time.perf_counter() - begin
    tables = summary(report, scores, both, seconds, len(x))
    args.picture.parent.mkdir(parents=True, exist_ok=True)
    draw(args.picture, fast, pyro_opu.as_teacher(predictive), x, task.outside, both)
    print(f"\nSame keys and shapes: {shapes(predictive(x))} and {shapes(fast(x))}.")
    print(f"Picture: {args.picture}. In all {seconds['all']:.0f} s.")
    finish(__file__, args, tables)


def principal_components(seed: int) -> Task:
    """Project on the directions of the teacher's training rows, scaled as one."""
    data = digits(seed)
    mean = data.train.x.mean(0)
    _, size, directions = torch.linalg.svd(data.train.x - mean, full_matrices=False)
    directions = directions[:COMPONENTS].T * (len(data.train.x) ** 0.5 / size[0])

    def project(x: Tensor) -> Tensor:
        return (x - mean) @ directions

    noise = torch.Generator().manual_seed(seed)
    pixels = data.test.x
    outside = {
        "uniform noise": torch.rand(pixels.shape, generator=noise),
        "permuted digits": pixels[:, torch.randperm(64, generator=noise)],
        "inverted digits": 1 - pixels,
    }
    return Task(
        Digits(*(Split(project(part.x), part.y) for part in data)),
        {name: project(x) for name, x in outside.items()},
    )


def run_nuts(model, train: Split, count: int, warmup: int, seed: int) -> tuple[float, dict]:
    """Seconds and draws of NUTS; prints the worst R-hat."""
    pyro.set_rng_seed(seed)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracing compiler's, about shapes that do not change
        kernel = NUTS(model, jit_compile=True, ignore_jit_warnings=True, max_tree_depth=6)
        mcmc = MCMC(kernel, num_samples=count, warmup_steps=warmup)
        mcmc.run(train.x, train.y)
    samples = mcmc.get_samples()
    worst = max(float(split_gelman_rubin(value[None]).max()) for value in samples.values())
    print(f"NUTS: {count} draws, largest split R-hat {worst:.3f}")
    return time.perf_counter() - start, samples


def summary(report, scores, both: dict[str, float], seconds: dict[str, float], rows: int) -> dict:
    """The tables that are printed last and written."""
    teacher, student = scores.teacher, scores.student
    quality = [
        {"": "accuracy, %", "teacher": 100 * teacher.accuracy, "student": 100 * student.accuracy},
        {"": "negative log-likelihood", "teacher": teacher.nll, "student": student.nll},
        {"": "expected calibration error", "teacher": teacher.ece, "student": student.ece},
        {"": "KL of the mean", "teacher": report.kl_floor, "student": report.kl},
        {
            "": "energy distance",
            "teacher": report.energy_distance_floor,
            "student": report.energy_distance,
        },
        {
            "": "mutual information",
            "teacher": report.mutual_information_teacher,
            "student": report.mutual_information,
        },
        {"": "variance", "teacher": report.variance_teacher, "student": report.variance},
    ]
    for name in scores.tables:
        if name != "misclassification":
            best = {who: scores.best(who, name)[1].auroc for who in ("teacher", "student")}
            quality.append({"": f"AUROC, {name}", **{who: 100 * v for who, v in best.items()}})
    ratio = both["Predictive"] / both["one pass"]
    times = [
        {"": f"Predictive at N = {rows}, ms", "value": 1e3 * both["Predictive"]},
        {"": f"one pass at N = {rows}, ms", "value": 1e3 * both["one pass"]},
        {"": "ratio", "value": ratio},
        *({"": f"{what}, s", "value": value} for what, value in seconds.items()),
    ]
    return {"Teacher and student": quality, "Time": times}


def shapes(answer: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in answer.items()}


if __name__ == "__main__":
    main()
