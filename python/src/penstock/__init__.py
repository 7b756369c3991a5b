"""Penstock: pipeline parallel training for PyTorch.

`penstock.schedule`, `penstock.plan` and `penstock.view` do not need torch: they generate, validate, simulate, plan and
draw pipeline schedules. `penstock.pipelining` runs them.
"""

from __future__ import annotations

from penstock import _plan, plan, schedule, view
from penstock.errors import (
    CheckpointError,
    CommError,
    Error,
    ErrorContext,
    OperatorError,
    ParseError,
    PeerFailed,
    RunError,
    ScheduleError,
    ShapeError,
    StageError,
    StorageError,
    TimeoutError,
    UsageError,
)

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
    "plan",
    "schedule",
    "view",
]

__version__: str = _plan.version()
"""The version of the package and of the C++ library in it."""
