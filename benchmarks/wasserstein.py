"""The paper's method from a cold start, and its critic against exact distances.

python -m benchmarks.wasserstein

"Digits": students of MC dropout on digits, taught by the Wasserstein bound and by the paper's own
objective (two-sided penalty, no likelihood, no residual) without a warm start, beside the closed
form. Test rows judge: "draws" is how many posterior draws have a mean that errs as much. Ratios are
to the closed form of the same seed; "collapsed" says whether the run did.

"Critic": two classes, a student that stays as it is, and 300 rounds of a critic at a falling rate.
"value" is the lower bound on W1 that its witnesses prove and "gain" what they gain as they are,
each over the exact W1 of the same draws; "sign" says whether the student's gradient has the sign of
the distance's.
"""

from __future__ import annotations

import time
from typing import Any

import torch

import pyro_opu
from benchmarks.posteriors import SIZES
from papers.digits import digits
from papers.results import Tables, parser, record_seeds
from pyro_opu import PredictiveDirichlet, WassersteinELBO
from pyro_opu.metrics.distances import wasserstein1
from pyro_opu.models.neural_network import dropout_network, fit_network
from pyro_opu.objectives.encounter import Encounter
from pyro_opu.objectives.examination import lower_bound
from pyro_opu.predictive.distillation_report import collapsed

PAPER: dict[str, Any] = {"two_sided": True, "residual": False, "likelihood": 0.0}
STUDENTS: dict[str, dict[str, Any] | None] = {
    "closed form": None,
    "bound, cold": {},
    "the paper's own, cold": PAPER,
}
#: Of the critic, in the quick form.
QUICK: dict[str, Any] = {"critic_warmup": 3, "critic_steps": 1, "num_samples": 8}
#: alpha of teacher and student.
CLOUDS = {
    "overlapping": ((3.0, 2.0), (2.0, 3.0)),
    "separate": ((60.0, 20.0), (20.0, 60.0)),
    "same mean": ((3.0, 3.0), (12.0, 12.0)),
}
FORMS: dict[str, dict[str, Any]] = {"the paper's own": PAPER, "bound": {}}


def main() -> None:
    options = parser(__doc__, seeds=6)
    options.add_argument("--steps", type=int, help="of a student; by default those of its effort")
    options.add_argument("--rounds", type=int, default=300, help="of a critic")
    args = options.parse_args()
    if args.quick:
        args.seeds, args.steps, args.rounds = 1, 5, 3
    torch.set_num_threads(1)
    record_seeds(
        __file__, args, of_seed, {"Digits": ("objective",), "Critic": ("form", "clouds", "penalty")}
    )


def of_seed(seed: int, args: Any) -> Tables:
    penalties = (1.0,) if args.quick else (1.0, 10.0)
    cases = [(f, c, p) for f in FORMS for c in CLOUDS for p in penalties]
    return {"Digits": students(seed, args), "Critic": [critic(seed, *c, args) for c in cases]}


def students(seed: int, args: Any) -> list[dict[str, Any]]:
    """The closed form, the bound and the paper's own objective, on one posterior."""
    data = digits(seed)
    test = data.test.x[: 50 if args.quick else None]
    torch.manual_seed(seed)
    teacher = fit_network(dropout_network(SIZES), *data.train, epochs=5 if args.quick else 200)
    rows: list[dict[str, Any]] = []
    for name, settings in STUDENTS.items():
        brief = QUICK if args.quick else {}
        loss = None if settings is None else WassersteinELBO(**settings, **brief)
        begun = time.process_time()
        fast = pyro_opu.distill(
            teacher,
            data.transfer.x,
            loss=loss,
            training=pyro_opu.Training(num_steps=args.steps, warm_start=loss is None),
            seed=seed,
            progress=False,
        )
        seconds = time.process_time() - begun
        found = pyro_opu.fidelity(fast, teacher, test, seed=seed, wasserstein_inputs=0)
        row = {
            "objective": name,
            "draws": found.draws,
            "energy distance": found.energy_distance,
            "mutual information / teacher's": found.mutual_information
            / found.mutual_information_teacher,
            "CPU s": seconds,
        }
        first = (rows or [row])[0]
        row["energy / closed form's"] = row["energy distance"] / first["energy distance"]
        row["time / closed form's"] = seconds / first["CPU s"]
        rows.append({**row, "collapsed": collapsed(fast.report)})
    return rows


def critic(seed: int, form: str, clouds: str, penalty: float, args: Any) -> dict[str, Any]:
    """Values of a critic of 32 inputs with one student, and the sign of its gradient."""
    torch.manual_seed(seed)
    x, (theirs, mine) = torch.randn(32, 2), (torch.tensor(alpha) for alpha in CLOUDS[clouds])
    teacher = PredictiveDirichlet.from_alpha(theirs.expand(32, 2))
    objective = WassersteinELBO(**{**FORMS[form], "likelihood": 0.0}, penalty=penalty)
    objective.prepare(x, 2)
    optimizer = objective.critic_optimizer()

    def student(at: torch.Tensor) -> PredictiveDirichlet:
        return PredictiveDirichlet.from_alpha(at.expand(32, 2))

    for number in range(args.rounds):
        objective.anneal(number / args.rounds)
        for group in optimizer.param_groups:
            group["lr"] = objective.critic_learning_rate * (1 - number / args.rounds)
        optimizer.zero_grad()
        loss = objective.critic_loss(objective.meet(student(mine), teacher.sample((32,)), x))
        torch.stack(list(loss.values())).sum().backward()
        optimizer.step()
    # Where the means agree the student's spread is too small, and both of its alphas fall.
    down = torch.ones(2) if clouds == "same mean" else torch.tensor([-1.0, 1.0])
    at = mine.clone().requires_grad_()
    for _ in range(10):
        objective.parts(student(at), teacher.sample((32,)), x)["wasserstein"].backward()
    draws, samples = teacher.sample((256,)), student(mine).sample((256,))
    exact = wasserstein1(draws, samples)
    with torch.no_grad():
        values = objective.witness_values(torch.cat([draws, samples]), samples, draws, x).T
        gain = objective._gain(values, Encounter(x, draws, None, samples))
    assert at.grad is not None
    return {
        "form": form,
        "clouds": clouds,
        "penalty": penalty,
        "exact W1": float(exact.mean()),
        "value": float((lower_bound(values, draws, samples) / exact).mean()),
        "gain": float((gain / exact).mean()),
        "sign": bool((at.grad * down).sum() > 0),
    }


if __name__ == "__main__":
    main()
