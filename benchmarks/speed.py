"""Milliseconds of one pass beside every other way to the same answer.

python -m benchmarks.speed
python -m benchmarks.speed --networks   one pass over the plug-in's, of networks with dropout

S = 500 draws; an MLP 784-400-400-10, a logistic regression of two classes with 57 features, and two
convolutions for images of 28 x 28. Weights are random, of a size at which activations neither die
nor explode: no time depends on what they were inferred from. The student is the one that `distill`
makes by default, after one step. Everything is timed in one process on two threads, the ways of a
point in turn, passes before calls that draw: medians. Where all draws would take longer than a
bound, a part of them is timed and scaled.

- "drop-in call": the student's S labels, as `Predictive` gives them; "captured": a compiled pass.
- "Predictive, parallel": with samples shaped `(S, 1, D)`. As `MCMC` gives them they meet the axis
  of the data, an error, or silently wrong where S = N. A convolution takes no axis of draws.
- "batched": `as_teacher(predictive).probs`, all class probabilities of all draws.
- "NumPyro": its `Predictive` in one `jax.jit`; "parallel" all draws at once.
- "laplace-torch": the last layer by its defaults (Kronecker), at the plug-in network.

`--networks` takes an MLP, a small convolution, and networks of 3 x 32 x 32 images with dropout
before their heads, on one thread at N = 100 and 1,000: the least of many times in turn.

With `--write` the picture `speed.png` shows the times over N.
"""

from __future__ import annotations

import importlib.util
import math
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Predictive
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pyro_opu
from benchmarks import board_posteriors
from papers.results import finish, parser, say
from papers.timing import timed
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.neural_network import bayesian_network, convolutional_network, perceptron

Call = Callable[[], object]
SIZES, FEATURES, IMAGE = (784, 400, 400, 10), 57, (28, 28)
DRAWS, ROWS = 500, (1, 1000)
#: Inputs of the picture, and the ways that it shows.
SWEEP = (1, 10, 100, 1000, 10_000)
SHOWN = ("Predictive", "batched", "drop-in call", "one pass", "plug-in")
#: Largest number of weights with a Jacobian that laplace-torch holds for all inputs at once.
JACOBIAN = 2**26


def perceptron_model(x: Tensor, y: Tensor | None = None) -> Tensor:
    """A network of linear layers and ReLU with a normal prior on every weight."""
    rows = len(x)
    for layer, (before, after) in enumerate(pairwise(SIZES)):
        prior = dist.Normal(x.new_zeros(before, after), 1.0).to_event(2)
        weight = pyro.sample(f"w{layer}", prior)
        bias = pyro.sample(f"b{layer}", dist.Normal(x.new_zeros(after), 1.0).to_event(1))
        x = (x.relu() if layer else x) @ weight + bias
    with pyro.plate("data", rows):
        return pyro.sample("obs", dist.Categorical(logits=x), obs=y)


class Subject(NamedTuple):
    """A model, its plug-in network, and the shape of an input."""

    name: str
    model: Callable[..., Any]
    plug_in: nn.Module
    shape: tuple[int, ...]
    classes: int = 10
    parallel: bool = True


def subject(name: str, classes: int = 10) -> Subject:
    """One of three; the regression for any number of classes."""
    if name == "mlp":
        return Subject("MLP 784-400-400-10", perceptron_model, perceptron(SIZES), SIZES[:1])
    if name == "convolution":
        network = convolutional_network(IMAGE, 10)
        return Subject(
            "two convolutions, 28 x 28", bayesian_network(network), network, IMAGE, parallel=False
        )
    model, plug_in = logistic_regression(classes), nn.Linear(FEATURES, classes)
    return Subject("logistic regression, 57 features", model, plug_in, (FEATURES,), classes)


