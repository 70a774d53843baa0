"""The same task in several libraries: the blocks of docs/which_tool.md, timed and judged.

python -m benchmarks.tools

Each block of the page after the task defines ``answer(x)``. Lines are those of the block; set-up
(with the first answer) and calls are CPU times of one thread. The judge is the posterior's mean
and mutual information by 4,000 draws of another run, and another sampler, NumPyro's NUTS: the mean
of n independent draws has a KL of V / 2n, which says how many have a mean that errs as much.
"""

from __future__ import annotations

import argparse
import re
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.exact import medians
from papers.results import say

PAGE = Path(__file__).parents[1] / "docs" / "which_tool.md"
BLOCK = re.compile(r"## ([^\n]*)\n+```python\n(.*?)```", re.DOTALL)


def blocks() -> tuple[str, dict[str, str]]:
    """The task, and each tool's code by its heading."""
    tools = dict(BLOCK.findall(PAGE.read_text()))
    return tools.pop("The task"), tools


def many_draws(x: Tensor, y: Tensor, new: Tensor, draws: int) -> Tensor:
    """Class probabilities ``(S, N, 2)`` of independent draws, by NumPyro's NUTS."""
    import jax
    import numpyro
    from numpyro import distributions as dist
    from numpyro.infer import MCMC, NUTS

    def model(x: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(jax.numpy.zeros((30, 2)), 1.0).to_event(2))
        b = numpyro.sample("b", dist.Normal(jax.numpy.zeros(2), 1.0).to_event(1))
        numpyro.sample("obs", dist.Categorical(logits=x @ w + b), obs=y)

    mcmc = MCMC(NUTS(model), num_warmup=500, num_samples=4 * draws, thinning=4, progress_bar=False)
    mcmc.run(jax.random.key(1), x.numpy(), y.numpy())
    w, b = (torch.from_dlpack(mcmc.get_samples()[name]) for name in ("w", "b"))
    return (new @ w + b[:, None]).softmax(-1)


def lines(code: str) -> int:
    """Lines of code, without empty ones."""
    return sum(bool(line.strip()) for line in code.splitlines())


def judged(mean: Tensor, epistemic: Tensor | None, draws: Tensor) -> tuple[float, float]:
    """``(draws whose mean errs as much, median factor of the mutual information)``."""
    p, size = draws.double(), len(draws)
    truth = p.mean(0)
    kl = (truth * (truth / mean.double().clamp_min(1e-12)).log()).sum(-1).mean()
    half = (p.var(0) / truth).sum(-1).mean() / 2  # KL of the mean of n draws: half / n
    near = half / (kl - half / size).clamp_min(1e-12)
    if epistemic is None:
        return float(near), float("nan")
    right = torch.special.entr(truth).sum(-1) - torch.special.entr(p).sum(-1).mean(0)
    ratio = (epistemic.double().clamp_min(1e-12) / right).log().abs().median().exp()
    return float(near), float(ratio)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few draws and little time")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    task, tools = blocks()
    names: dict[str, Any] = {}
    few = "20, 10, disable_progbar=True"
    whole = "500, 200, disable_progbar=True"
    exec(task.replace("num_samples=500, warmup_steps=200", few if quick else whole), names)
    draws = many_draws(names["train"], names["labels"], names["new"], 50 if quick else 4000)
    thousand = names["new"][torch.arange(1000) % len(names["new"])]
    rows = []
    for name, code in tools.items():
        begun = time.process_time()
        try:
            exec(code.replace("rows)", "rows, progress=False)"), names)
        except ImportError as error:
            print(f"{name} is left out: {error}")
            continue
        answer = names["answer"]
        near, factor = judged(*answer(names["new"]), draws)
        spent = time.process_time() - begun
        ways = {f"N = {len(x):,}, ms": partial(answer, x) for x in (thousand[:1], thousand)}
        times = medians(ways, 0.1 if quick else 6.0)
        row = {"tool": name, "lines": lines(code), "set up, s": spent, **times}
        rows.append(row | {"as near as draws": near, "factor": factor})
    say({"tools": rows})


if __name__ == "__main__":
    main()
