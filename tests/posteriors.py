"""One of every kind. A kind that is added here is tested as all others of its interface are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from flat import distill_flat
from pyro.infer import Predictive
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor, nn

from pyro_opu import OnePassPredictive, as_teacher, objectives, rivals
from pyro_opu.distributions import (
    Answer,
    DirichletMixture,
    Empirical,
    Implicit,
    LogisticNormal,
    NormalSticks,
    PredictiveDirichlet,
    PredictiveNormal,
    PredictiveNormalMixture,
)
from pyro_opu.distributions.implicit import FromNoise
from pyro_opu.distributions.logistic_normal import normal_points
from pyro_opu.distributions.normal import Components
from pyro_opu.guides import (
    ImplicitGuide,
    LogisticNormalGuide,
    MixtureGuide,
    PointGuide,
    PredictiveGuide,
    SingleHeadGuide,
)
from pyro_opu.guides.normal import GaussianGuide, ImplicitRealGuide, NormalMixtureGuide
from pyro_opu.objectives import Objective
from pyro_opu.objectives.likelihood import LikelihoodFirst
from pyro_opu.objectives.normal import NormalCRPS, NormalMoments
from pyro_opu.samplers import SGLD, PolyaGammaGibbs
from pyro_opu.transfer import (
    Box,
    Differences,
    Gaussian,
    HeldOut,
    ImageCorruption,
    Jitter,
    Mixture,
    Mixup,
    Permute,
    Recombine,
    Shuffle,
    Stretch,
    TransferPolicy,
)
from pyro_opu.transfer.corruptions import IMAGE_KINDS

# Teachers' sources ----------------------------------------------------------------------------

S, D, C = 40, 3, 4
X = torch.randn(12, D, generator=torch.Generator().manual_seed(1))


def model(x: Tensor, y: Tensor | None = None) -> Tensor:
    """A softmax regression; the names of its latents are no names of attributes or of files."""
    weight = pyro.sample("a.weight", dist.Normal(torch.zeros(D, C), 1.0).to_event(2))
    bias = pyro.sample("bias%2E", dist.Normal(torch.zeros(C), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Categorical(logits=x @ weight + bias), obs=y)


def guide(x: Tensor, y: Tensor | None = None) -> None:
    pyro.sample("a.weight", dist.Normal(torch.ones(D, C), 0.5).to_event(2))
    pyro.sample("bias%2E", dist.Normal(torch.zeros(C), 0.5).to_event(1))


def samples(count: int = S) -> dict[str, Tensor]:
    return {"a.weight": torch.randn(count, D, C), "bias%2E": torch.randn(count, C)}


def drawing(guide: Callable[..., None] | None = None) -> Predictive:
    return Predictive(model, guide=guide, num_samples=S, return_sites=("obs",))


def network(dropout: Sequence[nn.Module] = ()) -> nn.Module:
    return nn.Sequential(nn.Linear(D, 8), nn.ReLU(), *dropout, nn.Linear(8, C))


def function(count: int = S, classes: int = C) -> Callable[[Tensor], Tensor]:
    weight = torch.randn(count, D, classes)
    return lambda x: (x @ weight.to(x.dtype)).softmax(-1)


class Own:
    """A user's teacher that holds its draws."""

    num_classes, max_draws = C, S

    def __init__(self) -> None:
        self.function = function()

    def probs(self, x: Tensor, num_draws: int | None = None) -> Tensor:
        return self.function(x)[:num_draws]

    def log_probs(self, x: Tensor, num_draws: int | None = None) -> Tensor:
        return self.probs(x, num_draws).log()


