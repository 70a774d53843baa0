"""The Laplace bridge: against sampling, its speed, and top-k sets made from its Dirichlet.

python -m papers.laplace_bridge

Hobbhahn, Kristiadi and Hennig 2020 make uncertainty-aware top-k sets of ImageNet's classes; here
they are of digits, a network trained on 100 rows. "Probability ratio" is a rule that knows the
mean alone, at the same mean size of the sets. The comparison with sampling is on digits too, for
curvatures of laplace-torch (left out where it is not installed). Nothing is chosen on test rows.

Misses. At the same mean size, a cut by the probability ratio covers as much as the sets of the
overlapping marginals, or more. Away from the Gaussians that Dirichlets map to, the bridge is
further from sampling than the Dirichlet of the same mean and variance.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyro
import torch
from pyro.infer import Predictive
from torch import Tensor, nn

from papers.digits import Digits, digits
from papers.laplace_answers import fitted
from papers.results import Tables, over_seeds, parser, record_seeds, say
from pyro_opu import as_teacher, inverse_laplace_bridge, laplace_bridge, probit_predictive
from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.metrics.distances import energy_distance, kl_divergence
from pyro_opu.metrics.top_k import TopK, _shared_area, top_k
from pyro_opu.models.laplace import Laplace
from pyro_opu.models.laplace_network import NetworkLaplace
from pyro_opu.models.last_layer import last_layer_laplace, on_features
from pyro_opu.models.logistic_regression import logistic_regression
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
    ("last_layer", "diag"),
    ("all", "kron"),
)


@dataclass(frozen=True)
class LastLayer:
    """The library's own Laplace approximation of a last layer, as a function of the inputs."""

    trunk: nn.Module
    fit: Laplace

    def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.fit.logits(self.trunk(x))

    def probs(self, x: Tensor, num_draws: int) -> Tensor:
        model = on_features(self.trunk, logistic_regression(len(self.fit.bias)))
        return as_teacher(Predictive(model, guide=self.fit.guide, num_samples=1)).probs(
            x, num_draws
        )


def main() -> None:
    options = parser(__doc__, seeds=5)
    options.add_argument("--draws", type=int, default=10**6, help="for the sanity check")
    args = options.parse_args()
    if args.quick:
        args.seeds, args.draws = 1, 10**4
    torch.set_num_threads(1)
    fixed = {
        "Three classes, KL(softmax of the Gaussian || Dirichlet)": sanity(args.draws),
        "Conversion time, diagonal covariance": conversion(2_000 if args.quick else 100_000),
    }
    say(fixed)
    found = {"Top-k": ("Dirichlet", "sets"), "Against sampling": ("normal weights", "answer")}

    def tables(rows: Tables) -> Tables:
        return fixed | {title: over_seeds(rows[title], by) for title, by in found.items()}

    record_seeds(__file__, args, of_seed, tables)


def of_seed(seed: int, args) -> Tables:
    """Both tables of one split of the digits."""
    splits = digits(seed)
    return {"Top-k": sets(seed, splits), "Against sampling": methods(seed, splits, args.quick)}


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
    """Seconds of processor time for all inputs, the median of five runs; float32."""
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
    found = []
    for name, call in calls.items():
        call()  # warms up
        row = {"call": name, "inputs x classes": f"{inputs} x {classes}"}
        found.append({**row, "CPU s": statistics.median(seconds(call) for _ in range(5))})
    return found


def seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def sets(seed: int, splits: Digits) -> list[dict]:
    """Coverage and mean size of uncertainty-aware sets, beside fixed sizes and simple rules."""
    pyro.set_rng_seed(seed)
    x, y = splits.train.x[:FEW], splits.train.y[:FEW]
    network = fit_network(perceptron((64, 32, 10)), x, y)
    fit = LastLayer(*last_layer_laplace(network, x, y))
    mean, covariance = fit.logits(splits.test.x)
    probs = fit.probs(splits.test.x, 500)
    matched = probs.mean(0) * concentration(probs).clamp(1e-2, 1e6).unsqueeze(-1)
    rows = []
    for name, alpha in (
        ("bridge", laplace_bridge(mean, covariance)),
        ("normalised bridge", laplace_bridge(mean, covariance, normalize=True)),
        ("moments of 500 draws", matched),
    ):
        dirichlet = PredictiveDirichlet.from_alpha(alpha)
        found = {f"overlap {each}": top_k(dirichlet, overlap=each) for each in OVERLAPS}
        found["overlap 0.05 with the next"] = with_the_next(dirichlet)
        for rule, each in found.items():
            same = {"Dirichlet": name, "sets": rule}
            rows.append(same | coverage(each, splits.test.y, dirichlet))
    return rows


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
    """Of the sets, and of rules that know the mean alone."""
    one, two = found.fixed(y, 1), found.fixed(y, 2)
    probs, size = dirichlet.mean, found.mean_k
    ratio = probs / probs.amax(-1, keepdim=True)
    # As many classes in all, those whose probability is nearest to the largest one of their input.
    count = max(1, round(size * len(y)))
    smallest = ratio.flatten().topk(count).values[-1]
    near = (ratio >= smallest).gather(1, y.unsqueeze(1)).double().mean().item()
    return {
        "mean k": size,
        "coverage": found.coverage(y),
        "top-1": one,
        "top-2": two,
        "probability ratio, same mean k": near,
    }


def methods(seed: int, splits: Digits, quick: bool) -> list[dict]:
    """How far closed forms are from the draws of the same Gaussian over logits."""
    pyro.set_rng_seed(seed)
    x, y = splits.train
    network = fit_network(perceptron((64, 64, 10)), x, y, epochs=2 if quick else 100)
    fits: dict[str, LastLayer | NetworkLaplace] = {
        "last layer, full, mode found anew": LastLayer(*last_layer_laplace(network, x, y))
    }
    if importlib.util.find_spec("laplace") is not None:
        for subset, structure in CURVATURES:
            name = f"{subset.replace('_', ' ')}, {structure}, laplace-torch"
            fits[name] = fitted(network, x, y, subset, structure)
    return [
        {"normal weights": name, "answer": answer, **row}
        for name, fit in fits.items()
        for answer, row in one_fit(fit, splits).items()
    ]


def one_fit(fit: LastLayer | NetworkLaplace, splits: Digits) -> dict[str, dict[str, float]]:
    x, y = splits.test.x[:JUDGED], splits.test.y[:JUDGED]
    mean, covariance = fit.logits(x)
    target, other = fit.probs(x, 2 * DRAWS).split(DRAWS)
    matched = other.mean(0) * concentration(other).clamp(1e-2, 1e8).unsqueeze(-1)
    answers = {
        "bridge": laplace_bridge(mean, covariance),
        "normalised bridge": laplace_bridge(mean, covariance, normalize=True),
        f"moments of {DRAWS} draws": matched,
    }
    found = {}
    for answer, alpha in answers.items():
        dirichlet = PredictiveDirichlet.from_alpha(alpha)
        distance = energy_distance(target, dirichlet.sample((DRAWS,))).mean().item()
        found[answer] = mean_scores(target.mean(0), dirichlet.mean, y)
        found[answer]["energy distance"] = distance
    probit = probit_predictive(mean, covariance)
    found["probit (a mean alone)"] = mean_scores(target.mean(0), probit, y)
    found[f"{DRAWS} other draws"] = mean_scores(target.mean(0), other.mean(0), y)
    found[f"{DRAWS} other draws"]["energy distance"] = energy_distance(target, other).mean().item()
    return found


def mean_scores(target: Tensor, probs: Tensor, y: Tensor) -> dict[str, float]:
    chosen = probs.gather(1, y.unsqueeze(1)).clamp_min(1e-30)
    return {
        "accuracy": (probs.argmax(-1) == y).double().mean().item(),
        "NLL": -chosen.log().mean().item(),
        "KL of the mean": kl_divergence(target, probs.clamp_min(1e-30)).mean().item(),
    }


if __name__ == "__main__":
    main()
