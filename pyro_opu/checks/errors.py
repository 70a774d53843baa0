"""Errors of the package's own, by which code tells them from those of a user's functions."""

from __future__ import annotations


class ArgumentError(ValueError):
    """An argument that cannot be taken; the message names it, what was expected and what came.

    Attributes:
        located: Whether the message says at which call of a teacher it was raised.
    """

    def __init__(self, message: str, *, located: bool = False) -> None:
        super().__init__(message)
        self.located = located


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument of another type than is taken."""


class ArgumentCallError(ArgumentError, RuntimeError):
    """A function given as an argument, or a model of one, that raised an error when called."""
