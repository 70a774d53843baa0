"""Sparse Gaussian processes, variational (SVGP) and MCMC (SGPMC): known answers, and accuracy.

python -m benchmarks.gaussian_process --part closed_form
python -m benchmarks.gaussian_process --part splits --data pima
python -m benchmarks.gaussian_process --part splits --data spambase

One lengthscale for all features is the model's default, because over one per feature (``--ard``)
MCMC mixes slowly. By SVGP on validation rows within training parts the two are near each other:
mean NLL 0.487 and with ``--ard`` 0.483 on Pima (12 splits), 0.206 and 0.201 on Spambase (2 splits).
"""

from __future__ import annotations

import time

import pyro
import pyro.distributions as dist
import torch
from pyro.contrib import gp
from pyro.infer import MCMC, NUTS, Predictive
from pyro.ops.stats import effective_sample_size, gelman_rubin
from torch import Tensor

import pyro_opu
from benchmarks.results import kept, parser, say, spread, write
from pyro_opu import datasets
from pyro_opu.models.gaussian_process import gaussian_process, inducing_points
from pyro_opu.models.kernels import Kernel
from pyro_opu.models.sgpmc import SGPMC, sgpmc, svgp

#: Accuracy in Table 3 of Cui et al. (2019).
PAPER = {"pima": {"SGPMC": 79.3, "SVGP": 77.1}, "spambase": {"SGPMC": 92.4, "SVGP": 92.1}}
#: Draws per chain and warm-up, by what a gradient costs.
SETTINGS = {
    "pima": {"num_samples": 500, "warmup_steps": 50},
    "spambase": {"num_samples": 100, "warmup_steps": 15},
}
CHAINS = 2
MODELS = ("logistic regression", "SVGP", "SGPMC")


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--part", choices=["closed_form", "splits"], default="splits")
    options.add_argument("--data", choices=list(SETTINGS), default="pima")
    options.add_argument("--splits", type=int, default=20)
    options.add_argument("--ard", action="store_true", help="one lengthscale per feature")
    options.add_argument("--resume", action="store_true", help="keep the fits already written")
    args = options.parse_args()
    torch.set_num_threads(1)
    if args.part == "closed_form" or args.quick:
        known_answers(args.quick)
    if args.part == "splits" or args.quick:
        accuracy(args.data, args)


def known_answers(quick: bool) -> None:
    """Draws against closed forms, and the sparse process against the exact one."""
    tables = {
        "Draws of P(y = 1) against the closed form (probit)": probit(100 if quick else 20000),
        "SGPMC, all inputs inducing, against NUTS on the exact process": exact(
            20 if quick else 3000
        ),
    }
    say(tables)
    if not quick:
        command = "python -m benchmarks.gaussian_process --part closed_form"
        write("gaussian_process_closed_form", command, {}, tables)


def probit(draws: int) -> list[dict]:
    """The teacher's mean and variance of Phi(f) for a Gaussian over v, beside contrib.gp's law."""
    torch.manual_seed(0)
    x, z = torch.randn(8, 2).double(), torch.randn(5, 2).double()
    model = gaussian_process(z, 2, link="probit", linear=False, constant=0.0)
    kernel = gp.kernels.RBF(2, torch.tensor(3.0).double(), torch.tensor(1.5).double())
    sparse = gp.models.VariationalSparseGP(
        x, None, kernel, z, gp.likelihoods.Binary(), whiten=True, jitter=1e-8
    )
    q = torch.distributions.MultivariateNormal(
        torch.randn(5).double(), scale_tril=torch.eye(5).double() * 0.5
    )
    sparse.u_loc, sparse.u_scale_tril = torch.nn.Parameter(q.loc), q.scale_tril
    with torch.no_grad():
        loc, variance = sparse(x)
    samples = {
        "lengthscale": torch.full((draws,), 1.5).double(),
        "variance": torch.full((draws,), 3.0).double(),
        "v": q.sample((draws,)),
    }
    probs = pyro_opu.as_teacher(Predictive(model, samples)).probs(x)[..., 1]
    grid = torch.linspace(-10, 10, 20001).double()[:, None]
    phi = torch.special.ndtr(loc + variance.sqrt() * grid)
    weight = (torch.exp(-(grid**2) / 2) / (2 * torch.pi) ** 0.5) * 1e-3
    mean = torch.special.ndtr(loc / (1 + variance).sqrt())
    second = (weight * phi**2).sum(0)
    return [
        {
            "input": n,
            "mean": float(probs[:, n].mean()),
            "closed form": float(mean[n]),
            "in standard errors": float(
                (probs[:, n].mean() - mean[n]) / (probs[:, n].std() / draws**0.5)
            ),
            "standard deviation": float(probs[:, n].std()),
            "by integral": float((second[n] - mean[n] ** 2).sqrt()),
        }
        for n in range(len(x))
    ]


