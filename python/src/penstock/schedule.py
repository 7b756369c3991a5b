"""Pipeline schedules: generate, lower, validate, read and write them. Does not need torch.

>>> from penstock import schedule
>>> one = schedule.generate("1F1B", ranks=2, microbatches=3)
>>> [str(action) for action in one.table[0]]
['0F0', '0F1', '0B0', '0F2', '0B1', '0B2']
>>> one.lower(send_mode="ordered").send_mode
'ordered'

Names of schedules, texts of actions and CSV files are those of `torch.distributed.pipelining`. Stages, ranks and
microbatches are counted from 0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from penstock import _plan
from penstock._plan import Action, Program, Schedule

SendMode = Literal["buffered", "ordered", "blocking"]
"""When a send completes: without waiting for its receive (gloo), in program order with it (nccl), or blocking."""

Table = Sequence[Sequence["Action | str | None"]]
"""One row per rank of actions or their texts; an idle slot is None or an empty text."""

StagePair = tuple[int, int]
"""Two stages: the one that produces a value and the one that uses it."""


@dataclass(frozen=True)
class ScheduleInfo:
    """The properties of a built-in schedule."""

    name: str
    summary: str
    placement: Literal["loop", "v"]
    """How stages are assigned to ranks: round-robin, or in alternating directions."""
    default_stages_per_rank: int
    only_stages_per_rank: int | None
    """Set if the schedule is defined only for this number of stages per rank."""
    splits_backward: bool
    """Whether it uses I and W instead of B."""
    has_backward: bool


@dataclass(frozen=True)
class Diagnostic:
    """One finding of the validator."""

    severity: Literal["note", "warning", "error"]
    where: str
    """The location, such as `rank 1, step 4` or `row 2, column 5`."""
    message: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.where}: {self.message}" if self.where else f"{self.severity}: {self.message}"


@dataclass(frozen=True)
class Verdict:
    """The result of a validation."""

    findings: tuple[Diagnostic, ...]
    """Problems in every send mode."""
    by_mode: Mapping[str, tuple[Diagnostic, ...]]
    """Problems in one send mode, such as the cycle of a deadlock; only the modes that were checked."""
    peak_in_flight: tuple[int, ...]
    """Per stage: the maximum number of microbatches whose forward pass is done and whose backward pass is not."""
    peak_in_flight_of_rank: tuple[int, ...]
    """Per rank: the maximum of the sum over its stages."""

    @property
    def valid(self) -> bool:
        """Whether there are no errors that apply to every send mode. Lowered rows can still deadlock: see `safe`."""
        return not _has_errors(self.findings)

    def safe(self, send_mode: SendMode) -> bool:
        """Whether the rows run to completion on a transport of this send mode, which must have been checked."""
        return self.valid and not _has_errors(self.by_mode[send_mode])

    def __str__(self) -> str:
        findings = [*self.findings, *(one for mode in self.by_mode.values() for one in mode)]
        return "\n".join(dict.fromkeys(map(str, findings))) or "no problems"


def _has_errors(findings: tuple[Diagnostic, ...]) -> bool:
    return any(one.severity == "error" for one in findings)


def infos() -> list[ScheduleInfo]:
    """The properties of all built-in schedules."""
    return _plan.infos()


def names() -> list[str]:
    """The names of all built-in schedules."""
    return [info.name for info in infos()]


def generate(name: str, *, ranks: int, microbatches: int, stages_per_rank: int | None = None) -> Schedule:
    """Generates a built-in schedule.

    `name` is one of `names()`, in any case. By default there are two stages per rank for V-shaped schedules and one
    for the others. Raises UsageError if the name is unknown or the schedule is not defined for these counts.
    `penstock.plan.auto` generates a schedule for given costs.
    """
    return _plan.generate(name, ranks, microbatches, stages_per_rank)


def generate_rank(
    name: str, rank: int, *, ranks: int, microbatches: int, stages_per_rank: int | None = None
) -> list[Action | None]:
    """Generates the row of one rank, without the other rows if the schedule allows it."""
    return _plan.generate_rank(name, rank, ranks, microbatches, stages_per_rank)


def validate(
    subject: Schedule | Program | Table,
    *,
    send_mode: SendMode | None = None,
    max_in_flight: int | None = None,
    skips: Sequence[StagePair] = (),
) -> Verdict:
    """Checks a schedule, a program, or rows of actions, and returns every problem that it finds.

    Rows that contain a transfer or a stage action are validated as lowered rows. By default, all send modes are
    checked. `max_in_flight` limits the number of microbatches in flight per rank. `skips` are the pairs of stages
    between which values skip other stages; a program knows its own.
    """
    return _plan.validate(subject, send_mode, max_in_flight, list(skips))


def read_csv(
    path: str | os.PathLike[str],
    *,
    microbatches: int | None = None,
    skips: Sequence[StagePair] = (),
    send_mode: SendMode = "buffered",
) -> Schedule | Program:
    """Reads a schedule file, as `write_csv` and `torch.distributed.pipelining` write it.

    A file of computations is a Schedule, which is not validated. A file with transfers or stage actions is a
    Program, which is validated for the send mode. `microbatches` is by default one more than the highest one in the
    file. Raises ParseError if a field cannot be read and ScheduleError if a program is not valid.
    """
    return _plan.read_csv(os.fspath(path), microbatches, list(skips), send_mode)


__all__ = [
    "Action",
    "Diagnostic",
    "Program",
    "Schedule",
    "ScheduleInfo",
    "SendMode",
    "StagePair",
    "Table",
    "Verdict",
    "generate",
    "generate_rank",
    "infos",
    "names",
    "read_csv",
    "validate",
]
