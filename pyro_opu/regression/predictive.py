"""The object that replaces the ``Predictive`` of a regressor: the same call, in one pass."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.checks import check_device
from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.distributions.normal import PredictiveNormal
from pyro_opu.distributions.normal_mixture import RealAnswer
from pyro_opu.guides.normal import regression_guide_from_config
from pyro_opu.outcomes import Real, SiteLayout
from pyro_opu.predictive import InputPicker, OnePassPredictive
from pyro_opu.predictive.drop_in import input_name
from pyro_opu.predictive.student_file import constructor_arguments, read_student, restore_guide
from pyro_opu.teachers.real import RealTeacher
from pyro_opu.utils.printing import averages

__all__ = ["OnePassRegression", "RegressionUncertainty", "regression_drop_in"]


@dataclass(frozen=True, eq=False, repr=False)
class RegressionUncertainty:
    """Mean and variances of y at every input, ``(N,)`` each; ``u["total"]`` works too.

    Attributes:
        mean: Of y, ``(N,)``, in its units.
        total: Variance of y, ``aleatoric + epistemic``, ``(N,)``, in units of y squared, as are
            its parts.
        aleatoric: Mean variance of the noise, ``(N,)``: what remains if the parameters were known.
        epistemic: Variance of the mean between posterior draws, ``(N,)``: what more data would
            take away.
    """

    mean: Tensor
    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor

    def __repr__(self) -> str:
        shape, means = tuple(self.mean.shape), averages(self.to_dict())
        return f"RegressionUncertainty(shape {shape}, means: {means})"

    def keys(self) -> tuple[str, ...]:
        """Names of the fields."""
        return tuple(field.name for field in fields(self))

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.keys():
            raise KeyError(f"no measure {name!r}; there are {', '.join(self.keys())}")
        value: Tensor = getattr(self, name)
        return value

    def to_dict(self) -> dict[str, Tensor]:
        """The fields as a plain dictionary, ``(N,)`` each."""
        return {name: self[name] for name in self.keys()}


class OnePassRegression(OnePassPredictive):
    r"""A drop-in for the :class:`pyro.infer.Predictive` of a regressor, in one forward pass.

    ``fast(x)`` gives the keys, shapes and dtypes of the ``Predictive`` it replaces: S draws of the
    observed site, :math:`f_s \sim q(f \mid x), y_s \sim N(f_s, a(x))`, and the means :math:`f_s`
    where a site that holds them is asked for. Draws are independent between inputs given x: the
    marginals of every input are the teacher's, the covariance between inputs is not.

    Made by :func:`~pyro_opu.distill` or :meth:`load`.

    Args:
        guide: ``x -> PredictiveNormal`` or a mixture of normals, batch shape ``(N,)``.
        input_shape: Shape of one input.
        sites: Layouts of the sites that come back.
        num_samples: S.
        input_name: Keyword under which the input may be passed too.
        inputs: Picks the input from the call's arguments, ``inputs(*args, **kwargs) -> x``; by
            default the first positional argument.
        report: Plain record of how it was distilled.

    Raises:
        ValueError: ``num_samples`` is no positive integer.
    """

    _least_classes = 1

    def __init__(
        self,
        guide: nn.Module,
        input_shape: Sequence[int],
        sites: Sequence[SiteLayout] = (SiteLayout("obs", "value", "float32", (-1,)),),
        num_samples: int = 500,
        *,
        input_name: str | None = None,
        inputs: InputPicker | None = None,
        report: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            guide,
            input_shape,
            1,
            sites,
            num_samples,
            input_name=input_name,
            inputs=inputs,
            report=report,
        )

    def distribution(self, x: Tensor) -> RealAnswer:  # type: ignore[override]
        """The distribution of y at ``x``, one forward pass.

        Args:
            x: Inputs ``(N, *input_shape)``, as of :meth:`OnePassPredictive.distribution`.

        Returns:
            What the guide answers, batch shape ``(N,)``, in units of y; a
            :class:`~pyro_opu.regression.PredictiveNormal` by default, a Pyro normal.

        Raises:
            TypeError: ``x`` is no floating tensor.
            ValueError: ``x`` has another shape than the student was taught with, is on another
                device, or is not finite in the student's dtype.
        """
        answer: RealAnswer = self.guide(self.checked(x))
        return answer

    def normal(self, x: Tensor) -> PredictiveNormal:
        """:meth:`distribution` as one normal, with its Args and Raises.

        Returns:
            A :class:`pyro.distributions.Normal` of y with batch shape ``(N,)``; of a mixture, the
            one with the same mean and the same two variances.
        """
        return self.distribution(x).normal()

    def dirichlet(self, x: Tensor) -> PredictiveDirichlet:
        """Not defined: y has no classes.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            "a regressor's y has no classes, so there is no Dirichlet. Call .normal(x) or "
            ".distribution(x)."
        )

    def uncertainty(self, x: Tensor) -> RegressionUncertainty:  # type: ignore[override]
        """Mean of y and its variance, total = aleatoric + epistemic, ``(N,)`` each.

        Variances are in units of y squared; raises as :meth:`distribution`.
        """
        answer = self.distribution(x)
        aleatoric, epistemic = answer.aleatoric, answer.epistemic
        return RegressionUncertainty(answer.mean, aleatoric + epistemic, aleatoric, epistemic)

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draws from the predictive distribution, called as the ``Predictive`` it replaces.

        Args:
            *args: The model's arguments; the first is the input ``(N, *input_shape)``.
            **kwargs: The model's keyword arguments; only the input is looked at.

        Returns:
            ``{site: (S, ...)}`` with the ``Predictive``'s keys, shapes and dtypes.
        """
        answer = self.distribution(self._input(args, kwargs))
        return Real().sample(answer, self.sites, self.num_samples)

    def kind_of_answer(self) -> dict[str, Any]:
        return {"answer": "real"}

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        guide: nn.Module | None = None,
        inputs: InputPicker | None = None,
        device: torch.device | str | None = None,
    ) -> OnePassRegression:
        """Read a student written by ``save``; ``OnePassPredictive.load`` does too.

        Args:
            path: The file.
            guide: The architecture, for a student whose guide was one of your own.
            inputs: As in the constructor.
            device: Where to put it; the CPU by default.

        Returns:
            The student, with the same answers.

        Raises:
            FileNotFoundError: no such file.
            ValueError: a damaged or foreign file, or of a newer format; no ``guide`` where one is
                needed; one whose parameters do not match.
        """
        target = check_device(device)
        tensors, config = read_student(path)
        if config["answer"] != "real":
            raise ValueError(
                f"`path` must hold a regression student; {os.fspath(path)!r} holds one of classes. "
                "Call OnePassPredictive.load."
            )
        guide = restore_guide(path, tensors, config, guide, regression_guide_from_config)
        shape = config["input_shape"]
        return cls(guide, shape, **constructor_arguments(config), inputs=inputs).to(target)

    def extra_repr(self) -> str:
        names = ", ".join(site.name for site in self.sites)
        return f"input {self.input_shape} -> y, sites [{names}], num_samples={self.num_samples}"


def regression_drop_in(
    guide: nn.Module,
    teacher: RealTeacher,
    x: Tensor,
    sites: Sequence[SiteLayout] | None = None,
    *,
    return_sites: Collection[str] | None = None,
    num_samples: int | None = None,
    inputs: InputPicker | None = None,
    report: dict[str, Any] | None = None,
) -> OnePassRegression:
    """The drop-in for a teacher's source that answers by this guide, frozen from now on.

    Args:
        guide: ``x -> PredictiveNormal`` or a mixture of normals.
        teacher: The teacher.
        x: Inputs ``(N, *input_shape)``; a few rows are looked at.
        sites: Layouts of the sites that come back, where they have been read already.
        return_sites: Else their names; by default those of the ``Predictive``. "mean" asks for
            draws of the mean of y.
        num_samples: S of the answers; by default the ``Predictive``'s.
        inputs: Picks the input from a call's arguments.
        report: Plain record of how the guide was made.

    Returns:
        The drop-in.

    Raises:
        ValueError: a site that one pass cannot give.
    """
    return OnePassRegression(
        guide.requires_grad_(False).eval(),
        x.shape[1:],
        Real().layouts(teacher, x, return_sites) if sites is None else sites,
        teacher.max_draws or teacher.default_draws if num_samples is None else num_samples,
        input_name=input_name(teacher),
        inputs=inputs,
        report=report,
    )
