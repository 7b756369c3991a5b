"""The errors that Penstock raises.

All of them derive from `Error`. They mirror the classes of the C++ library. Where Python has a built-in class for the
same kind of failure, they derive from it too: an invalid argument is a `UsageError` and a `ValueError`.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from typing import Any, TypeVar

_E = TypeVar("_E", bound="Error")


@dataclass(frozen=True)
class ErrorContext:
    """Where an error occurred. Unknown fields are None."""

    rank: int | None = None
    stage: int | None = None
    microbatch: int | None = None
    action: str | None = None
    """The text of the action, for example `2F0`."""
    tensor: str | None = None
    """The path of the tensor in its tree, for example `args[0].mask`."""
    op: str | None = None
    """An operator or a collective."""

    def __str__(self) -> str:
        fields = ("rank", "stage", "microbatch", "action", "tensor", "op")
        values = ((name, getattr(self, name)) for name in fields)
        return ", ".join(f"{name} {value}" for name, value in values if value is not None)


class Error(Exception):
    """Base class of all errors. The text of the exception contains message, context and hint."""

    message: str
    """What went wrong."""
    context: ErrorContext
    """Where it went wrong."""
    hint: str
    """How to fix it; empty if that is unknown."""

    def __init__(self, message: str, context: ErrorContext | None = None, hint: str = "") -> None:
        super().__init__(message)  # only one argument: OSError would take more as errno and file name
        self.message = message
        self.context = context or ErrorContext()
        self.hint = hint

    @classmethod
    def _from_library(
        cls: type[_E], message: str, context: ErrorContext, hint: str, attributes: dict[str, Any]
    ) -> _E:
        error = cls(message, context, hint)
        for name, value in attributes.items():
            setattr(error, name, value)
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.context, self.hint), self.__dict__

    def __str__(self) -> str:
        where = str(self.context)
        return self.message + (f" ({where})" if where else "") + (f"\nhint: {self.hint}" if self.hint else "")


class UsageError(Error, ValueError):
    """An invalid argument, an unsupported count, or a call in the wrong order."""


class ParseError(Error, ValueError):
    """Text or a file that cannot be parsed. The message contains the position."""


class ScheduleError(Error, ValueError):
    """A schedule or program that the validator rejected. The message contains its findings."""


class ShapeError(Error, ValueError):
    """A tensor with an unexpected shape, strides or dtype."""


class StorageError(Error, OSError):
    """The operating system refused to read or write a file. `errno` is the error number."""

    def __reduce__(self) -> tuple[Any, ...]:
        # OSError does not keep errno in __dict__.
        return type(self), (self.message, self.context, self.hint), {**self.__dict__, "errno": self.errno}


class CheckpointError(Error, RuntimeError):
    """A checkpoint is incomplete or damaged, or lacks requested tensors."""


class OperatorError(Error, RuntimeError):
    """An operator of a graph or an exported module failed in libtorch."""


class StageError(Error, RuntimeError):
    """A module, a loss or a hook raised an exception while an action ran. The context names the action."""


class RunError(Error, RuntimeError):
    """A step of a training run failed. `step` is its number."""

    step: int


class CommError(Error, RuntimeError):
    """A communication failure: setup, a missing backend, the store, or one of the more specific errors below."""


class TimeoutError(CommError, builtins.TimeoutError):
    """A wait timed out. The message says who waited for whom, for what, and since when."""


class PeerFailed(CommError):
    """Another rank crashed, raised an exception or was killed."""

    peer: int
    """The rank that failed."""
    cause: str
    """The error message or exit status of that rank."""


__all__ = [
    "CheckpointError",
    "CommError",
    "Error",
    "ErrorContext",
    "OperatorError",
    "ParseError",
    "PeerFailed",
    "RunError",
    "ScheduleError",
    "ShapeError",
    "StageError",
    "StorageError",
    "TimeoutError",
    "UsageError",
]
