"""What is timed: three classifiers, with weights as a posterior has them, and their students.

Of a network there are two students: the one that ``distill`` makes by default, and one as wide as
the network that the posterior is of. A student has taken a step or none: its time does not depend
on what it has learnt. So have the posteriors fresh weights, whatever they would be inferred from.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Predictive
from torch import Tensor, nn

import pyro_opu
from pyro_opu import OnePassPredictive, PredictiveGuide
from pyro_opu.export.capture import Captured
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.neural_network import bayesian_network, convolutional_network, perceptron
from pyro_opu.outcomes import Classes
from pyro_opu.outcomes.class_validation import MOST_STICKS

#: Widths before the classes.
PERCEPTRON, FEATURES, IMAGE = (784, 400, 400), 57, (28, 28)
#: Numbers in the weights that are held at once, 1 GB in float32; of larger posteriors fewer draws.
HELD_NUMBERS = 2**28

#: Draws and inputs by which the default student is made: too few for fresh weights, whose draws are
#: like those of no posterior, to ask for a mixture.
TEACHING = 32, 256
#: What the names of its ways end in, of the student that is as wide as the plug-in network.
ALIKE = ", teacher's widths"
#: Ways of a student.
ONE_PASS = ("one pass", "drop-in call")

Shapes = dict[str, tuple[int, ...]]


class Subject(NamedTuple):
    """A kind of classifier for any number of classes.

    ``hidden`` are the plug-in's widths, None where it has none, ``widest`` the numbers that its
    widest layer makes of an input, ``shapes`` those of one draw's latents. ``parallel`` says
    whether the model is right under ``Predictive(parallel=True)`` for samples as :func:`lined_up`
    shapes them.
    """

    name: str
    input_shape: tuple[int, ...]
    hidden: tuple[int, ...] | None
    widest: int
    model: Callable[[int], Callable[..., Tensor]]
    shapes: Callable[[int], Shapes]
    plug_in: Callable[[int], nn.Module]
    parallel: bool


def perceptron_model(sizes: tuple[int, ...]) -> Callable[..., Tensor]:
    """A network of linear layers and ReLU with a normal prior on every weight."""

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        hidden = x
        for layer, (before, after) in enumerate(pairwise(sizes)):
            prior = dist.Normal(x.new_zeros(before, after), 1.0).to_event(2)
            weight = pyro.sample(f"w{layer}", prior)
            bias = pyro.sample(f"b{layer}", dist.Normal(x.new_zeros(after), 1.0).to_event(1))
            hidden = hidden @ weight + bias
            hidden = hidden.relu() if layer < len(sizes) - 2 else hidden
        with pyro.plate("data", len(x)):
            return pyro.sample("obs", dist.Categorical(logits=hidden), obs=y)

    return model


def perceptron_shapes(sizes: tuple[int, ...]) -> Shapes:
    shapes: Shapes = {}
    for layer, (before, after) in enumerate(pairwise(sizes)):
        shapes |= {f"w{layer}": (before, after), f"b{layer}": (after,)}
    return shapes


def regression_shapes(classes: int) -> Shapes:
    outputs = 1 if classes == 2 else classes
    return {"weight": (FEATURES, outputs), "bias": (outputs,)}


def convolution_shapes(classes: int) -> Shapes:
    network = convolutional_network(IMAGE, classes)
    return {name: tuple(value.shape) for name, value in network.named_parameters()}


SUBJECTS = {
    "mlp": Subject(
        "MLP 784-400-400-{}",
        PERCEPTRON[:1],
        PERCEPTRON[1:],
        max(PERCEPTRON[1:]),
        lambda classes: perceptron_model((*PERCEPTRON, classes)),
        lambda classes: perceptron_shapes((*PERCEPTRON, classes)),
        lambda classes: perceptron((*PERCEPTRON, classes)),
        parallel=True,
    ),
    "logistic": Subject(
        "logistic regression, 57 features",
        (FEATURES,),
        None,
        1,
        logistic_regression,
        regression_shapes,
        lambda classes: nn.Linear(FEATURES, classes),
        parallel=True,
    ),
    "convolution": Subject(
        "two convolutions, 28 x 28",
        IMAGE,
        (8, 16, 64),
        8 * math.prod(IMAGE),
        lambda classes: bayesian_network(convolutional_network(IMAGE, classes)),
        convolution_shapes,
        lambda classes: convolutional_network(IMAGE, classes),
        parallel=False,  # conv2d takes no axis of draws
    ),
}


class Kit:
    """A subject with so many classes on a device: all that the ways are made of.

    Args:
        subject: Which.
        classes: C.
        draws: S; fewer are held where their weights would be more than a gigabyte.
        device: Where all of it lies.
    """

    def __init__(self, subject: Subject, classes: int, draws: int, device: torch.device) -> None:
        torch.manual_seed(0)
        self.subject, self.classes, self.device = subject, classes, device
        shapes = subject.shapes(classes)
        size = sum(map(math.prod, shapes.values()))
        self.held = min(draws, HELD_NUMBERS // size)
        self.samples = {name: weights((self.held, *s), device) for name, s in shapes.items()}
        self.model = subject.model(classes)
        self.plug_in = subject.plug_in(classes).requires_grad_(False).to(device)
        few, rows = TEACHING
        source, example = self.predictive(min(self.held, few)), self.inputs(rows)
        teacher = pyro_opu.as_teacher(source)
        made = guides(source, example, classes, subject.hidden)
        #: What the names of its ways end in -> the student, that answers with labels or with
        #: class probabilities, and its name.
        self.students, self.tellers = (
            {
                end: OnePassPredictive(guide, subject.input_shape, classes, sites, draws)
                for end, guide in made.items()
            }
            for asked in (None, ("probs",))
            for sites in [Classes(classes).layouts(teacher, example, asked)]
        )
        self.names = {end: student_name(end, fast.guide) for end, fast in self.students.items()}
        self.fast = self.students[""]

    def inputs(self, rows: int) -> Tensor:
        return torch.randn(rows, *self.subject.input_shape, device=self.device)

    def answer_with(self, draws: int) -> None:
        """Let all students answer with so many draws."""
        for fast in (*self.students.values(), *self.tellers.values()):
            fast.num_samples = draws

    def some(self, draws: int) -> dict[str, Tensor]:
        return {name: value[:draws] for name, value in self.samples.items()}

    def predictive(self, draws: int) -> Predictive:
        return Predictive(self.model, self.some(draws))

    def parallel(self, draws: int, *, probs: bool = False) -> Predictive:
        model = with_probs(self.model) if probs else self.model
        sites = {"return_sites": ("probs",)} if probs else {}
        return Predictive(model, lined_up(self.some(draws)), parallel=True, **sites)

    def captured(self, x: Tensor) -> Captured:
        """The default student's pass, compiled for any number of rows; on a GPU a graph."""
        return self.fast.capture(x) if x.is_cuda else self._compiled

    @cached_property
    def _compiled(self) -> Captured:
        return self.fast.capture(self.inputs(9))