class Kit:
    """A subject with S posterior draws and its default student, on a device."""

    def __init__(self, of: Subject, draws: int = DRAWS, device: str = "cpu") -> None:
        torch.manual_seed(0)
        self.of, self.draws, self.device = of, draws, torch.device(device)
        self.plug_in = of.plug_in.requires_grad_(False).to(self.device)
        trace = pyro.poutine.trace(of.model).get_trace(self.inputs(2))
        sites = {k: v["value"] for k, v in trace.nodes.items() if v["type"] == "sample"}
        latents = [name for name in trace.stochastic_nodes if name not in ("obs", "data")]
        self.samples = {name: weights((draws, *sites[name].shape), device) for name in latents}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one step does not teach
            self.fast = pyro_opu.distill(
                self.predictive(32), self.inputs(256), num_steps=1, seed=0, progress=False
            )
        self.fast.guide.read_as("sticks")  # as it is of posteriors of networks
        self.fast.num_samples = draws

    def inputs(self, rows: int) -> Tensor:
        return torch.randn(rows, *self.of.shape, device=self.device)

    def some(self, draws: int) -> dict[str, Tensor]:
        return {name: value[:draws] for name, value in self.samples.items()}

    def predictive(self, draws: int) -> Predictive:
        return Predictive(self.of.model, self.some(draws))

    def parallel(self, draws: int) -> Predictive:
        lined_up = {k: v.unsqueeze(1) if v.dim() == 2 else v for k, v in self.some(draws).items()}
        return Predictive(self.of.model, lined_up, parallel=True)


