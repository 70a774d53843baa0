"""The Laplace bridge: against sampling, its speed, and top-k sets made from its Dirichlet.

python -m benchmarks.laplace_bridge

Nothing is chosen on the test rows. The curvatures that laplace-torch makes are left out where it is
not installed.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import pyro
import torch
from torch import Tensor

from benchmarks.digits import Digits, digits
from benchmarks.results import parser, say, spread, write
from pyro_opu import inverse_laplace_bridge, laplace_bridge, probit_predictive
from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.metrics.distances import energy_distance, kl_divergence
from pyro_opu.metrics.top_k import TopK, _shared_area, top_k
from pyro_opu.models.laplace_network import NetworkLaplace, network_laplace, with_trunk
from pyro_opu.models.last_layer import last_layer_laplace
from pyro_opu.models.neural_network import fit_network, perceptron

#: Training rows for top-k, few enough that the likeliest class is often wrong.
FEW = 100
#: Test rows, and draws of the Gaussian on each side, in the comparison with sampling.
JUDGED, DRAWS = 250, 300
OVERLAPS = (0.01, 0.05, 0.1, 0.2, 0.4, 0.6)
#: Subset and structure for laplace-torch, with its prior precision by marginal likelihood.
CURVATURES = (
    ("last_layer", "full"),
    ("last_layer", "kron"),
    ("last_layer", "diagonal"),
    ("all", "kron"),
)
Scores = dict[tuple, dict[str, list[float]]]


def main() -> None:
    options = parser("The Laplace bridge: sanity, speed, top-k, and against sampling.")
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--draws", type=int, default=10**6, help="for the sanity check")
    args = options.parse_args()
    if args.quick:
        args.seeds, args.draws = 1, 10**4
    tables = {"Sanity: three classes, KL(softmax of the Gaussian || Dirichlet)": sanity(args.draws)}
    title = "Conversion time, diagonal covariance, two threads"
    load = os.getloadavg()[0]  # of the minute before: what else the machine does
    tables[title] = conversion(2_000 if args.quick else 100_000)
    torch.set_num_threads(1)
    say(tables)
    k_scores, method_scores = {}, {}
    for seed in range(args.seeds):
        splits = digits(seed)
        sets(seed, splits, k_scores)
        methods(seed, splits, method_scores, quick=args.quick)
        tables[f"Top-k on digits, {FEW} training rows"] = rows(k_scores, ("Dirichlet", "sets"))
        tables["Bridge, normalised bridge and probit against sampling, digits"] = rows(
            method_scores, ("normal weights", "answer")
        )
        print(f"seed {seed + 1} of {args.seeds}", flush=True)
        if not args.quick:
            settings = {
                **vars(args),
                "finished": seed + 1,
                "test rows": f"{len(splits.test.x)}, and {JUDGED} against sampling",
                "load average before the conversion": load,
            }
            write("laplace_bridge", "python -m benchmarks.laplace_bridge", settings, tables)
    say(tables)


def sanity(draws: int) -> list[dict]:
    """From uncertain to certain: Gaussians that a Dirichlet maps to, and independent logits."""
    pyro.set_rng_seed(0)
    found = []
    for alpha in ((0.5, 0.5, 0.5), (1, 1, 1), (2, 1, 3), (5, 5, 5), (10, 5, 20), (100, 50, 80)):
        gaussian = inverse_laplace_bridge(torch.tensor(alpha).double(), full=True)
        found.append({"logits": f"of Dir{alpha}", **divergences(*gaussian, draws)})
    for mean, variance in (((0, 0, 0), 4), ((0, 0, 0), 0.1), ((2, 0, -2), 4), ((2, 0, -2), 0.1)):
        covariance = variance * torch.eye(3, dtype=torch.float64)
        name = f"independent, mean {mean}, variance {variance}"
        found.append(
            {"logits": name, **divergences(torch.tensor(mean).double(), covariance, draws)}
        )
    return found


def divergences(mean: Tensor, covariance: Tensor, draws: int) -> dict[str, float | str]:
    """KL to three Dirichlets by the exact densities of both, averaged over draws."""
    log_pi = drawn(mean, covariance, draws)
    log_p = log_density(mean, covariance, log_pi)
    probs = log_pi.exp()
    average = probs.mean(0)
    of = {
        "bridge": laplace_bridge(mean, covariance),
        "normalised bridge": laplace_bridge(mean, covariance, normalize=True),
        "same mean and variance": average * concentration(probs),
    }
    out: dict[str, float | str] = {}
    for name, alpha in of.items():
        log_q = torch.distributions.Dirichlet(alpha, validate_args=False).log_prob(probs)
        out[name] = (log_p - log_q).mean().item()
        if name == "bridge":
            out["its error"] = ((log_p - log_q).std() / draws**0.5).item()
    out["KL of the means, bridge"] = kl_divergence(
        average, of["bridge"] / of["bridge"].sum()
    ).item()
    return out


def drawn(mean: Tensor, covariance: Tensor, draws: int) -> Tensor:
    """Logarithms of the softmax of Gaussian logits, ``(draws, C)``."""
    values, vectors = torch.linalg.eigh(covariance)
    noise = torch.randn(draws, len(mean), dtype=mean.dtype) * values.clamp(min=0).sqrt()
    return (mean + noise @ vectors.mT).log_softmax(-1)


def log_density(mean: Tensor, covariance: Tensor, log_pi: Tensor) -> Tensor:
    """Of the logistic normal: differences to the last logit are Gaussian."""
    size = len(mean) - 1
    contrast = torch.cat([torch.eye(size), -torch.ones(size, 1)], 1).to(mean)
    normal = torch.distributions.MultivariateNormal(
        contrast @ mean, contrast @ covariance @ contrast.mT
    )
    return normal.log_prob(log_pi[:, :-1] - log_pi[:, -1:]) - log_pi.sum(-1)


def concentration(probs: Tensor) -> Tensor:
    """Of the Dirichlet with the mean and the summed variance of draws ``(S, ..., C)``."""
    return (1 - probs.mean(0).square().sum(-1)) / probs.var(0).sum(-1) - 1


def conversion(inputs: int, classes: int = 1000) -> list[dict]:
    """Seconds for all inputs, the best and the median of five runs; float32, two threads."""
    pyro.set_rng_seed(0)
    mean, variance = torch.randn(inputs, classes), torch.rand(inputs, classes) + 0.1
    alpha = variance * 10
    calls: dict[str, Callable[[], object]] = {
        "bridge": lambda: laplace_bridge(mean, variance),
        "normalised bridge": lambda: laplace_bridge(mean, variance, normalize=True),
        "inverse": lambda: inverse_laplace_bridge(alpha),
        "top-k with max_k = 10, one tenth of the inputs": lambda: top_k(
            PredictiveDirichlet.from_alpha(alpha[: inputs // 10]), max_k=10
        ),
    }
    torch.set_num_threads(2)
    found = []
    for name, call in calls.items():
        call()  # warms up
        runs = [timed(call) for _ in range(5)]
        found.append(
            {
                "call": name,
                "inputs x classes": f"{inputs} x {classes}",
                "best, s": min(wall for wall, _ in runs),
                "median, s": statistics.median(wall for wall, _ in runs),
                "CPU, median, s": statistics.median(cpu for _, cpu in runs),
            }
        )
    return found


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock, and of processor time (both threads together)."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def sets(seed: int, splits: Digits, scores: Scores) -> None:
    """Coverage and mean size of uncertainty-aware sets, beside fixed sizes and simple rules."""
    pyro.set_rng_seed(seed)
    x, y = splits.train.x[:FEW], splits.train.y[:FEW]
    network = fit_network(perceptron((64, 32, 10)), x, y)
    fit = with_trunk(*last_layer_laplace(network, x, y))
    mean, covariance = fit.logits(splits.test.x)
    probs = fit.probs(splits.test.x, 500)
    matched = probs.mean(0) * concentration(probs).clamp(1e-2, 1e6).unsqueeze(-1)
    for name, alpha in (
        ("bridge", laplace_bridge(mean, covariance)),
        ("normalised bridge", laplace_bridge(mean, covariance, normalize=True)),
        ("moments of 500 draws", matched),
    ):
        dirichlet = PredictiveDirichlet.from_alpha(alpha)
        for overlap in OVERLAPS:
            found = top_k(dirichlet, overlap=overlap)
            keep(scores, (name, f"overlap {overlap}"), coverage(found, splits.test.y, dirichlet))
        chain = with_the_next(dirichlet)
        keep(
            scores, (name, "overlap 0.05 with the next"), coverage(chain, splits.test.y, dirichlet)
        )


def with_the_next(dirichlet: PredictiveDirichlet, overlap: float = 0.05) -> TopK:
    """The sets of the paper's text: classes as long as each overlaps with the one before it."""
    whole = top_k(dirichlet)
    alpha = dirichlet.concentration.double().gather(1, whole.ranking)
    rest = alpha.sum(-1, keepdim=True) - alpha
    pairs = (alpha[:, :-1], rest[:, :-1], alpha[:, 1:], rest[:, 1:])
    shared = torch.from_numpy(_shared_area(*(t.numpy() for t in pairs)))
    size = 1 + (shared > overlap).long().cumprod(-1).sum(-1)
    return replace(whole, k=size)


