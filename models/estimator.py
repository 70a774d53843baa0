"""A scikit-learn classifier: a ready Bayesian teacher, and its one-pass student."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pyro.infer import MCMC, Predictive
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from pyro_opu import PolyaGammaGibbs, distill, uncertainty
from pyro_opu.checks import one_of, positive_int
from pyro_opu.distributions import SimplexDistribution
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.neural_network import dropout_network, fit_network
from pyro_opu.rng import seeded
from pyro_opu.teachers import Source

__all__ = ["OnePassClassifier", "dropout_teacher", "logistic_teacher"]

#: What makes a teacher of standardised inputs ``(N, D)`` and classes ``(N,)`` from 0 to C - 1.
TeacherMaker = Callable[[Tensor, Tensor], Source]

#: Fewer rows cannot be split into inputs to teach by and inputs to judge by.
LEAST_ROWS = 4


def logistic_teacher(
    x: Tensor, y: Tensor, *, num_draws: int = 1000, warmup_steps: int = 500, scale: float = 1.0
) -> Predictive:
    """Posterior of a logistic regression with prior scale ``scale``, by Polya-Gamma sampling."""
    positive_int("num_draws", num_draws)
    positive_int("warmup_steps", warmup_steps, 0)
    classes = _count_classes(y)
    model = logistic_regression(classes, scale)
    mcmc = MCMC(PolyaGammaGibbs(model), num_draws, warmup_steps, disable_progbar=True)
    mcmc.run(x, y.to(x.dtype) if classes == 2 else y)
    return Predictive(model, mcmc.get_samples())


def dropout_teacher(
    x: Tensor, y: Tensor, *, hidden: tuple[int, ...] = (64, 64), p: float = 0.2, epochs: int = 200
) -> nn.Module:
    """A perceptron trained with dropout; its masks, units dropped with ``p``, make the draws."""
    network = dropout_network((x.shape[1], *hidden, _count_classes(y)), p)
    return fit_network(network, x, y, epochs=epochs)


def _count_classes(y: Tensor) -> int:
    """C, from integer labels."""
    if not isinstance(y, Tensor) or y.is_floating_point() or not y.numel():
        raise TypeError("`y` must be a tensor of integer labels from 0. Convert it with .long().")
    return int(y.max()) + 1


#: The ready teachers by name.
TEACHERS: dict[str, TeacherMaker] = {"dropout": dropout_teacher, "logistic": logistic_teacher}


class OnePassClassifier(ClassifierMixin, BaseEstimator):
    r"""A scikit-learn classifier that says how sure it is, without any Pyro model.

    ``fit`` standardises the inputs, makes a Bayesian teacher and distills it into one network
    :math:`x \mapsto \mathrm{Dir}(\alpha(x))` (:func:`pyro_opu.distill`); predictions are one
    forward pass of that student in float64. It works in a ``Pipeline``, ``cross_val_score`` and
    ``GridSearchCV``, and can be pickled. The uncertainty is the teacher's, right or wrong:
    "logistic" knows only what a linear model can be unsure of, "dropout" is a rough posterior whose
    spread follows its rate.

    Args:
        teacher: "dropout" (:func:`dropout_teacher`), "logistic" (:func:`logistic_teacher`, which
            needs the package polyagamma), or a function ``(x, y) -> teacher`` of standardised
            float32 inputs ``(N, D)`` and int64 classes ``(N,)`` that returns anything
            :func:`pyro_opu.as_teacher` takes, such as ``partial(dropout_teacher, p=0.5)``.
        guide, loss, num_steps: As for :func:`pyro_opu.distill`.
        random_state: Seed of ``fit``: an integer, a ``RandomState``, or None for NumPy's own.

    Attributes:
        classes_: The class labels, sorted, ``(C,)``.
        scaler_: The ``StandardScaler`` of the inputs.
        student_: The :class:`~pyro_opu.OnePassPredictive`, of standardised inputs.

    Example:
        >>> from functools import partial
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> quick = partial(dropout_teacher, hidden=(16,), epochs=20)
        >>> classifier = OnePassClassifier(quick, loss="moments", num_steps=40, random_state=0)
        >>> classifier.fit(X, y).predict_proba(X).shape
        (150, 3)
        >>> sorted(classifier.predict_uncertainty(X))[:4]
        ['aleatoric', 'concentration', 'differential_entropy', 'epistemic']
    """

    def __init__(
        self,
        teacher: str | TeacherMaker = "dropout",
        *,
        guide: str | None = None,
        loss: str | None = None,
        num_steps: int = 1000,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.teacher = teacher
        self.guide = guide
        self.loss = loss
        self.num_steps = num_steps
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> OnePassClassifier:
        """Teach by ``X`` ``(N, D)``, finite with at least 4 rows, and labels ``y`` of any kind."""
        if callable(self.teacher):
            maker = self.teacher
        else:
            advice = "Or pass a function (x, y) -> teacher."
            maker = TEACHERS[one_of("teacher", self.teacher, TEACHERS, advice)]
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=LEAST_ROWS)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"`y` must hold at least two classes; got one class, {self.classes_[0]}. Add rows "
                "of another one."
            )
        self.scaler_ = StandardScaler().fit(X)
        x = torch.tensor(self.scaler_.transform(X), dtype=torch.float32)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with seeded(seed):
            source = maker(x, torch.tensor(codes))
        settings: dict[str, Any] = {k: getattr(self, k) for k in ("guide", "loss", "num_steps")}
        student = distill(source, x, **settings, seed=seed, progress=False)
        if student.num_classes != len(self.classes_):
            raise ValueError(
                f"`teacher` must give probabilities of the {len(self.classes_)} classes of y; got "
                f"{student.num_classes} classes. Size it by y.max() + 1."
            )
        self.student_ = student.double()
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Predict the most probable class of every row, ``(N,)``, as in ``classes_``."""
        probs = self.predict_proba(X)  # which says where it has not been fitted
        return self.classes_[probs.argmax(1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Mean of the posterior predictive, ``(N, C)`` in the order of ``classes_``."""
        return self._answer(X).log_mean.softmax(-1).numpy()

    def predict_uncertainty(self, X: Any) -> dict[str, np.ndarray]:
        """Every measure of :func:`pyro_opu.uncertainty` by name, ``(N,)``; entropies in nats."""
        measures = uncertainty(self._answer(X)).to_dict()
        return {name: value.numpy() for name, value in measures.items()}

    @torch.no_grad()
    def _answer(self, X: Any) -> SimplexDistribution:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return self.student_.distribution(torch.tensor(self.scaler_.transform(X)))
