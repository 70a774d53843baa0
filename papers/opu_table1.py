"""Table 1 of the OPU paper: Bayesian logistic regression on Pima and Spambase, two protocols.

python -m papers.opu_table1

Every seed is another split, chain and student. The protocols and the inputs from outside are those
of `papers/protocol.py`, the measures and times those of `papers/tables.py`.

- PG: 500 draws, every tenth of 5,000 of a Polya-Gamma chain; prior N(0, 1) on the weights. The
  paper says neither its prior nor its thinning.
- CA-PG: CompactApprox, 50 of the same 5,000 draws, chosen at up to 1,000 training rows: "random" is
  the paper's search, the best of 10^5 subsets, "greedy" this project's.
- OPU-PG: `distill` of a network d-64-64 with two heads, about as wide as the paper's. Its steps
  (3,000 on Pima, 12,000 on Spambase) were chosen by the AUROC of these outside inputs on a split of
  another seed. The paper teaches more slowly (100 epochs) at rows held out from the teacher, with
  the Wasserstein loss alone.
- OPU-PG, default: `distill(predictive, x)`; no setting was chosen for it.

Misses. The paper's 99.7 for the unit Gaussian on Spambase does not reproduce, for posterior or
student; the norm of the input alone has 100. With columns of norm 1 the posterior of Pima hardly
leaves the larger class, so those numbers describe such a classifier. In the strict protocol on Pima
nothing does much better than chance, the teacher included. Times were taken beside other work.
"""

from __future__ import annotations

import time

import pyro
import torch
from pyro.infer import MCMC, Predictive
from torch import Tensor

import pyro_opu
from papers.protocol import DATA, PROTOCOLS, prepared, transfer
from papers.tables import (
    Method,
    Paper,
    Split,
    Table,
    default_student,
    options,
    posterior,
    run,
    student,
)
from pyro_opu import PolyaGammaGibbs, PredictiveGuide
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.rivals import compact_approx

PAPER = {
    "pima": {
        "PG": Paper(("60.0 (Ent)", "24.2 (Ent)"), ("87.0 (Ent)", "76.7 (Ent)"), 64.4, 1.01),
        "CA-PG, random": Paper(
            ("58.2 (Ent)", "24.2 (Ent)"), ("80.1 (Ent)", "74.5 (Ent)"), 62.3, 0.18
        ),
        "OPU-PG": Paper(("59.7 (Ent)", "25.6 (Ent)"), ("100.0 (CM)", "100.0 (CM)"), 64.4, 0.01),
    },
    "spambase": {
        "PG": Paper(("83.9 (Ent)", "24.3 (Ent)"), ("54.6 (Ent)", "53.5 (Ent)"), 92.4, 5.94),
        "CA-PG, random": Paper(
            ("64.1 (Ent)", "24.2 (Ent)"), ("71.5 (Ent)", "67.5 (Ent)"), 85.4, 0.36
        ),
        "OPU-PG": Paper(("83.9 (Ent)", "23.8 (Ent)"), ("99.7 (CM)", "99.3 (CM)"), 92.4, 0.01),
    },
}
SETTINGS = {"draws": 5000, "thinned": 10, "warmup": 500, "size": 50, "tries": 100_000, "rows": 1000}
QUICK = {"draws": 200, "thinned": 4, "warmup": 50, "size": 20, "tries": 500, "rows": 100}
#: On Spambase 3000 left what the student says of strict outside inputs 1 to 2 points behind its
#: teacher; on a split of another seed 6000 did for two of three sets, 12,000 for all.
STEPS = {"pima": 3000, "spambase": 12_000}
QUICK_STEPS, HIDDEN = 60, (64, 64)


def main() -> None:
    settings = {**SETTINGS, "steps": STEPS, "hidden": HIDDEN}
    table = Table(__file__, DATA, PROTOCOLS, prepared, methods, PAPER, settings)
    run(table, options(__doc__, table).parse_args())


def methods(split: Split, data: str, seed: int, quick: bool) -> dict[str, Method]:
    """The chain, the subsets of it, and the student; each one's own processor time."""
    size = QUICK if quick else SETTINGS
    x = split.train.x
    begun = time.process_time()
    draws = polya_gamma(split, seed, size)
    seconds = time.process_time() - begun
    teacher, model = thinned(draws, size), logistic_regression(2)
    found = {"PG": posterior(teacher, seconds)}
    some = x[torch.randperm(len(x))[: size["rows"]]]
    for method in ("random", "greedy"):
        begun = time.process_time()
        subset = compact_approx(
            Predictive(model, draws),
            some,
            size=size["size"],
            method=method,
            tries=size["tries"],
            seed=seed,
            progress=False,
        )
        seconds = time.process_time() - begun
        found[f"CA-PG, {method}"] = Method(
            subset,
            lambda new, subset=subset: subset.distribution(new).log_mean,
            seconds,
            teacher="PG",
        )
    begun = time.process_time()
    steps = QUICK_STEPS if quick else STEPS[data]
    torch.manual_seed(seed)
    guide = PredictiveGuide.for_inputs(x, 2, hidden=HIDDEN)
    fast = pyro_opu.distill(
        teacher,
        x,
        guide=guide,
        transfer=transfer(x),
        num_steps=steps,
        seed=seed,
        progress=False,
    )
    seconds = time.process_time() - begun
    found["OPU-PG"] = student(fast, seconds, "PG", f"({HIDDEN[0]}-{HIDDEN[1]}), {steps} steps")
    found["OPU-PG, default"] = default_student(teacher, x, seed, "PG", 5 if quick else None)
    return found


def polya_gamma(split: Split, seed: int, size: dict[str, int]) -> dict[str, Tensor]:
    """All draws of the chain."""
    pyro.set_rng_seed(seed)
    kernel = PolyaGammaGibbs(logistic_regression(2))
    chain = MCMC(kernel, size["draws"], size["warmup"], disable_progbar=True)
    chain.run(split.train.x, split.train.y.float())
    return chain.get_samples()


def thinned(draws: dict[str, Tensor], size: dict[str, int]) -> Predictive:
    """The posterior of some of them."""
    some = {name: value[:: size["thinned"]] for name, value in draws.items()}
    return Predictive(logistic_regression(2), some)


if __name__ == "__main__":
    main()
