"""The drawing functions of `torch.distributed.pipelining._schedule_visualizer`, also for the schedules of this package."""

from __future__ import annotations

from typing import Any

from torch.distributed.pipelining import _schedule_visualizer as _reference
from torch.distributed.pipelining.schedules import _Action

from .schedules import get_schedule_class


def get_schedule_ops(schedule: str | type[Any], *args: Any, **kwargs: Any) -> list[list[_Action | None]]:
    """Returns the actions of each rank. Takes the arguments of PyTorch's function."""
    made = get_schedule_class(schedule) if isinstance(schedule, str) else schedule
    found: list[list[_Action | None]] = _reference.get_schedule_ops(made, *args, **kwargs)
    return found

from ._mirror import mirror


def __getattr__(name: str) -> Any:
    return getattr(_reference, name)


mirror(__name__, _reference)