def of_arrays(function: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
    return lambda x: function(torch.from_numpy(x)).numpy()


def of_one_draw(draw: dict[str, Tensor], x: Tensor) -> Tensor:
    return (x @ draw["a.weight"].to(x) + draw["bias%2E"].to(x)).softmax(-1)


def forest() -> Any:
    """Trees of scikit-learn, as a list since forests have equal trees too."""
    from sklearn.tree import DecisionTreeClassifier

    x, y = torch.randn(60, D).numpy(), torch.arange(60) % C
    return [DecisionTreeClassifier(max_features=1).fit(x, y[torch.randperm(60)]) for _ in range(S)]


#: Name -> a source, and whether its draws are held by itself, in order.
SOURCES: dict[str, tuple[Callable[[], Any], bool]] = {
    "samples": (lambda: Predictive(model, samples()), True),
    "guide": (lambda: drawing(guide), False),
    "prior": (drawing, False),
    "dropout": (lambda: network([nn.Dropout()]), False),
    "ensemble": (lambda: [network() for _ in range(S)], True),
    "function": (function, True),
    "arrays": (lambda: of_arrays(function()), True),
    "forest": (forest, True),
    "pair": (lambda: (samples(), of_one_draw), True),
    "teacher": (Own, True),
    "mixture": (lambda: [as_teacher(network([nn.Dropout()])), as_teacher(function())], False),
    "mixed sites": (lambda: [Predictive(model, samples()), drawing(guide)], False),
}

# Outcomes ------------------------------------------------------------------------------------


def line(x: Tensor, y: Tensor | None = None) -> Tensor:
    weight = pyro.sample("weight", dist.Normal(torch.zeros(D), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Normal(x @ weight, 0.5), obs=y)


def three(x: Tensor) -> None:
    """Two labels of three classes, successes of five trials, one real number and one count."""
    weight = pyro.sample("weight", dist.Normal(torch.zeros(D, 2, 3), 1.0).to_event(3))
    slope = pyro.sample("slope", dist.Normal(torch.zeros(D), 0.2).to_event(1))
    with pyro.plate("data", len(x), dim=-2), pyro.plate("two", 2, dim=-1):
        pyro.sample("labels", dist.Categorical(logits=torch.einsum("nd,dlc->nlc", x, weight)))
    with pyro.plate("rows", len(x)):
        pyro.sample("wins", dist.Binomial(5, logits=x @ slope))
        pyro.sample("y", dist.Normal(x @ slope, 0.5))
        pyro.sample("count", dist.Poisson((1 + x @ slope).exp()))


#: Name, as in a file, -> a posterior of a model that observes it.
OUTCOMES: dict[str, Callable[[], Predictive]] = {
    "classes": lambda: Predictive(model, samples()),
    "real": lambda: Predictive(line, {"weight": torch.randn(S, D)}),
    "table": lambda: Predictive(
        three, {"weight": torch.randn(S, D, 2, 3), "slope": 0.2 * torch.randn(S, D)}
    ),
}

# Draws of a known Dirichlet ------------------------------------------------------------------

#: Errors of a Monte Carlo mean are allowed this many standard errors: once in 2e6 by chance.
SIGMAS = 5.0
MEAN = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
#: Draws ``(3, 5, 3)`` that are sure of a class, and agree, or not.
CORNERS = torch.eye(3)[torch.tensor([[0, 1, 2, 0, 0], [0, 1, 2, 1, 2], [0, 1, 2, 1, 1]])]


def dirichlet_draws(concentration: float, num_draws: int, rows: int) -> Tensor:
    """Draws ``(S, N, 3)`` in float64 of the Dirichlet with mean MEAN."""
    alpha = (concentration * MEAN).expand(rows, 3)
    return torch.distributions.Dirichlet(alpha).sample((num_draws,))


def sure_within(values: Tensor, expected: float | Tensor) -> bool:
    """Whether the means of independent rows agree with their expectation."""
    error = values.std(0) / len(values) ** 0.5
    return bool(((values.mean(0) - expected).abs() < SIGMAS * error).all())


# Transfer policies ---------------------------------------------------------------------------

VECTOR_POLICIES: list[TransferPolicy] = [
    HeldOut(),
    Jitter(),
    Mixup(),
    Mixup(alpha=0.2),
    Stretch(),
    Differences(),
    Box(),
    Shuffle(),
    Recombine(),
    Gaussian(),
    Gaussian(scale=2.0, max_scale=8.0),
    Permute(),
    Mixture([(0.7, HeldOut()), (0.3, Mixup())]),
]
POLICIES = VECTOR_POLICIES + [ImageCorruption((kind,), depth=1) for kind in IMAGE_KINDS]


def smooth_images(n: int = 40, channels: int = 2, height: int = 12, width: int = 10) -> Tensor:
    """Smooth images in [-0.5, 1.5]: neither flat nor two-valued; every kind changes them."""
    coarse = torch.rand(n, channels, 4, 4)
    smooth = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bilinear")
    return (smooth - smooth.min()) / (smooth.max() - smooth.min()) * 2 - 0.5


# Answers -------------------------------------------------------------------------------------

N, K = 5, 2


def logs(*shape: int) -> Tensor:
    return torch.randn(*shape).log_softmax(-1)


def made_of_noise(log_probs: Tensor) -> Implicit:
    """Logits that a number of noise moves along a line."""
    source = FromNoise(
        lambda noise: (log_probs + noise * torch.arange(log_probs.shape[1])).log_softmax(-1),
        normal_points(1, 128).float(),
        len(log_probs),
    )
    return Implicit(source, *log_probs.shape)


#: At N inputs, of C classes or of a real y.
ANSWERS: dict[str, Callable[[], Answer]] = {
    "dirichlet": lambda: PredictiveDirichlet(logs(N, C), torch.randn(N)),
    "mixture": lambda: DirichletMixture(logs(N, K), logs(N, K, C), torch.randn(N, K)),
    "sticks": lambda: NormalSticks(logs(N, C), torch.randn(N)),
    "logistic normal": lambda: LogisticNormal(logs(N, C), logs(N, C), torch.randn(N, C, 1)),
    "empirical": lambda: Empirical(logs(K, N, C)),
    "implicit": lambda: made_of_noise(logs(N, C)),
    "normal": lambda: PredictiveNormal(*torch.randn(3, N)),
    "normal mixture": lambda: PredictiveNormalMixture(
        Components(logs(N, K), *torch.randn(3, N, K))
    ),
}

# Guides --------------------------------------------------------------------------------------


def table(rows: int = 6) -> Tensor:
    return torch.randn(rows, D)


def pictures(rows: int = 6) -> Tensor:
    return torch.rand(rows, 1, 28, 28)


def flat_pictures(rows: int = 6) -> Tensor:
    return pictures(rows)[:, 0]


def of_classes(family: type, **options: Any) -> Callable[[], nn.Module]:
    return lambda: family.for_inputs(table(), C, **{"hidden": (16, 8), **options})


def of_a_real_y(family: type, **options: Any) -> Callable[[], nn.Module]:
    return lambda: family.for_inputs(table(), 100 + 5 * torch.randn(6), hidden=(8,), **options)


#: Name -> what builds it, and inputs for it.
GUIDES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "dirichlet": (of_classes(PredictiveGuide), table),
    "dirichlet, two networks": (of_classes(PredictiveGuide, shared=False), table),
    "dirichlet, two widths": (of_classes(PredictiveGuide, concentration_hidden=(4, 3)), table),
    "dirichlet, linear": (of_classes(PredictiveGuide, hidden=()), table),
    "dirichlet, convolutional": (
        lambda: PredictiveGuide.for_inputs(pictures(), C, hidden=(4, 6, 8)),
        pictures,
    ),
    "dirichlet, without channels": (
        lambda: PredictiveGuide.for_inputs(flat_pictures(), C, shared=False, hidden=(4, 6, 8)),
        flat_pictures,
    ),
    "dirichlet, a user's trunk": (
        lambda: PredictiveGuide(nn.Sequential(nn.Linear(D, 7), nn.Tanh()), 7, C),
        table,
    ),
    # An empty Sequential passes x on, and is false as a truth value.
    "dirichlet, a user's trunks": (
        lambda: PredictiveGuide(nn.Sequential(nn.Linear(D, 7), nn.ELU()), 7, C, nn.Sequential(), D),
        table,
    ),
    "single head": (of_classes(SingleHeadGuide), table),
    "point": (of_classes(PointGuide), table),
    "mixture": (of_classes(MixtureGuide), table),
    "mixture of three": (of_classes(MixtureGuide, num_components=3), table),
    "logistic normal": (of_classes(LogisticNormalGuide), table),
    "logistic normal, rank 1": (of_classes(LogisticNormalGuide, rank=1), table),
    "implicit": (of_classes(ImplicitGuide), table),
    "implicit, two numbers of noise": (of_classes(ImplicitGuide, noise=2, units=8), table),
    "normal": (of_a_real_y(GaussianGuide), table),
    "normals from noise": (of_a_real_y(ImplicitRealGuide), table),
    "normal mixture": (of_a_real_y(NormalMixtureGuide), table),
    "normal mixture of seven": (of_a_real_y(NormalMixtureGuide, num_components=7), table),
}

# Objectives ----------------------------------------------------------------------------------

#: For a teacher of classes.
OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "moments, share": objectives.MomentMatching,
    "moments, variance": lambda: objectives.MomentMatching("variance"),
    "energy": objectives.EnergyDistance,
    "energy and likelihood": lambda: objectives.EnergyDistance(likelihood=0.5),
    "energy, l2": lambda: objectives.EnergyDistance(ground="l2"),
    "likelihood": objectives.DirichletLikelihood,
    "likelihood first": LikelihoodFirst,
    "cross-entropy": objectives.CrossEntropy,
    "wasserstein": objectives.WassersteinELBO,
    "wasserstein, the paper's": lambda: objectives.WassersteinELBO(likelihood=0.0, residual=False),
    "wasserstein, l2": lambda: objectives.WassersteinELBO(residual=False, ground="l2"),
    "endd": objectives.EnsembleDistribution,
    "proxy": objectives.ProxyDirichlet,
}
#: For a teacher of a real y.
REAL_OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "normal moments": NormalMoments,
    "crps": NormalCRPS,
    "crps alone": lambda: NormalCRPS(moments=0.0),
}