def coverage(found: TopK, y: Tensor, dirichlet: PredictiveDirichlet) -> dict[str, float]:
    """Of the sets, and of three rules that know the mean alone, at the same mean size."""
    one, two = found.fixed(y, 1), found.fixed(y, 2)
    probs, size = dirichlet.mean, found.mean_k
    ratio = probs / probs.amax(-1, keepdim=True)
    # As many classes in all, those whose probability is nearest to the largest one of their input.
    count = max(1, round(size * len(y)))
    smallest = ratio.flatten().topk(count).values[-1]
    near = (ratio >= smallest).gather(1, y.unsqueeze(1)).double().mean().item()
    # A coin that chooses between top-1 and top-2; no number for sets that are larger.
    coin = {"coin, same mean k": one + (size - 1) * (two - one)} if size <= 2 else {}
    return {
        "mean k": size,
        "coverage": found.coverage(y),
        "top-1": one,
        "top-2": two,
        "probability ratio, same mean k": near,
        **coin,
    }


def methods(seed: int, splits: Digits, scores: Scores, *, quick: bool) -> None:
    """How far closed forms are from the draws of the same Gaussian over logits."""
    pyro.set_rng_seed(seed)
    x, y = splits.train
    network = fit_network(perceptron((64, 64, 10)), x, y, epochs=20 if quick else 100)
    fits: dict[str, NetworkLaplace] = {
        "last layer, full, mode found anew": with_trunk(*last_layer_laplace(network, x, y))
    }
    if importlib.util.find_spec("laplace") is not None:
        for subset, structure in CURVATURES:
            fits[f"{subset.replace('_', ' ')}, {structure}, laplace-torch"] = network_laplace(
                network,
                x,
                y,
                subset=subset,
                structure=structure,
                prior_precision="marginal likelihood",
            )
    for name, fit in fits.items():
        one_fit(name, fit, splits, scores)


