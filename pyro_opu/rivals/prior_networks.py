"""Dirichlet prior networks: taught sharp answers on the data and flat ones outside it."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributions import Dirichlet, kl_divergence
from torch.nn.functional import one_hot

from pyro_opu.checks import (
    ArgumentError,
    check_bool,
    check_labels,
    check_row_shape,
    in_range,
    one_of,
    positive_float,
    positive_int,
)
from pyro_opu.guides import SingleHeadGuide, student_at
from pyro_opu.inputs import Inputs
from pyro_opu.predictive import OnePassPredictive, student_of
from pyro_opu.rng import seeded
from pyro_opu.teachers import Source, as_teacher
from pyro_opu.training import minimize

__all__ = ["prior_network"]

Form = Literal["reverse", "forward"]

#: Probability that the forward form's target takes off the label, for the other classes to share.
LABEL_SMOOTHING = 0.01
#: Of the inputs of either kind this share, at most so many, is kept for the report.
HELD_OUT_SHARE, HELD_OUT_MOST = 0.15, 512


def prior_network(
    source: Source,
    x: Tensor,
    *,
    outside: Tensor,
    y: Tensor | None = None,
    form: Form = "reverse",
    concentration: float = 100.0,
    outside_weight: float = 1.0,
    hidden: tuple[int, ...] | None = None,
    num_steps: int = 3000,
    batch_size: int = 256,
    learning_rate: float = 1e-3,
    seed: int | None = None,
    progress: bool = True,
) -> OnePassPredictive:
    r"""A Dirichlet prior network with the teacher's labels.

    .. math::
        \min_\phi\; \mathbb{E}_{x, y}\, D\big(\beta(y), \alpha(x; \phi)\big)
        + \gamma\, \mathbb{E}_{x'}\, D\big(1, \alpha(x'; \phi)\big), \qquad
        D(\beta, \alpha) = \begin{cases}
        \mathrm{KL}(\mathrm{Dir}(\alpha) \,\|\, \mathrm{Dir}(\beta)) & \text{reverse} \\
        \mathrm{KL}(\mathrm{Dir}(\beta) \,\|\, \mathrm{Dir}(\alpha)) & \text{forward}
        \end{cases}

    with x inside, x' outside, :math:`\alpha = e^{z(x)}` from one head, and with the concentration c
    the targets :math:`\beta_k = 1 + c\,[k = y]` (reverse) or :math:`\beta = c\,\tilde\mu(y)`, the
    label smoothed by 0.01 (forward).

    **It does not learn the teacher's spread**, but one made by hand: of the teacher only the
    predictive probabilities count, as labels. In the reverse form the best answer to a predictive
    :math:`\bar\pi(x)` is exactly :math:`1 + c\,\bar\pi(x)`, equally sure whether classes overlap at
    x or not. In the forward form it is, where classes overlap, less sure than the flat one outside
    (two even classes and c = 100 have :math:`\alpha_0 = 0.4` instead of 2).

    Args:
        x: Inputs ``(N, *input_shape)`` inside the domain, at least 2.
        outside: Inputs ``(M, *input_shape)`` outside it, at least 2.
        y: Labels ``(N,)``; by default drawn afresh at every step from the teacher's predictive.
        form: "reverse" (the 2019 paper) or "forward" (the 2018 paper).
        concentration: c, that the targets put on the data.
        outside_weight: :math:`\gamma`; 0 trains without ``outside``.
        hidden: Widths of the student's hidden layers; by default chosen by the input's size.
        batch_size: Inputs per step, of either kind.

    Returns:
        The drop-in with the last weights. ``fast.report`` has, over inputs that were kept from the
        training, the mean divergence ("inside", "outside") and the median of :math:`\alpha_0`
        ("concentration_inside", "concentration_outside").

    References:
        Malinin and Gales (2018), Predictive uncertainty estimation via prior networks, section 3.
        Malinin and Gales (2019), Reverse KL-divergence training of prior networks. Differences: the
        smoothing is a fixed mass that the other classes share; no auxiliary cross-entropy and no
        adversarial inputs.
    """
    one_of("form", form, ("reverse", "forward"))
    check_bool("progress", progress)
    positive_float("concentration", concentration)
    in_range("outside_weight", outside_weight, 0)
    num_steps = positive_int("num_steps", num_steps)
    batch_size = positive_int("batch_size", batch_size)
    positive_float("learning_rate", learning_rate)
    with seeded(seed):
        teacher = as_teacher(source)
        x = teacher.packed(x)
        outside = teacher.form.pack(outside, "outside").detach()
        check_row_shape("outside", outside, x.shape[1:], "Bring it into the form of `x`.")
        for name, rows in (("x", x), ("outside", outside)):
            if len(rows) < 2:
                raise ArgumentError(
                    f"`{name}` must hold at least 2 inputs, one to teach and one to report by; got "
                    f"{len(rows)}."
                )
        if y is None:
            means = [log_probs.exp().mean(0) for log_probs in teacher.stream(x)]
            probs = torch.cat(means).to(x.device).float()
        else:
            classes = teacher.probs(x[:1]).shape[-1]
            probs = one_hot(check_labels(y, len(x), classes).to(x.device), classes).float()
        outside = outside.to(x)
        both = torch.cat([x, outside])
        given = Inputs(both, teacher.form)
        guide = SingleHeadGuide.for_inputs(given, teacher.num_classes, hidden=hidden)
        (kept_x, kept_probs), (x_in, probs) = _split(x, probs)
        (kept_out,), (x_out,) = _split(outside)

        def divergence(x: Tensor, beta: Tensor) -> Tensor:
            return dirichlet_divergence(student_at(guide, x).log_alpha, beta, form).mean()

        def parts(x: Tensor, probs: Tensor, others: Tensor) -> dict[str, Tensor]:
            labels = torch.multinomial(probs, 1).squeeze(-1)
            beta = label_target(labels, probs.shape[-1], form, concentration)
            flat = beta.new_ones(len(others), beta.shape[-1])
            inside = divergence(x, beta)
            return {"inside": inside, "outside": outside_weight * divergence(others, flat)}

        def losses() -> tuple[dict[str, Tensor], None]:
            rows = torch.randint(len(x_in), (batch_size,)).to(x.device)
            others = torch.randint(len(x_out), (batch_size,)).to(x.device)
            return parts(x_in[rows], probs[rows], x_out[others]), None

        optimizer = torch.optim.Adam(guide.parameters(), lr=learning_rate)
        minimize("prior network", losses, optimizer, learning_rate, num_steps, progress=progress)
        guide.eval()
        report: dict[str, Any] = {"seed": seed, "loss": f"prior network, {form}"}
        with torch.no_grad():
            found = parts(kept_x, kept_probs, kept_out)
            for name, rows in (("inside", kept_x), ("outside", kept_out)):
                log_concentration = student_at(guide, rows).log_concentration
                found[f"concentration_{name}"] = log_concentration.median().exp()
        report |= {name: float(value) for name, value in found.items()}
        return student_of(guide, teacher, x, report=report)


def label_target(labels: Tensor, num_classes: int, form: Form, concentration: float) -> Tensor:
    """The Dirichlet parameter ``(N, C)`` in float64 that stands for labels ``(N,)``."""
    hard = one_hot(labels, num_classes).double()
    if form == "reverse":
        return 1 + concentration * hard
    others = LABEL_SMOOTHING / (num_classes - 1)
    return concentration * (hard * (1 - LABEL_SMOOTHING - others) + others)


def dirichlet_divergence(log_alpha: Tensor, beta: Tensor, form: Form) -> Tensor:
    """KL(Dir(alpha) || Dir(beta)) for "reverse", KL(Dir(beta) || Dir(alpha)) for "forward".

    Parameters are ``(N, C)``, the divergences ``(N,)`` in float64, exact.
    """
    student = Dirichlet(log_alpha.double().exp(), validate_args=False)
    target = Dirichlet(beta.double(), validate_args=False)
    return kl_divergence(*((student, target) if form == "reverse" else (target, student)))


def _split(*rows: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The same random rows of all, kept for the report, and the others."""
    order = torch.randperm(len(rows[0])).to(rows[0].device)
    count = min(HELD_OUT_MOST, max(1, round(HELD_OUT_SHARE * len(order))))
    return [each[order[:count]] for each in rows], [each[order[count:]] for each in rows]