# Samplers ------------------------------------------------------------------------------------


def two_classes(x: Tensor, y: Tensor | None = None) -> Tensor:
    """A logistic regression, which every sampler can draw from."""
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.5).to_event(1))
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Bernoulli(logits=x @ w), obs=y)


SAMPLERS: dict[str, Callable[[Callable[..., Tensor]], MCMCKernel]] = {
    "sgld": lambda model: SGLD(model, step_size=1e-2),
    "sgld, minibatches": lambda model: SGLD(model, step_size=1e-2, batch_size=7, thinning=2),
    "sgld, rmsprop": lambda model: SGLD(model, step_size=1e-3, preconditioner="rmsprop"),
    "polya-gamma": PolyaGammaGibbs,
}

# Rivals --------------------------------------------------------------------------------------


def online(source: Any, x: Tensor, **options: Any) -> OnePassPredictive:
    """Taught while a chain of the same model runs; it takes no other posterior.

    What was said of the source beside it is said of the kernel's model too.
    """
    data, kernel = (X, torch.arange(len(X)) % C), SGLD(model, step_size=1e-2)
    few = {"num_draws": 4, "warmup_steps": 1, "batch_size": 8, "num_samples": S}
    said = vars(as_teacher(source).options)
    few |= {name: each for name, each in said.items() if each is not None and name != "source"}
    return rivals.online_dark_knowledge(kernel, data, x, **{**few, **options})


