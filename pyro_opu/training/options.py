"""Settings of a distillation that hardly anyone needs."""

from __future__ import annotations

from dataclasses import dataclass

from pyro_opu.checks import ArgumentError, check_bool, positive_float, positive_int

__all__ = ["Training"]


@dataclass(frozen=True)
class Training:
    """How a student is trained; the default is what :func:`~pyro_opu.distill` does by itself.

    Args:
        num_steps: As in :func:`~pyro_opu.distill`, where it may be said instead.
        batch_size: Inputs per batch, of all ranks together. By default 256, or 1,024 where the
            default student has more than 2^18 weights, and then four times the labelled inputs.
        num_draws: Teacher's draws per input and step (all of a smaller posterior). By default 32,
            and in the warm start as many more, up to all, as cost little: all 500 of a logistic
            regression of two classes, 32 of a network. 1 is for a teacher whose queries cost much,
            a simulator or a language model: it is asked for one draw at a time, at each of half as
            many inputs twice (``training/plan.py``); as many queries judge as are 15 % of those
            that teach; and neither g is recalibrated nor memorization of the rows looked for. From
            2 to 31 are drawn anew at every step where there are more than 2^18 weights, which would
            learn the luck of labels that come again; it takes longer.
        learning_rate: Adam's at the top of the first phase's schedule. By default 4e-3 where no
            layer is wider than 256 units, otherwise 1.024 over the width of the widest.
        warm_start: False starts the objective from scratch, at ``learning_rate``.
        recalibrate: Choose the family at the end, and shift g towards the teacher's mean mutual
            information, as far as that lowers the energy distance over the transfer inputs. False
            stays with the Dirichlet, and the teacher's variance: ``fast.report["recalibration"]``.
        evaluate_every: Steps between evaluations.

    Raises:
        TypeError, ValueError: an argument of a wrong type or value.

    Example:
        >>> from pyro_opu import Training
        >>> Training(num_draws=8, evaluate_every=50).num_draws
        8
    """

    num_steps: int | None = None
    batch_size: int | None = None
    num_draws: int | None = None
    learning_rate: float | None = None
    warm_start: bool = True
    recalibrate: bool = True
    evaluate_every: int = 100

    def __post_init__(self) -> None:
        for name in ("num_steps", "batch_size", "num_draws"):
            if (value := getattr(self, name)) is not None:
                positive_int(name, value)
        if self.learning_rate is not None:
            positive_float("learning_rate", self.learning_rate)
        check_bool("warm_start", self.warm_start)
        check_bool("recalibrate", self.recalibrate)
        positive_int("evaluate_every", self.evaluate_every)

    def steps(self, num_steps: int | None) -> int | None:
        """The steps that are asked for, here or by this argument of ``distill``.

        Raises:
            ValueError: both are, and differ.
        """
        if None not in (num_steps, self.num_steps) and num_steps != self.num_steps:
            raise ArgumentError(
                f"`num_steps` must be said once; got {num_steps} and {self.num_steps} in "
                "`training`. Leave one of them out."
            )
        return self.num_steps if num_steps is None else num_steps
