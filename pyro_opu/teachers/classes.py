"""A Pyro model of class labels as a teacher."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyro_opu.programs.enumerated import log_probs_apart, mixed_log_probs
from pyro_opu.programs.program import Program
from pyro_opu.programs.sites import (
    ALLOWED,
    check_one_trial,
    class_log_probs,
    site_kind,
)
from pyro_opu.teachers.agreement import ComparedDraws
from pyro_opu.teachers.base import BaseTeacher
from pyro_opu.teachers.kinds import cure, described_all


class PredictiveTeacher(ComparedDraws, BaseTeacher):
    r"""The observed site of a :class:`pyro.infer.Predictive` as draws on the simplex.

    The model is conditioned on each posterior draw :math:`\theta_s` and run at ``x``; the class
    log-probabilities are read off the observed site's distribution, so nothing is lost to label
    noise. All draws go through :func:`torch.vmap` at once, equal to the loop; a model that ``vmap``
    cannot run is looped over.

    With ``posterior_samples`` the draws are those, in order. With a ``guide`` (or neither, the
    prior) every call draws afresh: latents of the whole model once for all rows of ``x``, latents
    local to a row for each row.

    Args:
        predictive: The ``Predictive`` to read; it is not changed.
        site: Name of the observed categorical site, needed when there are several.
        call: How the model is called with inputs, ``x -> (args, kwargs)``; ``model(x)`` by default.
    """

    allowed = ALLOWED

    def _choose_site(self, program: Program) -> str:
        site = super()._choose_site(program)
        check_one_trial(program.runs[0].nodes[site]["fn"], site)
        return site

    def _fits(self, fn: Any) -> bool:
        return site_kind(fn) is not None

    def _only_site(self, fits: list[str], found: dict[str, Any], program: Program) -> str:
        if len(fits) == 1:
            return fits[0]
        if fits:
            raise ValueError(
                f"`site` must name one of the model's observed categorical sites, {fits}; got "
                f"none. Pass site='{fits[0]}', or another of them."
            )
        raise ValueError(
            f"`source`'s model must have an observed site that is {ALLOWED} (for distill also a "
            "real number or a count of any law with a mean and a variance); the sites that the "
            f"posterior does not fix are {described_all(found)}. {cure(found)}"
        )

    def _read(self, fn: Any, rows: int, site: str) -> Tensor:
        check_one_trial(fn, site)  # at all rows, as the first may have one each
        return class_log_probs(fn, rows, site)

    def _mixed(self, log_weights: Tensor, said: Tensor) -> Tensor:
        return mixed_log_probs(log_weights, said)

    def _mixed_apart(self, one: Tensor, two: Tensor) -> float:
        return log_probs_apart(one, two)