def one_fit(name: str, fit: NetworkLaplace, splits: Digits, scores: Scores) -> None:
    x, y = splits.test.x[:JUDGED], splits.test.y[:JUDGED]
    mean, covariance = fit.logits(x)
    target, other = fit.probs(x, 2 * DRAWS).split(DRAWS)
    matched = other.mean(0) * concentration(other).clamp(1e-2, 1e8).unsqueeze(-1)
    answers = {
        "bridge": laplace_bridge(mean, covariance),
        "normalised bridge": laplace_bridge(mean, covariance, normalize=True),
        f"moments of {DRAWS} draws": matched,
    }
    known = {"variance of a logit": covariance.diagonal(dim1=1, dim2=2).mean().item()}
    for answer, alpha in answers.items():
        dirichlet = PredictiveDirichlet.from_alpha(alpha)
        distance = energy_distance(target, dirichlet.sample((DRAWS,))).mean().item()
        judged = {**mean_scores(target.mean(0), dirichlet.mean, y), "energy distance": distance}
        keep(scores, (name, answer), {**known, **judged})
    judged = mean_scores(target.mean(0), probit_predictive(mean, covariance), y)
    keep(scores, (name, "probit (a mean alone)"), {**known, **judged})
    distance = energy_distance(target, other).mean().item()
    judged = {**mean_scores(target.mean(0), other.mean(0), y), "energy distance": distance}
    keep(scores, (name, f"{DRAWS} other draws"), {**known, **judged})


def mean_scores(target: Tensor, probs: Tensor, y: Tensor) -> dict[str, float]:
    chosen = probs.gather(1, y.unsqueeze(1)).clamp_min(1e-30)
    return {
        "accuracy": (probs.argmax(-1) == y).double().mean().item(),
        "NLL": -chosen.log().mean().item(),
        "KL of the mean": kl_divergence(target, probs.clamp_min(1e-30)).mean().item(),
    }


def keep(scores: Scores, key: tuple, values: dict[str, float]) -> None:
    for name, value in values.items():
        scores.setdefault(key, {}).setdefault(name, []).append(value)


def rows(scores: Scores, names: tuple[str, ...]) -> list[dict]:
    """Mean and deviation over seeds, of what all seeds have."""
    out = []
    for key, found in scores.items():
        seeds = max(map(len, found.values()))
        whole = {name: spread(values) for name, values in found.items() if len(values) == seeds}
        out.append({**dict(zip(names, key, strict=True)), **whole})
    return out


if __name__ == "__main__":
    main()