def weights(shape: tuple[int, ...], device: str | torch.device = "cpu") -> Tensor:
    """Draws ``(S, ...)``: zeros for vectors, which are biases, else normal and not too wide."""
    if len(shape) == 2:
        return torch.zeros(shape, device=device)
    return torch.randn(shape, device=device).div_(shape[1] ** 0.5)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--budget", type=float, default=4.0, help="seconds of quick calls")
    options.add_argument("--networks", action="store_true")
    args = options.parse_args()
    if args.networks:
        over_plug_in(3 if args.quick else 100)
        return
    torch.set_num_threads(2)
    draws, rows, bound = (10, (20,), 0.01) if args.quick else (DRAWS, ROWS, 30.0)
    budget = 0.01 if args.quick else args.budget
    times: dict[str, dict[str, float]] = {}
    curves: dict[str, dict[int, dict[str, float]]] = {}
    subjects = (("mlp", 10), ("logistic", 2), ("convolution", 10))
    for name, classes in subjects[1:2] if args.quick else subjects:
        kit = Kit(subject(name, classes), draws)
        for count in rows:
            found = point(kit, kit.inputs(count), budget, bound)
            say({f"{kit.of.name}, N = {count}": [{k: 1e3 * v for k, v in found.items()}]})
            times[f"{kit.of.name}, N = {count}"] = found
        if args.write and not args.quick:
            curves[kit.of.name] = {
                count: point(kit, kit.inputs(count), budget / 4, bound / 30, SHOWN)
                for count in SWEEP
            }
    ways = list(dict.fromkeys(way for found in times.values() for way in found))
    tables = {
        title: [
            {"way": way, **{at: scale(found, way) for at, found in times.items() if way in found}}
            for way in ways
        ]
        for title, scale in (
            ("Milliseconds", lambda found, way: 1e3 * found[way]),
            ("Times one pass", lambda found, way: found[way] / found["one pass"]),
        )
    }
    if curves:
        draw(Path(__file__).parent / "results" / "speed.png", curves)
    finish(__file__, args, tables, draws=draws)


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Networks with dropout before their head, of random weights, and the shape of an input."""
    from torchvision import models

    found: dict[str, tuple[nn.Module, tuple[int, ...]]] = {}
    layers: list[nn.Module] = []
    for before, after in pairwise((64, 256, 256)):
        layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(0.2)]
    found["MLP 64-256-256-10"] = nn.Sequential(*layers, nn.Linear(256, 10)), (64,)
    found["two convolutions, 8 x 8"] = board_posteriors.convolutions(), (8, 8)
    for name, sizes in (
        ("resnet18", {}),
        ("mobilenet_v3_small", {}),
        ("vit_b_32", {"image_size": 32}),
    ):
        network = models.get_model(name, num_classes=10, **sizes)
        if name == "resnet18":
            network.fc = nn.Sequential(nn.Dropout(0.2), network.fc)
        if name == "vit_b_32":
            nn.init.xavier_normal_(network.heads.head.weight)  # which is zero
            network.heads = nn.Sequential(nn.Dropout(0.2), network.heads)
        with torch.no_grad():
            for _ in range(20):  # so that running statistics are those of such images
                network.train()(torch.randn(64, 3, 32, 32))
        found[name] = network, (3, 32, 32)
    return found


def over_plug_in(times: int) -> None:
    """Print the least times of a student's pass and of its plug-in's, and their ratio."""
    torch.set_num_threads(1)
    for name, (network, shape) in networks().items():
        torch.manual_seed(0)
        network.eval()
        fast = pyro_opu.distill(network, torch.randn(256, *shape), num_steps=1, progress=False)
        for rows in (100, 1000):
            x, least = torch.randn(rows, *shape), {"pass": math.inf, "plug-in": math.inf}
            began = time.perf_counter()
            with torch.no_grad():
                for turn in range(times):
                    if turn > 2 and time.perf_counter() - began > 12:
                        break
                    for way, call in (("pass", fast.distribution), ("plug-in", network)):
                        start = time.perf_counter()
                        call(x)
                        least[way] = min(least[way], time.perf_counter() - start)
            one, other = least["pass"], least["plug-in"]
            print(
                f"{name:26}{rows:>6,} rows: {1e3 * one:9.3f} ms over {1e3 * other:9.3f} ms, "
                f"{one / other:.2f}; begins as {fast.report['start']}",
                flush=True,
            )


def point(
    kit: Kit, x: Tensor, budget: float, bound: float, shown: tuple[str, ...] | None = None
) -> dict[str, float]:
    """Seconds of every way at these inputs.

    In turn with calls a hundred times as long, which empty the caches, a pass takes twice its time.
    """
    found: dict[str, float] = {}
    with torch.no_grad():
        for ways in quick_ways(kit, x, shown):
            found |= timed(ways, budget)
        for name, make in slow_ways(kit, x).items():
            if shown is None or name in shown:
                found[name] = scaled(make, kit.draws, bound)
    return found


def quick_ways(kit: Kit, x: Tensor, shown: tuple[str, ...] | None = None) -> list[dict[str, Call]]:
    """Passes, drop-in calls, and laplace-torch."""
    plug_in, fast = kit.plug_in, kit.fast
    passes: dict[str, Call] = {
        "plug-in": lambda: plug_in(x).softmax(-1),
        "one pass": lambda: fast.dirichlet(x).concentration,
    }
    if shown is not None:
        return [passes, {"drop-in call": lambda: fast(x)}]
    captured = fast.capture(x)
    passes["one pass, captured"] = lambda: captured(x).concentration
    found = [passes, {"drop-in call": lambda: fast(x)}]
    last = [layer for layer in plug_in.modules() if isinstance(layer, nn.Linear)][-1]
    numbers = len(x) * kit.of.classes * (last.weight.numel() + kit.of.classes)
    if not absent("laplace") and numbers <= JACOBIAN:
        train = kit.inputs(512), torch.arange(512) % kit.of.classes
        # The library wants more than one layer.
        found.append(laplace_ways(nn.Sequential(nn.Identity(), plug_in), train, x, kit.draws))
        plug_in.requires_grad_(False)
    return found


def slow_ways(kit: Kit, x: Tensor) -> dict[str, Callable[[int], Call]]:
    """What costs as many runs of the model as there are draws: number of draws -> call."""

    def call(source: Any) -> Call:
        return lambda: source(x)

    ways: dict[str, Callable[[int], Call]] = {
        "Predictive": lambda n: call(kit.predictive(n)),
        "batched": lambda n: call(pyro_opu.as_teacher(kit.predictive(n)).probs),
    }
    if kit.of.parallel:
        ways["Predictive, parallel"] = lambda n: call(kit.parallel(n))
    if not absent("numpyro"):
        jitted = JittedPredictive(kit)
        ways["NumPyro"] = lambda n: jitted.call(x, n, parallel=False)
        ways["NumPyro, parallel"] = lambda n: jitted.call(x, n, parallel=True)
    return ways


def scaled(make: Callable[[int], Call], draws: int, bound: float) -> float:
    """Seconds of a call with all draws, timed with as many as take about ``bound`` seconds."""
    count = min(2, draws)
    while True:
        call = make(count)
        call()
        start = time.perf_counter()
        call()
        taken = time.perf_counter() - start
        if count == draws or taken > bound / 2:
            return timed({"": call}, 0.0)[""] * draws / count
        count = min(draws, int(count * max(2.0, bound / taken)))


def absent(package: str) -> bool:
    return importlib.util.find_spec(package) is None


class JittedPredictive:
    """NumPyro's ``Predictive`` of the model of a kit, compiled by ``jax.jit`` as a whole.

    The draws are an argument of the compiled function: as constants they would be part of it.
    """

    def __init__(self, kit: Kit) -> None:
        import jax

        self.jax, self.logits = jax, jax_logits(kit.of.name)
        self.samples = {k: jax.numpy.asarray(v.cpu().numpy()) for k, v in kit.samples.items()}

    def model(self, x: Any) -> None:
        import numpyro
        import numpyro.distributions as dist

        theta = {}
        for name, value in self.samples.items():
            prior = dist.Normal(0.0, 1.0).expand(value.shape[1:]).to_event(value.ndim - 1)
            theta[name] = numpyro.sample(name, prior)
        logits = self.logits(theta, x)
        with numpyro.plate("data", len(x)):
            binary = logits.shape[-1] == 1
            law = dist.Bernoulli(logits=logits[:, 0]) if binary else dist.Categorical(logits=logits)
            numpyro.sample("obs", law)

    def call(self, x: Tensor, draws: int, *, parallel: bool) -> Call:
        """The labels of so many draws at ``x``, and the wait for them."""
        from numpyro.infer import Predictive

        def labels(key: Any, some: dict[str, Any], x: Any) -> Any:
            return Predictive(self.model, some, parallel=parallel)(key, x)["obs"]

        run, key = self.jax.jit(labels), self.jax.random.key(0)
        some = {name: value[:draws] for name, value in self.samples.items()}
        inputs = self.jax.numpy.asarray(x.cpu().numpy())
        return lambda: run(key, some, inputs).block_until_ready()


def jax_logits(name: str) -> Callable[[dict[str, Any], Any], Any]:
    """The network of a subject: latents and inputs to logits ``(N, K)``."""
    from jax import lax, nn

    def mlp(theta: dict[str, Any], x: Any) -> Any:
        for layer in range(3):
            x = (nn.relu(x) if layer else x) @ theta[f"w{layer}"] + theta[f"b{layer}"]
        return x

    def regression(theta: dict[str, Any], x: Any) -> Any:
        return x @ theta["weight"] + theta["bias"]

    def convolution(theta: dict[str, Any], x: Any) -> Any:
        x = x[:, None]
        for layer in ("1", "4"):
            x = lax.conv(x, theta[f"{layer}.weight"], (1, 1), "SAME")
            x = nn.relu(x + theta[f"{layer}.bias"][:, None, None])
            x = lax.reduce_window(x, -float("inf"), lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        return x.reshape(len(x), -1) @ theta["8.weight"].T + theta["8.bias"]

    return {"MLP": mlp, "log": regression, "two": convolution}[name[:3]]


def laplace_ways(
    network: nn.Module, train: tuple[Tensor, Tensor], x: Tensor, draws: int
) -> dict[str, Call]:
    """laplace-torch's predictive of the last layer by its defaults, in three ways."""
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")  # of its parts, about each other
        from laplace import Laplace

        network.requires_grad_(True)
        fit: Any = Laplace(network, "classification", subset_of_weights="last_layer")
        fit.fit(DataLoader(TensorDataset(*train), 256))

    def way(link: str) -> Call:
        more = {"n_samples": draws} if link == "mc" else {}

        @torch.enable_grad()
        def call() -> object:
            return fit(x, pred_type="glm", link_approx=link, **more)

        return call

    return {f"laplace-torch, {link}": way(link) for link in ("probit", "bridge", "mc")}


def draw(path: Path, curves: dict[str, dict[int, dict[str, float]]]) -> None:
    """Milliseconds over N, a panel for every model."""
    from matplotlib.figure import Figure

    from pyro_opu.plots.colours import BLACK, SERIES

    figure = Figure(figsize=(4.3 * len(curves), 4.2), layout="constrained")
    panels = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    for panel, (name, found) in zip(panels, curves.items(), strict=True):
        for place, way in enumerate(SHOWN):
            points = [(count, 1e3 * times[way]) for count, times in found.items()]
            colour = BLACK if way == "plug-in" else SERIES[place]
            panel.plot(*zip(*points, strict=True), "o-", color=colour, markersize=4, label=way)
        panel.set(xscale="log", yscale="log", xlabel="inputs N", title=name)
        panel.grid(alpha=0.2)
    panels[0].set_ylabel(f"milliseconds, S = {DRAWS}")
    lines = panels[0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside lower center", ncols=len(SHOWN), frameon=False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
