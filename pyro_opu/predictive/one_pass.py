"""The object that replaces ``pyro.infer.Predictive``: the same call, answered in one pass."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pyro_opu.checks import (
    ArgumentError,
    ArgumentTypeError,
    check_bool,
    check_device,
    check_path,
    check_row_shape,
    instance_of,
    positive_int,
    sizes,
)
from pyro_opu.distributions import Answer, PredictiveDirichlet, PredictiveNormal, as_answer
from pyro_opu.export import export
from pyro_opu.export.capture import Captured, capture
from pyro_opu.guides.base import first_weight, in_dtype_of
from pyro_opu.guides.fused import fused
from pyro_opu.guides.joint import JointGuide
from pyro_opu.inputs import PLAIN, Form, InputLike
from pyro_opu.parts import JointDraws, Outcome, SiteLayout
from pyro_opu.predictive.distillation_report import DistillationReport
from pyro_opu.predictive.folder import file_of, is_folder, model_card, write_student
from pyro_opu.predictive.like_predictive import InputPicker, LikePredictive
from pyro_opu.predictive.like_teacher import LikeTeacher
from pyro_opu.predictive.student_file import (
    check_parts,
    describe,
    read_student,
    restore_guide,
    restore_novelty,
    tensors_of,
)
from pyro_opu.predictive.with_bound import WithBound
from pyro_opu.predictive.with_hub import WithHub
from pyro_opu.predictive.with_novelty import WithNovelty
from pyro_opu.predictive.with_watch import WithWatch
from pyro_opu.rng import full_precision, preserve_rng
from pyro_opu.utils.printing import Printed

__all__ = ["InputPicker", "OnePassPredictive"]

#: What ``dir`` shows of ``nn.Module``.
OF_MODULE = {"cpu", "cuda", "double", "eval", "float", "parameters", "state_dict", "to", "train"}
_RESHAPE = "Reshape it, or distill a student for such inputs."


class OnePassPredictive(
    Printed, WithHub, WithNovelty, WithBound, WithWatch, LikeTeacher, LikePredictive
):
    r"""A drop-in for :class:`pyro.infer.Predictive` that runs one forward pass.

    ``fast(x)`` gives the keys, shapes and dtypes of the ``Predictive`` it replaces: S draws of the
    observed site, :math:`\pi_s \sim \mathrm{Dir}(\alpha(x)), y_s \sim \mathrm{Cat}(\pi_s)`, and the
    :math:`\pi_s` where a site of class probabilities is asked for (otherwise labels are drawn from
    the Dirichlet's mean, to the same effect). For a real y they are
    :math:`f_s \sim q(f \mid x), y_s \sim N(f_s, a(x))`, and the means :math:`f_s` where asked for.
    Draws are independent between inputs given x, and between the numbers of a row: the marginals
    are the teacher's, the covariances are not; unless the student is :attr:`joint`, or its guide
    "implicit".

    Made by :func:`~pyro_opu.distill` or :meth:`load`.

    Args:
        guide: ``x -> Dirichlet`` or another answer (:mod:`pyro_opu.distributions`), batch shape
            ``(N,)``, event shape ``(C,)``, or ``()`` for a real y.
        input_shape: Shape of one input.
        outcome: What is observed: a number of classes C, or an :class:`~pyro_opu.parts.Outcome`.
        sites: Layouts of the sites that come back; by default the observed ones.
        num_samples: S.
        arguments: Names of the arguments that a call may have by keyword, the input's first;
            ``"**"`` among them stands for any.
        inputs: Picks the input from the call's arguments, ``inputs(*args, **kwargs) -> x``; by
            default the first positional argument.
        form: The form of several inputs, of indices or of a tensor ``(N,)``; ``input_shape`` is
            then that of the packed ones, ``(D,)``.
        report: Plain record of how it was distilled; ``print`` shows seven lines of it.

    Raises:
        TypeError: a part of a wrong type, such as a guide that is not a module.
        ValueError: ``num_samples``, ``outcome`` or ``input_shape`` not positive integers.
    """

    def __init__(
        self,
        guide: nn.Module,
        input_shape: Sequence[int],
        outcome: Outcome | int,
        sites: Sequence[SiteLayout] | None = None,
        num_samples: int = 500,
        *,
        arguments: Sequence[str] = (),
        inputs: InputPicker | None = None,
        form: Form = PLAIN,
        report: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__()
        self.outcome = outcome if isinstance(outcome, Outcome) else Outcome.of_classes(outcome)
        sites = self.outcome.layouts_of_obs("float32") if sites is None else sites
        check_parts(guide, sites, arguments, inputs, report)
        self.guide = guide
        self.input_shape = sizes("input_shape", input_shape)
        self.sites = tuple(sites)
        self.num_samples = positive_int("num_samples", num_samples)
        self.arguments = tuple(arguments)
        self.inputs = inputs
        self.form = form
        self.report = DistillationReport(report or {})
        self.detector, self.watched = None, None

    @property
    def num_classes(self) -> int | None:
        """C; ``None`` where no single label is observed."""
        return self.outcome.num_classes

    def distribution(self, x: InputLike) -> Any:
        """The distribution of class probabilities, or of y, at ``x``; one forward pass.

        For several numbers of a row, the answer of their site, batch shape ``(N, *shape)``, such as
        a :class:`~pyro_opu.distributions.PredictiveCount`; of several sites a dict of these.

        Args:
            x: Inputs ``(N, *input_shape)``, floating, on the student's device, finite in its dtype.
                A guide of this package subtracts the mean of its transfer inputs before it rounds
                to that dtype, so pass float64 where float32 has too few digits (time stamps).

        Returns:
            What the guide answers, batch shape ``(N,)``: by default a
            :class:`pyro.distributions.Dirichlet`, for a real y a
            :class:`~pyro_opu.distributions.normal.PredictiveNormal`, which is a Pyro normal.

        Raises:
            TypeError: ``x`` is not a floating tensor.
            ValueError: ``x`` has another shape, device or range of values.
        """
        return self._shown(self.answer(x))

    def _shown(self, answer: Answer) -> Any:
        return self.outcome.shown(self.outcome.by_site(answer))

    def answer(self, x: InputLike) -> Any:
        """What the guide answers at ``x``, checked; :meth:`distribution` shows it."""
        return self._answer(self._checked(x))

    def _checked(self, x: InputLike) -> Tensor:
        """Inputs as the guide takes them."""
        weight = first_weight(self.guide)
        dtype = None if weight is None else weight.dtype
        x = self.form.pack(x, check_seen=True, dtype=dtype)
        check_row_shape("x", x, self.input_shape, _RESHAPE)
        if weight is not None and x.device != weight.device:
            raise ArgumentError(
                f"`x` must be on {weight.device}, where the student is; got {x.device}. Move one "
                "of them with .to(device)."
            )
        return x if x.dtype == dtype else in_dtype_of(self.guide, x)

    @full_precision()
    def _answer(self, x: Tensor) -> Any:
        return self._of_outcome(as_answer(self.guide(x)))

    def _of_outcome(self, answer: Answer) -> Any:
        if answer.event_shape != self.outcome.event_shape:
            raise ArgumentError(
                f"`guide` must answer with event shape {self.outcome.event_shape}, that of "
                f"{self.outcome}; got {tuple(answer.event_shape)}. Build the student with the "
                "guide's own `outcome`."
            )
        return answer

    def dirichlet(self, x: InputLike) -> Any:
        """:meth:`distribution` as a Dirichlet, batch shape ``(N,)``, event shape ``(C,)``.

        For a guide of another family, the one with the same mean and summed variance; of several
        sites, a dict of those that are labels.
        """
        return self._matched(x, PredictiveDirichlet, "dirichlet")

    def normal(self, x: InputLike) -> Any:
        """:meth:`distribution` of a real y as one normal, batch shape ``(N,)``.

        For a mixture, the normal with the same mean and the same two variances; of several sites, a
        dict of those that are real.
        """
        return self._matched(x, PredictiveNormal, "normal")

    @full_precision()
    def _matched(self, x: InputLike, kind: type, method: str) -> Any:
        """The answers with the moments of this kind, by site where there are several."""
        by_site = self.outcome.by_site(self.answer(x))
        matched = {name: each.matched() for name, each in by_site.items()}
        found = {name: each for name, each in matched.items() if isinstance(each, kind)}
        if not found:
            wanted = "class labels" if kind is PredictiveDirichlet else "real numbers"
            raise ArgumentTypeError(
                f"`{method}` needs a site of {wanted}; the student has {self.outcome}. Call "
                ".distribution(x)."
            )
        return self.outcome.shown(found)

    def uncertainty(self, x: InputLike) -> Any:
        """Total = aleatoric + epistemic uncertainty and the other measures, ``(N, *shape)`` each.

        See :func:`pyro_opu.uncertainty`; for a real y or a count mean and variances. Beside them
        stands the :meth:`novelty` ``(N,)`` of the inputs, which is none of the posterior. Where
        there are several sites, a dict of these.

        The pass is made at once, block by block; a field is computed when it is first read.
        """
        return self.outcome.shown(self._tables(self._checked(x)))

    @torch.no_grad()
    @full_precision()
    def forward(self, *args: object, **kwargs: object) -> dict[str, Tensor]:
        """Draw from the predictive distribution, called as the ``Predictive`` it replaces.

        Only the input ``(N, *input_shape)`` of the model's arguments is looked at: where labels
        are given too, they are drawn all the same, which a ``Predictive`` would repeat. Returns
        ``{site: (S, ...)}`` with the ``Predictive``'s keys, shapes and dtypes.
        """
        x = self._checked(self._input(args, kwargs))
        return self._sampled(x, None if self.joint else self._answer(x))

    def _sampled(self, x: Tensor, answer: Any) -> dict[str, Tensor]:
        """Draws of the sites by the answer at checked inputs; a joint student has its own."""
        if isinstance(self.guide, JointGuide):
            answer = JointDraws(self.outcome.one, self.guide.draws(x))
        return self.outcome.sample(answer, self.sites, self.num_samples)

    def save(
        self, path: str | os.PathLike[str], *, card: str | None = None, overwrite: bool = False
    ) -> None:
        """Write the student to one safetensors file with its configuration as text; no pickle.

        A ``path`` that is a folder, or ends as one, gets that file, its description and a model
        card, in the layout that model hubs read; ``card`` is the text of the latter, by default
        :func:`~pyro_opu.predictive.folder.model_card` of this student.

        The file has a checksum, replaces an older student's atomically, and keeps its permissions
        and symbolic link. Files that are no student's are replaced with ``overwrite=True`` alone.
        For a guide of your own pass the architecture to :meth:`load`; ``inputs`` is a function and
        is not saved.

        Raises:
            FileNotFoundError: its folder does not exist.
            ValueError: ``path`` is a device, or holds what is no student's; a student that
                :meth:`fuse` made; a ``card`` for one file.
        """
        check_bool("overwrite", overwrite)
        if instance_of("card", card, (str, type(None)), "text, or None") and not is_folder(path):
            raise ArgumentError(
                f"`card` needs a folder; {os.fspath(path)!r} is one file. Add a slash at its end."
            )
        text = model_card(self) if card is None else card
        write_student(path, tensors_of(self), describe(self), text, overwrite=overwrite)

    def fuse(self) -> OnePassPredictive:
        """The same student in fewer operations: a frozen copy, the same answers to rounding.

        The first layer of a default network standardises, unless that would lose digits (inputs
        more than 16 deviations from zero, such as time stamps) or it pads with zeros. Mean and
        concentration of a :class:`~pyro_opu.PredictiveGuide` come from one head, recalibrated. What
        cannot be merged stays. :meth:`capture` and :meth:`export` do this by themselves. Keep this
        student to save it: merged weights are not written.

        Example:
            >>> from pyro_opu import PredictiveGuide
            >>> x = torch.randn(9, 4)
            >>> fast = OnePassPredictive(PredictiveGuide.for_inputs(x, 3), (4,), 3)
            >>> torch.allclose(fast.fuse().dirichlet(x).mean, fast.dirichlet(x).mean)
            True
        """
        quicker: OnePassPredictive = copy.deepcopy(self, {id(self.guide): fused(self.guide)})
        return quicker

    def export(
        self,
        path: str | os.PathLike[str],
        example_x: Tensor | None = None,
        *,
        outputs: Sequence[str] | str | None = None,
    ) -> None:
        """Write a program x -> mean, concentration, epistemic that needs no Pyro: ONNX or .pt2.

        See :func:`pyro_opu.export.export`: ``outputs="all"`` are all measures and novelty, and a
        list those that it names. ``example_x`` is zeros by default.
        """
        if example_x is None:
            weight = next(self.guide.parameters(), torch.empty(0))
            example_x = self.form.example(self.input_shape).to(weight.dtype)
        example_x = self.form.pack(example_x, "example_x", check_seen=True)
        check_row_shape("example_x", example_x, self.input_shape, _RESHAPE)
        names = [site.name for site in self.sites]
        one = self.outcome.single
        beside: dict[str, Any] = {"sites": names, "form": self.form, "novelty": self.detector}
        beside |= {"said": self.bounds_by_level(), "bound": self.bound() if one else None}
        export(self.guide, path, example_x, outputs=outputs, **beside)

    def capture(self, example: Tensor, *, precision: torch.dtype | None = None) -> Captured:
        """:meth:`distribution` as a CUDA graph, or on the CPU compiled.

        See :func:`pyro_opu.export.capture.capture`.
        """
        with preserve_rng(), torch.no_grad():
            self.distribution(example)  # refuses what the student refuses
        captured = capture(self.guide, self.form.pack(example), precision=precision)
        captured.form, captured.then = self.form, self._shown
        return captured

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        guide: nn.Module | None = None,
        inputs: InputPicker | None = None,
        device: torch.device | str | None = None,
    ) -> OnePassPredictive:
        """Read a student written by :meth:`save`; a file is refused where a single bit has changed.

        Args:
            path: The file, or a folder that :meth:`save` wrote.
            guide: The architecture, for a student whose guide was one of your own.
            inputs: As in the constructor.
            device: By default the CPU.

        Raises:
            FileNotFoundError: no such file.
            ValueError: a damaged or foreign file, or of another format; a ``guide`` that is missing
                or does not match.
        """
        target, path = check_device(device), file_of(check_path("path", path))
        tensors, config = read_student(path)
        detector = restore_novelty(path, tensors, config)
        guide = restore_guide(path, tensors, config, guide)
        del config["novelty"]
        student = cls(**{**config, "guide": guide}, inputs=inputs)
        student.detector = detector
        return student.to(target)

    def __dir__(self) -> list[str]:
        """Its own names, and those of ``nn.Module`` that a user of a student needs."""
        hidden = {name for name in dir(nn.Module) if not name.startswith("_")} - OF_MODULE
        return [name for name in super().__dir__() if name not in hidden]

    def _printed(self) -> str:
        return f"{type(self).__name__}: {self.extra_repr()}\n{self.report._printed()}"

    def extra_repr(self) -> str:
        names = ", ".join(site.name for site in self.sites)
        return (
            f"input {self.input_shape} -> {self.outcome}, sites [{names}], "
            f"num_samples={self.num_samples}"
        )
