"""Laplace approximation of a trained network: normal weights in its last layer, or in all."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from math import prod
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.utils.data import DataLoader, TensorDataset

from pyro_opu.checks import check_labels, one_of, positive_float, positive_int
from pyro_opu.models.laplace import Laplace
from pyro_opu.models.last_layer import split_last_layer
from pyro_opu.models.neural_network import class_count
from pyro_opu.rng import preserve_rng

Subset = Literal["last_layer", "all"]
Structure = Literal["diagonal", "kron", "full"]
Tuning = Literal["marginal likelihood"]

#: Numbers in the Jacobians of one block of inputs, 16 MB in float32.
_NUMBERS_AT_ONCE = 2**22


class DiagonalRoot(nn.Module):
    """A diagonal root R of the covariance R R' of P weights, for Jacobians ``(n, C, P)`` times R.

    ``take`` reads the precision that laplace-torch found.
    """

    scale: Tensor

    def __init__(self, shapes: list[torch.Size]) -> None:
        super().__init__()
        self.register_buffer("scale", torch.zeros(sum(map(prod, shapes))))

    def forward(self, jacobian: Tensor) -> Tensor:
        return jacobian * self.scale

    def take(self, precision: Tensor) -> None:
        self.scale.copy_(precision.rsqrt())


class FullRoot(nn.Module):
    """A root ``(P, P)``, any matrix; see :class:`DiagonalRoot`."""

    factor: Tensor

    def __init__(self, shapes: list[torch.Size]) -> None:
        super().__init__()
        size = sum(map(prod, shapes))
        self.register_buffer("factor", torch.zeros(size, size))

    def forward(self, jacobian: Tensor) -> Tensor:
        return jacobian @ self.factor

    def take(self, precision: Tensor) -> None:
        upper = torch.linalg.cholesky(precision.double()).mT
        identity = torch.eye(len(upper)).to(upper)
        self.factor.copy_(torch.linalg.solve_triangular(upper, identity, upper=True))


class KroneckerRoot(nn.Module):
    r"""A root of :math:`(A \otimes B + \delta I)^{-1}` for every parameter.

    Holds the eigenvectors of A (outputs) and of B (inputs; a bias has none), and the inverse roots
    of the eigenvalues :math:`a_i b_j + \delta`.
    """

    def __init__(self, shapes: list[torch.Size]) -> None:
        super().__init__()
        self.sizes = [(shape[0], prod(shape[1:])) for shape in shapes]
        for i, (rows, columns) in enumerate(self.sizes):
            self.register_buffer(f"left_{i}", torch.eye(rows))
            self.register_buffer(f"right_{i}", torch.eye(columns))
            self.register_buffer(f"scale_{i}", torch.zeros(rows, columns))

    def _block(self, i: int) -> tuple[Tensor, Tensor, Tensor]:
        return tuple(getattr(self, f"{name}_{i}") for name in ("left", "right", "scale"))  # type: ignore[return-value]

    def forward(self, jacobian: Tensor) -> Tensor:
        out = []
        for i, part in enumerate(jacobian.split([prod(size) for size in self.sizes], -1)):
            left, right, scale = self._block(i)
            rotated = left.mT @ part.unflatten(-1, self.sizes[i]) @ right
            out.append((rotated * scale).flatten(-2))
        return torch.cat(out, -1)

    def take(self, precision: Any) -> None:
        blocks = zip(precision.eigenvectors, precision.eigenvalues, precision.deltas, strict=True)
        for i, (vectors, values, delta) in enumerate(blocks):
            left, right, scale = self._block(i)
            left.copy_(vectors[0])
            if len(vectors) == 2:
                right.copy_(vectors[1])
            product = values[0].unsqueeze(1) * (values[1] if len(values) == 2 else 1.0)
            scale.copy_((product + delta).rsqrt())


#: Structure -> laplace-torch's word for it, and the root.
_ROOTS: dict[str, tuple[str, type[DiagonalRoot | FullRoot | KroneckerRoot]]] = {
    "diagonal": ("diag", DiagonalRoot),
    "full": ("full", FullRoot),
    "kron": ("kron", KroneckerRoot),
}


class NetworkLaplace(nn.Module):
    r"""A network with normal weights, linear in them around the trained ones.

    .. math:: z(x) \mid \theta = f(x; \theta^*) + J(x) (\theta - \theta^*), \quad
              \theta \sim N(\theta^*, \Sigma), \qquad
              z(x) \sim N\bigl(f(x; \theta^*),\; J(x) \Sigma J(x)^\top\bigr)

    with J the Jacobian of the logits in the weights: exact for the last layer, for all weights the
    linearised Laplace approximation. It is a teacher whose draws are joint over inputs, and
    :func:`~pyro_opu.rivals.laplace_bridge.laplace_bridge_predictive` reads its :meth:`logits`.

    Made by :func:`network_laplace` or :func:`with_trunk`; a new one, whose weights have no
    variance, is there to load a ``state_dict`` into. ``network``, ``x -> logits (N, C)``, is
    copied.
    """

    prior_precision: float | None = None

    def __init__(
        self,
        network: nn.Module,
        num_classes: int,
        *,
        subset: Subset = "last_layer",
        structure: Structure = "kron",
    ) -> None:
        super().__init__()
        one_of("subset", subset, get_args(Subset))
        one_of("structure", structure, get_args(Structure))
        self.num_classes = positive_int("num_classes", num_classes, 2)
        self.trunk: nn.Module
        self.body: nn.Module
        if subset == "last_layer":
            self.trunk, self.body = split_last_layer(network)  # type: ignore[arg-type]
        else:
            self.trunk, self.body = nn.Identity(), copy.deepcopy(network)
        if isinstance(self.body, nn.Linear) and self.body.out_features != num_classes:
            raise ValueError(
                f"`num_classes` must be {self.body.out_features}, the outputs of `network`; got "
                f"{num_classes}. Pass that."
            )
        weights = list(self.body.parameters())
        self.root = _ROOTS[structure][1]([w.shape for w in weights]).to(weights[0])
        self.requires_grad_(False).eval()

    @torch.no_grad()
    def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean ``(N, C)`` and covariance ``(N, C, C)`` of the linearised logits."""
        means, roots = zip(*self._blocks(x), strict=True)
        return torch.cat(means), torch.cat([root @ root.mT for root in roots])

    @torch.no_grad()
    def log_probs(self, x: Tensor, num_draws: int = 500) -> Tensor:
        """Log-probabilities ``(S, N, C)`` of draws; one draw of the weights serves all inputs."""
        num_draws = positive_int("num_draws", num_draws)
        noise: Tensor | None = None
        out = []
        for mean, root in self._blocks(x):
            if noise is None:
                noise = torch.randn(num_draws, root.shape[-1], dtype=root.dtype, device=root.device)
            out.append((mean + torch.einsum("sq,ncq->snc", noise, root)).log_softmax(-1))
        return torch.cat(out, 1)

    def probs(self, x: Tensor, num_draws: int = 500) -> Tensor:
        """The exponential of :meth:`log_probs`."""
        return self.log_probs(x, num_draws).exp()

    def _blocks(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield means ``(n, C)`` and J R ``(n, C, Q)`` for a few inputs at a time."""
        weights = dict(self.body.named_parameters())
        width = self.num_classes * sum(w.numel() for w in weights.values())

        def outputs(weights: dict[str, Tensor], features: Tensor) -> Tensor:
            return functional_call(self.body, weights, (features.unsqueeze(0),)).squeeze(0)

        class_count(nn.Sequential(self.trunk, self.body), x)
        for block in x.split(max(1, _NUMBERS_AT_ONCE // width)):
            features = self.trunk(block)
            parts = vmap(jacrev(outputs), (None, 0))(weights, features)
            jacobian = torch.cat([part.flatten(2) for part in parts.values()], -1)
            yield self.body(features), self.root(jacobian)


def network_laplace(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    subset: Subset = "last_layer",
    structure: Structure = "kron",
    prior_precision: float | Tuning = 1.0,
    batch_size: int = 256,
) -> NetworkLaplace:
    r"""Laplace approximation at a network's trained weights, curvature by laplace-torch.

    .. math:: \Sigma^{-1} = \sum_n J_n^\top (\mathrm{diag}\,\pi_n - \pi_n \pi_n^\top) J_n
              + \delta I

    the Gauss-Newton matrix and the precision :math:`\delta` of a normal prior on the weights;
    "diagonal" takes its diagonal, "kron" one Kronecker product per weight matrix (KFAC). The
    weights are taken for the mode, which they are after training to the end with weight decay
    :math:`\delta / N` on the mean loss.

    Args:
        network: Trained on ``x`` and ``y``, ``x (N, ...) -> logits (N, C)``; not changed.
        subset: "last_layer" (of ``nn.Sequential(trunk, head)``) or "all". With P normal weights,
            "full" needs P² numbers, and every structure P times C for an input's Jacobian.
        prior_precision: :math:`\delta`; or "marginal likelihood", where Laplace's approximation to
            it is highest (100 steps of Adam).

    Raises:
        NotImplementedError: "kron" of a layer that has no Kronecker factors, such as BatchNorm.

    References:
        Daxberger et al.: Laplace redux (2021). Immer, Korzepa, Bauer: Improving predictions of
        Bayesian neural nets via local linearization (2021).
    """
    classes, batch_size = class_count(network, x), positive_int("batch_size", batch_size)
    x, y = x.detach(), check_labels(y, len(x), classes)
    if isinstance(prior_precision, str):
        one_of("prior_precision", prior_precision, get_args(Tuning), "Or pass a positive number.")
    else:
        positive_float("prior_precision", prior_precision)
    fitted = NetworkLaplace(network, classes, subset=subset, structure=structure)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch and einops, about their own parts
            from laplace import Laplace as Library
    except ImportError as error:
        raise ImportError(
            "`network_laplace` needs laplace-torch, which is not installed: pip install "
            '"pyro_opu[laplace]". For a last layer alone last_layer_laplace needs nothing.'
        ) from error

    tuned = isinstance(prior_precision, str)
    library: Any = Library(
        copy.deepcopy(fitted.body).requires_grad_(True),
        "classification",
        subset_of_weights="all",
        hessian_structure=_ROOTS[structure][0],
        prior_precision=1.0 if tuned else float(prior_precision),
    )
    with preserve_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.fit(DataLoader(TensorDataset(fitted.trunk(x), y), batch_size))
        if tuned:
            library.optimize_prior_precision(method="marglik")
    fitted.prior_precision = float(library.prior_precision)
    with torch.no_grad():
        fitted.root.take(library.posterior_precision)
    return fitted


def with_trunk(trunk: nn.Module, fit: Laplace) -> NetworkLaplace:
    """The Laplace approximation of a linear classifier on features, as a network of inputs.

    ``with_trunk(*last_layer_laplace(network, x, y))`` is a teacher with the logits of
    ``fit.logits(trunk(x))``. Load a saved one into ``NetworkLaplace(nn.Sequential(trunk,
    nn.Linear(D, C)), C, structure="full")``.
    """
    if not isinstance(fit, Laplace):
        raise TypeError(
            f"`fit` must be a Laplace; got {type(fit).__name__}. Pass that of last_layer_laplace."
        )
    features, outputs = fit.weight.shape
    signs = torch.tensor([[-0.5], [0.5]]) if outputs == 1 else torch.eye(outputs)
    signs = signs.to(fit.covariance)  # (C, outputs)
    head = nn.Linear(features, len(signs)).to(fit.weight)
    root = torch.linalg.cholesky(fit.covariance).reshape(features + 1, outputs, -1)
    rows = torch.einsum("co,foq->cfq", signs, root)
    rows = torch.cat([rows[:, :-1].flatten(0, 1), rows[:, -1]])  # the weights, then the biases
    with torch.no_grad():
        head.weight.copy_(signs @ fit.weight.double().mT)
        head.bias.copy_(signs @ fit.bias.double())
        fitted = NetworkLaplace(nn.Sequential(trunk, head), len(signs), structure="full")
        fitted.root.get_buffer("factor")[:, : rows.shape[1]] = rows  # two classes: half is zero
    return fitted