def guides(
    source: Any, x: Tensor, classes: int, hidden: tuple[int, ...] | None
) -> dict[str, PredictiveGuide]:
    """That of the source's default student, after one step, and one of these widths.

    The first answers with sticks where ``distill`` may choose them, as it does of posteriors of
    networks. Of regressions of two classes it often chooses the Dirichlet. Fresh weights are like
    no posterior, so that what it would choose of them says nothing.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one step does not teach
        made = pyro_opu.distill(source, x, num_steps=1, seed=0, progress=False)
    if classes <= MOST_STICKS:
        made.guide.read_as("sticks")
    found = {"": made.guide}
    if hidden is not None:
        found[ALIKE] = PredictiveGuide.for_inputs(x, classes, hidden=hidden)
    return {end: guide.requires_grad_(False).eval() for end, guide in found.items()}


def student_name(end: str, guide: PredictiveGuide) -> str:
    """ "default (the posterior's network, 32-32 on it)" or "teacher's widths (400-400)"."""
    trunk = guide.config["trunk"]
    widths = "-".join(map(str, trunk["hidden"]))
    if trunk["kind"] == "plug_in":  # a small network beside what the posterior's computes
        told = "moments of logits" if trunk["outputs"] else "the posterior's network"
        widths = f"{told}, {widths} on {'them' if trunk['outputs'] else 'it'}"
    return f"{end.removeprefix(', ') or 'default'} ({widths})"


def with_probs(model: Callable[..., Tensor]) -> Callable[[Tensor], None]:
    """A model that has the class probabilities as a site."""

    def told(x: Tensor) -> None:
        trace = pyro.poutine.trace(model).get_trace(x)
        pyro.deterministic("probs", trace.nodes["obs"]["fn"].probs)

    return told


def weights(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Draws ``(S, ...)``: zeros for vectors, which are biases, else normal and not too wide."""
    if len(shape) == 2:
        return torch.zeros(shape, device=device)
    return torch.randn(shape, device=device).div_(shape[1] ** 0.5)


def lined_up(samples: dict[str, Tensor]) -> dict[str, Tensor]:
    """Samples such that ``parallel=True`` is right: vectors ``(S, D)`` become ``(S, 1, D)``.

    Left as they are their draws meet the axis of the data: an error, or where S = N no error.
    """
    return {name: v.unsqueeze(1) if v.dim() == 2 else v for name, v in samples.items()}
