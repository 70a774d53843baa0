"""The object that replaces ``pyro.infer.Predictive``: the same call, answered in one pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pyro_opu.checks import (
    check_callable,
    check_device,
    check_inputs,
    check_row_shape,
    instance_of,
    positive_int,
    sizes,
)
from pyro_opu.distributions import Answer, SimplexDistribution, as_answer
from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.guides import guide_from_config
from pyro_opu.guides.base import in_dtype_of
from pyro_opu.metrics.uncertainty import Uncertainty, uncertainty
from pyro_opu.outcomes import Classes, SiteLayout
from pyro_opu.predictive.student_file import (
    KIND,
    constructor_arguments,
    read_student,
    restore_guide,
)
from pyro_opu.utils import files

if TYPE_CHECKING:
    from pyro_opu.export.capture import Captured

InputPicker = Callable[..., Tensor]


class OnePassPredictive(nn.Module):
    r"""A drop-in for :class:`pyro.infer.Predictive` that runs one forward pass.

    ``fast(x)`` gives the keys, shapes and dtypes of the ``Predictive`` it replaces: S draws of the
    observed site, :math:`\pi_s \sim \mathrm{Dir}(\alpha(x)), y_s \sim \mathrm{Cat}(\pi_s)`, and the
    :math:`\pi_s` themselves where a site of class probabilities is asked for. Without such a site
    the labels are drawn from the Dirichlet's mean, which has the same distribution. Draws are
    independent between inputs given x: the marginals of every input are the teacher's, the
    covariance between inputs is not.

    Made by :func:`~pyro_opu.distill` or :meth:`load`.

    Args:
        guide: ``x -> Dirichlet`` or another distribution on the simplex
            (:mod:`pyro_opu.distributions`), batch shape ``(N,)``, event shape ``(C,)``.
        input_shape: Shape of one input.
        num_classes: C.
        sites: Layouts of the sites that come back.
        num_samples: S.
        input_name: Keyword under which the input may be passed too.
        inputs: Picks the input from the call's arguments, ``inputs(*args, **kwargs) -> x``; by
            default the first positional argument.
        report: Plain record of how it was distilled.

    Raises:
        TypeError: a part of a wrong type, such as a guide that is not a module.
        ValueError: ``num_samples``, ``num_classes`` or ``input_shape`` no positive integers.
    """

    _least_classes = 2

    def __init__(
        self,
        guide: nn.Module,
        input_shape: Sequence[int],
        num_classes: int,
        sites: Sequence[SiteLayout] = (SiteLayout("obs", "label", "int64", (-1,)),),
        num_samples: int = 500,
        *,
        input_name: str | None = None,
        inputs: InputPicker | None = None,
        report: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.guide = self._checked_parts(guide, sites, input_name, inputs, report)
        self.input_shape = sizes("input_shape", input_shape)
        self.num_classes = positive_int("num_classes", num_classes, self._least_classes)
        self.sites = tuple(sites)
        self.num_samples = positive_int("num_samples", num_samples)
        self.input_name = input_name
        self.inputs = inputs
        self.report = report or {}

    @staticmethod
    def _checked_parts(
        guide: Any, sites: Any, input_name: Any, inputs: Any, report: Any
    ) -> nn.Module:
        """The guide, if it is a module and all else is of its type."""
        advice = "Build one with PredictiveGuide.for_inputs(x, num_classes), or call distill."
        instance_of("guide", guide, nn.Module, "an nn.Module x -> Dirichlet", advice)
        for name, value, kind, example in (
            (
                "sites",
                sites,
                Sequence,
                'a list such as [SiteLayout("obs", "label", "int64", (-1,))]',
            ),
            ("input_name", input_name, (str, type(None)), "the name of a parameter, or None"),
            ("report", report, (dict, type(None)), "a dict, or None"),
        ):
            wrong = isinstance(value, str) and name == "sites"
            if wrong or not isinstance(value, kind):
                raise TypeError(f"`{name}` must be {example}; got {value!r}.")
        if not all(isinstance(site, SiteLayout) for site in sites):
            raise TypeError(f"`sites` must hold objects of type SiteLayout; got {sites!r}.")
        if inputs is not None:
            check_callable("inputs", inputs, "(*args, **kwargs) -> x")
        return guide

    def distribution(self, x: Tensor) -> Answer:
        """The distribution of class probabilities at ``x``, one forward pass.

        Args:
            x: Inputs ``(N, *input_shape)``, floating, finite in the student's dtype, where the
                student is. They are rounded to its dtype after a guide of this package has
                subtracted the mean of its transfer inputs, else before: ask in float64 where
                float32 has no digits left, as for time stamps.

        Returns:
            What the guide answers, batch shape ``(N,)``, event shape ``(C,)``; a
            :class:`pyro.distributions.Dirichlet` by default.

        Raises:
            TypeError: ``x`` is no floating tensor.
            ValueError: ``x`` has another shape than the student was taught with, is on another
                device, or is not finite in the student's dtype.
        """
        answer = as_answer(self.guide(self.checked(x)))
        if answer.event_shape != (self.num_classes,):
            raise ValueError(
                f"`guide` must answer with {self.num_classes} classes, as `num_classes` says; got "
                f"{tuple(answer.event_shape)}. Build the student with the guide's own number."
            )
        return answer

    def checked(self, x: Tensor) -> Tensor:
        """Inputs ``(N, *input_shape)`` in the dtype that the guide takes.

        Raises:
            TypeError: as :meth:`distribution`.
            ValueError: as :meth:`distribution`.
        """
        weight = next(self.guide.parameters(), x)
        check_inputs(x, dtype=getattr(weight, "dtype", None))
        advice = "Reshape it, or distill a student for such inputs."
        check_row_shape("x", x, self.input_shape, advice)
        if x.device != weight.device:
            raise ValueError(
                f"`x` must be on {weight.device}, where the student is; got {x.device}. Move one "
                "of them with .to(device)."
            )
        return x if x.dtype == weight.dtype else in_dtype_of(self.guide, x)

    def dirichlet(self, x: Tensor) -> PredictiveDirichlet:
        """:meth:`distribution` as a Dirichlet, with its Args and Raises.

        Returns:
            A :class:`pyro.distributions.Dirichlet` with batch shape ``(N,)``, event shape ``(C,)``;
            of a guide that answers otherwise, the one with the same mean and summed variance.
        """
        answer = self.distribution(x)
        return answer.matched_dirichlet() if isinstance(answer, SimplexDistribution) else answer

    def uncertainty(self, x: Tensor) -> Uncertainty:
        """Total = aleatoric + epistemic uncertainty and the other measures, ``(N,)`` each, in nats.

        See :func:`pyro_opu.uncertainty`; raises as :meth:`distribution`.
        """
        return uncertainty(self.distribution(x))

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
        return Classes(self.num_classes).sample(answer, self.sites, self.num_samples)

    def call(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        """The values of :meth:`forward` as a tuple sorted by site, as in ``Predictive.call``."""
        return tuple(value for _, value in sorted(self(*args, **kwargs).items()))

    def _input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        if self.inputs is not None:
            return self.inputs(*args, **kwargs)
        if args:
            return args[0]
        if self.input_name in kwargs:
            return kwargs[self.input_name]
        raise TypeError(
            "`x`, the input, must be the first positional argument"
            + (f" or the keyword '{self.input_name}'" if self.input_name else "")
            + f"; got keywords {sorted(kwargs)}. For a model called otherwise distill with "
            "inputs=lambda *args, **kwargs: ... that picks the input."
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the student to one safetensors file with its configuration as text; no pickle.

        Any number of threads and processes may write and read one path: a reader meets one whole
        file. The file has a format version and a checksum, reaches the disc before it takes its
        place, and keeps the permissions, and the symbolic link, of a file that was there.

        A guide of this package is described in the file; for one of your own pass the same
        architecture to :meth:`load`. ``inputs`` is a function and is not saved.

        Args:
            path: Written aside and moved into place.

        Raises:
            FileNotFoundError: its folder does not exist.
            ValueError: ``path`` is a folder or a device.
        """
        config = {
            **self.kind_of_answer(),
            "input_shape": self.input_shape,
            "num_samples": self.num_samples,
            "input_name": self.input_name,
            "sites": [asdict(site) for site in self.sites],
            "guide": getattr(self.guide, "config", None),
            "report": self.report,
        }
        files.write(path, KIND, self.guide.state_dict(), config)

    def kind_of_answer(self) -> dict[str, Any]:
        """What a file says of the answers; the constructor's own arguments are added."""
        return {"num_classes": self.num_classes}

    def export(
        self,
        path: str | os.PathLike[str],
        example_x: Tensor | None = None,
        *,
        outputs: Sequence[str] | None = None,
    ) -> None:
        """Write a program x -> mean, concentration, uncertainties that needs no Pyro: ONNX or .pt2.

        See :func:`pyro_opu.export.export`. Reading a ``.pt2`` runs pickle, by torch's doing.
        """
        from pyro_opu.export import export  # built on this module

        export(self, path, example_x, outputs=outputs)

    def capture(self, example: Tensor, *, precision: torch.dtype | None = None) -> Captured:
        """:meth:`dirichlet` as a CUDA graph, or on the CPU compiled: ``captured(x)``.

        See :func:`pyro_opu.export.capture.capture`.
        """
        from pyro_opu.export.capture import capture  # built on this module

        return capture(self, example, precision=precision)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        guide: nn.Module | None = None,
        inputs: InputPicker | None = None,
        device: torch.device | str | None = None,
    ) -> OnePassPredictive:
        """Read a student written by :meth:`save`.

        A file with a single other bit than was written is refused, and so is one whose description
        and tensors do not belong together, before memory is taken for what it claims. Files of
        0.1.0 have no checksum; they are read without.

        Args:
            path: The file.
            guide: The architecture, for a student whose guide was not the default one.
            inputs: As in the constructor.
            device: Where to put it; the CPU by default.

        Returns:
            The student, with the same answers.

        Raises:
            FileNotFoundError: no such file.
            ValueError: a damaged or foreign file, or of a newer format; no ``guide`` where one is
                needed; one whose number of classes or parameters do not match.
        """
        target = check_device(device)
        tensors, config = read_student(path)
        if config["answer"] == "real":
            from pyro_opu.regression import OnePassRegression  # built on this module

            return OnePassRegression.load(path, guide=guide, inputs=inputs, device=device)
        guide = restore_guide(path, tensors, config, guide, guide_from_config)
        shape, classes = config["input_shape"], config["num_classes"]
        return cls(guide, shape, classes, **constructor_arguments(config), inputs=inputs).to(target)

    def extra_repr(self) -> str:
        names = ", ".join(site.name for site in self.sites)
        return (
            f"input {self.input_shape} -> {self.num_classes} classes, sites [{names}], "
            f"num_samples={self.num_samples}"
        )
