"""A joint Gaussian draw inside a guide, to be cut into sites."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
from torch import Tensor


def gaussian_draw(name: str, loc: Tensor, scale_tril: Tensor) -> tuple[Tensor, Tensor]:
    r"""One draw of :math:`N(\mu, L L^\top)`, as :math:`\mu + L \epsilon`.

    The noise is an auxiliary site, so what is made of the draw must carry the rest of its density,
    :math:`-\log |\det L|`. A ``MultivariateNormal`` would do without, but ``vmap`` copies its
    factor for every draw, where here one product with one matrix serves all.

    Args:
        name: Of the auxiliary site.
        loc: :math:`\mu` ``(P,)``.
        scale_tril: L ``(P, P)``.

    Returns:
        The draw ``(P,)``, and its log-density less that of the noise, a scalar.
    """
    noise = dist.Normal(loc.new_zeros(loc.shape), 1.0).to_event(1)
    noise = pyro.sample(name, noise, infer={"is_auxiliary": True})
    return loc + noise @ scale_tril.mT, -scale_tril.diagonal().log().sum()
