"""Polya-Gamma Gibbs sampling against quadrature and NUTS.

python -m benchmarks.polya_gamma

NUTS runs with jit_compile=True, its fastest setting here and the one of the README; its time
includes warm-up and compilation, as that of the Polya-Gamma sampler includes its own warm-up. Both
start at draws from the prior, and chains run one after another on one thread; seconds are of
processor time, which other programs on the machine disturb less.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import pyro
import torch
from pyro.infer import MCMC, NUTS
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from pyro.ops.stats import effective_sample_size, split_gelman_rubin
from torch import Tensor

from benchmarks.results import parser, say, write
from pyro_opu import datasets
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.samplers.polya_gamma import PolyaGammaGibbs

Sizes = dict[str, tuple[int, int]]
#: (draws, warm-up) of each chain.
SMALL: Sizes = {"Polya-Gamma": (2000, 200), "NUTS": (1000, 300)}
LARGE: dict[str, Sizes] = {
    "pima": {"Polya-Gamma": (2000, 200), "NUTS": (1000, 300)},
    "spambase": {"Polya-Gamma": (4000, 500), "NUTS": (400, 300)},
}
QUICK: Sizes = {"Polya-Gamma": (20, 5), "NUTS": (8, 5)}


def main() -> None:
    options = parser("Polya-Gamma Gibbs sampling against quadrature and NUTS.")
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=FutureWarning)  # of torch about its own jit
    tables = {"Two weights, 4 chains": two_weights(args.seed, QUICK if args.quick else SMALL)}
    say(tables)
    tables["Efficiency, 2 chains"] = []
    for data in ("pima", "spambase"):
        tables["Efficiency, 2 chains"] += efficiency(
            data, args.seed, QUICK if args.quick else LARGE[data]
        )
        say({data: tables["Efficiency, 2 chains"]})
    if not args.quick:
        sizes = {"draws and warm-up, two weights": SMALL, "draws and warm-up": LARGE}
        write("polya_gamma", "python -m benchmarks.polya_gamma", {**vars(args), **sizes}, tables)


def nuts(model: Callable) -> MCMCKernel:
    return NUTS(model, jit_compile=True, ignore_jit_warnings=True)


KERNELS = {"Polya-Gamma": PolyaGammaGibbs, "NUTS": nuts}


def sampled(
    kernel: Callable[..., MCMCKernel], size: tuple[int, int], chains: int, x: Tensor, y: Tensor
) -> tuple[Tensor, float]:
    """Draws of weights and bias (chains, draws, D + 1), and seconds of processor time."""
    draws, warmup = size
    parts = []
    start = time.process_time()
    for _ in range(chains):  # one by one on any machine: MCMC would use processes where it can
        mcmc = MCMC(kernel(logistic_regression(2)), draws, warmup, disable_progbar=True)
        mcmc.run(x, y)
        found = mcmc.get_samples()
        parts.append(torch.cat([found["weight"].squeeze(-1), found["bias"]], 1).double())
    return torch.stack(parts), time.process_time() - start


def two_weights(seed: int, sizes: Sizes) -> list[dict]:
    """One feature and a bias, 40 rows: a posterior that a grid integrates."""
    pyro.set_rng_seed(seed)
    x = torch.randn(40, 1)
    y = torch.bernoulli(torch.sigmoid(1.0 + 2.0 * x[:, 0]))
    line = torch.linspace(-8.0, 8.0, 801, dtype=torch.float64)
    w, b = (g.flatten() for g in torch.meshgrid(line, line, indexing="ij"))
    log_joint = -(w**2 + b**2) / 2
    for value, label in zip(x[:, 0].double(), y.double(), strict=True):
        log_joint += torch.nn.functional.logsigmoid((2 * label - 1) * (w * value + b))
    weights = log_joint.softmax(0)
    means = [(weights * site).sum().item() for site in (w, b)]
    rows = [
        {"way": "quadrature", "weight": name, "mean": mean,
         "sd": (weights * (site - mean) ** 2).sum().sqrt().item()}
        for name, site, mean in zip(("w", "b"), (w, b), means, strict=True)
    ]  # fmt: skip
    for way, kernel in KERNELS.items():
        pyro.set_rng_seed(seed)
        draws, seconds = sampled(kernel, sizes[way], 4, x, y)
        size, r_hat = effective_sample_size(draws), split_gelman_rubin(draws)
        for i, name in enumerate(("w", "b")):
            mean, sd = draws[..., i].mean().item(), draws[..., i].std().item()
            error = sd / size[i].item() ** 0.5
            rows.append(
                {
                    "way": way, "weight": name, "mean": mean, "sd": sd, "MCSE": error,
                    "off by, in MCSE": (mean - means[i]) / error, "ESS": size[i].item(),
                    "R-hat": r_hat[i].item(), "seconds": seconds,
                }
            )  # fmt: skip
    return rows


def efficiency(data: str, seed: int, sizes: Sizes) -> list[dict]:
    """Effective draws per second on all rows of a data set, standardised, with a bias."""
    (whole,) = datasets.standardize(getattr(datasets, data)())
    rows = []
    for way, kernel in KERNELS.items():
        pyro.set_rng_seed(seed)
        draws, seconds = sampled(kernel, sizes[way], 2, whole.x, whole.y.float())
        size, r_hat = bulk_ess(draws), split_gelman_rubin(draws)
        probs = torch.sigmoid(draws[..., :-1] @ whole.x[:200].double().T + draws[..., -1:])
        rows.append(
            {
                "data": data, "way": way, "draws": draws.shape[1], "seconds": seconds,
                "ESS, least": size.min().item(), "ESS, median": size.median().item(),
                "least per second": size.min().item() / seconds,
                "median per second": size.median().item() / seconds,
                "ESS of probabilities, median": bulk_ess(probs).median().item(),
                "R-hat, largest": r_hat.max().item(),
                "weights with R-hat > 1.05": f"{int((r_hat > 1.05).sum())} of {len(r_hat)}",
            }
        )  # fmt: skip
    ours, theirs = rows
    for part in ("least", "median"):
        ours[f"{part}, ratio to NUTS"] = ours[f"{part} per second"] / theirs[f"{part} per second"]
    return rows


def bulk_ess(draws: Tensor) -> Tensor:
    """Rank-normalised split ESS (Vehtari et al. 2021) of (chains, draws, P), by Pyro's ESS."""
    half = draws.shape[1] // 2
    split = torch.cat([draws[:, :half], draws[:, -half:]])
    order = split.flatten(0, 1).argsort(0).argsort(0).double() + 1
    normal = torch.special.ndtri((order - 0.375) / (len(order) + 0.25))
    return effective_sample_size(normal.reshape(split.shape))


if __name__ == "__main__":
    main()