#: As quick as they can be, and distillation itself; each is called (source, x, **options).
RIVALS: dict[str, Callable[..., OnePassPredictive]] = {
    "distill": partial(distill_flat, num_steps=5),
    "endd": partial(rivals.endd, num_steps=5),
    "proxy": partial(rivals.proxy_dirichlet, num_steps=5),
    "dark knowledge": partial(rivals.dark_knowledge, num_steps=5),
    "dark knowledge, dirichlet": partial(rivals.dark_knowledge, form="dirichlet", num_steps=5),
    "dark knowledge, online": online,
    "prior network": partial(rivals.prior_network, outside=X + 6, hidden=(8,), num_steps=5),
    "prior network, forward": partial(
        rivals.prior_network, outside=X + 6, form="forward", hidden=(8,), num_steps=5
    ),
    "compact": partial(rivals.compact_approx, size=4, tries=50),
    "compact, random": partial(rivals.compact_approx, size=4, tries=50, method="random"),
    "laplace bridge": rivals.laplace_bridge_predictive,
}


def averages(mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of the sigmoid of a normal logit, and alpha_0 by moments: a sum over 20,001 points."""
    nodes = torch.linspace(-9, 9, 20_001, dtype=torch.float64)
    weights = (-0.5 * nodes.square()).softmax(0)
    z = mean.double()[:, None] + deviation.double()[:, None] * nodes
    p = torch.sigmoid(z)
    average = p @ weights
    within = (p * torch.sigmoid(-z)) @ weights
    return average, within / ((p - average[:, None]).square() @ weights)