def exact(draws: int) -> list[dict]:
    """P(y = 1) at new inputs, ten training rows."""
    torch.manual_seed(0)
    x = torch.randn(10, 1).double()
    y = (torch.sin(2 * x[:, 0]) > 0.5 * torch.randn(10)).double()
    new = torch.linspace(-2, 3, 6).double()[:, None]
    model = gaussian_process(x, 2, joint_rows=0)
    result = sgpmc(model, x, y, num_samples=draws, warmup_steps=max(20, draws // 10))
    mine = pyro_opu.as_teacher(Predictive(model, result.samples)).probs(new)[..., 1]
    mcmc = MCMC(NUTS(whole_process), draws, draws // 5, disable_progbar=True)
    mcmc.run(model.kernel, x, y)
    other = conditional(model.kernel, x, mcmc.get_samples(), new)
    rows = []
    for n in range(len(new)):
        a, b = mine[:, n], other[:, n]
        errors = [each.std() / effective_draws(each).clamp_min(1) ** 0.5 for each in (a, b)]
        rows.append(
            {
                "x": float(new[n]),
                "SGPMC, mean": float(a.mean()),
                "exact, mean": float(b.mean()),
                "in standard errors": float((a.mean() - b.mean()) / torch.stack(errors).norm()),
                "SGPMC, sd": float(a.std()),
                "exact, sd": float(b.std()),
            }
        )
    return rows


def effective_draws(draws: Tensor) -> Tensor:
    """Effective sample size of one chain, at most its length."""
    return effective_sample_size(draws[None], 0, 1).abs().clamp_max(len(draws))


def factor(kernel: Kernel, x: Tensor, parameters: dict[str, Tensor]) -> Tensor:
    covariance = kernel(x, x, parameters)
    return torch.linalg.cholesky(covariance + 1e-7 * torch.eye(len(x)).double())


def whole_process(kernel: Kernel, x: Tensor, y: Tensor) -> None:
    """The exact process, its values at all inputs whitened."""
    parameters = kernel.sample(x)
    white = pyro.sample("white", dist.Normal(x.new_zeros(len(x)), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Bernoulli(logits=factor(kernel, x, parameters) @ white), obs=y)


def conditional(kernel: Kernel, x: Tensor, samples: dict[str, Tensor], new: Tensor) -> Tensor:
    """P(y = 1) at new inputs, ``(S, N)``, f drawn given its values at ``x``."""
    probs = []
    for s, white in enumerate(samples["white"]):
        parameters = {name: samples[name][s] for name in kernel.names}
        lower = factor(kernel, x, parameters)
        half = torch.linalg.solve_triangular(lower, kernel(x, new, parameters), upper=False)
        left = (kernel.diagonal(new, parameters) - half.square().sum(0)).clamp_min(0)
        probs.append((half.mT @ white + left.sqrt() * torch.randn_like(left)).sigmoid())
    return torch.stack(probs)


def accuracy(name: str, args) -> None:
    """Random 90/10 splits, the fast models on all of them first, then MCMC.

    What there is is written after every fit, and with ``--resume`` not made again.
    """
    dataset = getattr(datasets, name)()
    splits = 1 if args.quick else args.splits
    stem = f"gaussian_process_{name}" + ("_ard" if args.ard else "")
    rows = kept(stem).get("Splits", []) if args.resume else []
    done = {(row["seed"], row["model"]) for row in rows}
    for model in MODELS:
        for seed in range(splits):
            if (seed, model) in done:
                continue
            row = one_fit(name, model, args, dataset, seed)
            rows.append({"seed": seed, "model": model, **row})
            say({f"Split {seed}": rows[-1:]})
            if not args.quick:
                tables = {"Mean ± deviation of splits": summary(name, rows), "Splits": rows}
                command = f"python -m benchmarks.gaussian_process --part splits --data {name}"
                settings = {"ard": args.ard, "chains": CHAINS, **SETTINGS[name]}
                write(stem, command + (" --ard" if args.ard else ""), settings, tables)
    say({"Mean ± deviation of splits": summary(name, rows)})


def one_fit(name: str, kind: str, args, dataset: datasets.Dataset, seed: int) -> dict:
    """One model on one split; seconds are of processor time."""
    train, test = datasets.standardize(*datasets.split(dataset, test=0.1, seed=seed))
    settings = dict(SETTINGS[name])
    if args.quick:
        train = train.take(torch.arange(200))
        settings.update(num_samples=10, warmup_steps=5)
    x, y = train.x, train.y
    torch.manual_seed(seed)
    begun = time.process_time()
    if kind == "logistic regression":
        return {**logistic_regression(x, y, test), "s": time.process_time() - begun}
    model = gaussian_process(inducing_points(x, seed=seed), 2, ard=args.ard, joint_rows=0)
    if kind == "SVGP":
        guide = svgp(model, x, y)
        seconds = time.process_time() - begun
        return {**judged(Predictive(model, guide=guide, num_samples=500), test), "s": seconds}
    draws = sgpmc(model, x, y, num_chains=CHAINS, **settings)
    seconds = time.process_time() - begun
    scores = judged(Predictive(model, draws.samples), test)
    return {**scores, "s": seconds, **convergence(draws)}


def logistic_regression(x: Tensor, y: Tensor, test: datasets.Dataset) -> dict:
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(max_iter=5000).fit(x.numpy(), y.numpy())
    return scores_of(torch.from_numpy(fitted.predict_proba(test.x.numpy())), test.y)


def judged(predictive: Predictive, test: datasets.Dataset) -> dict:
    return scores_of(pyro_opu.as_teacher(predictive).probs(test.x).mean(0), test.y)


def scores_of(probs: Tensor, y: Tensor) -> dict:
    right = (probs.argmax(-1) == y).float().mean()
    nll = -probs[range(len(y)), y].clamp_min(1e-12).log().mean()
    return {"accuracy, %": 100 * float(right), "NLL, nats": float(nll)}


def convergence(draws: SGPMC) -> dict:
    """Of the logarithms of the hyper-parameters, and of all coordinates in which HMC ran."""
    found = {"divergences": sum(len(v) for v in draws.mcmc.diagnostics()["divergences"].values())}
    hyper = [
        value.log().flatten(2) if value.ndim > 2 else value.log()[..., None]
        for key, value in draws.by_chain.items()
        if key != "v"
    ]
    noise = draws.mcmc.get_samples(group_by_chain=True)["noise"]
    for what, values in (("hyper-parameters", torch.cat(hyper, -1)), ("all", noise)):
        found[f"R-hat, {what}"] = float(gelman_rubin(values, 0, 1).max())
        size = effective_sample_size(values, 0, 1)
        # Below zero, the estimate's way of saying that draws are anti-correlated: as many or more.
        size = torch.where(size < 0, float(values.shape[1] * CHAINS), size)
        found[f"ESS, {what}"] = float(size.min())
    return found


def summary(name: str, rows: list[dict]) -> list[dict]:
    """Mean ± deviation, and of the difference to logistic regression within splits."""
    base = {row["seed"]: row for row in rows if row["model"] == MODELS[0]}
    out = []
    for model in MODELS:
        mine = [row for row in rows if row["model"] == model and row["seed"] in base]
        if not mine:
            continue
        line = {"model": model, "splits": len(mine)}
        for key in ("accuracy, %", "NLL, nats"):
            line[key] = spread([row[key] for row in mine])
            line[f"{key}: difference"] = spread([row[key] - base[row["seed"]][key] for row in mine])
        line["paper, accuracy, %"] = PAPER[name].get(model, "")
        timed = [row["s"] for row in mine if "s" in row]
        line["s"] = spread(timed) if timed else ""
        if model == "SGPMC":
            line["R-hat, largest"] = max(row["R-hat, all"] for row in mine)
            line["ESS, smallest"] = min(row["ESS, all"] for row in mine)
            line["divergences"] = sum(row["divergences"] for row in mine)
        out.append(line)
    return out


if __name__ == "__main__":
    main()
