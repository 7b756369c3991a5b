"""Actions of tables as text, and tables slot by slot."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from typing import Any

from torch.distributed.pipelining import schedules as _reference
from torch.distributed.pipelining.schedules import REDUCE_GRAD, RESHARD, UNSHARD, _Action

_OVERLAP = re.compile(r"\((?P<forward>[^;()]+);(?P<backward>[^;()]+)\)OVERLAP_F_B")
_PLAIN = re.compile(
    r"(?P<stage>\d+)(?:(?P<compute>SEND_F|RECV_F|SEND_B|RECV_B|F|I|B|W)(?P<microbatch>\d+)"
    r"|(?P<whole>UNSHARD|RESHARD|REDUCE_GRAD))"
)


def check_file(filename: str) -> None:
    """Refuses a file with a field that is not exactly an action. PyTorch reads as much of it as it understands."""
    with open(filename, newline="") as file:
        for row in csv.reader(file):
            for field in row:
                check_text(field)


def check_text(text: str) -> None:
    stripped = text.strip()
    overlap = _OVERLAP.fullmatch(stripped)
    parts = (overlap["forward"], overlap["backward"]) if overlap is not None else (stripped,)
    for part in parts:
        if part and _PLAIN.fullmatch(part.strip()) is None:
            _Action.from_str(part)  # raises, unless the text only starts like an action
            raise RuntimeError(f"Invalid action string: {text!r} does not end after the action")


def actions_of(row: list[Any]) -> list[_Action | None]:
    """The actions of a row of a generated table."""
    return [None if action is None else _Action.from_str(str(action)) for action in row]


def texts_of(actions: list[Any]) -> list[str]:
    return ["" if action is None else str(action) for action in actions]


def _simulate_comms_compute(
    pipeline_order: dict[int, list[Any]], stage_to_rank: Callable[[int], int], num_stages: int
) -> dict[int, list[Any]]:
    """Runs a lowered table slot by slot: each action takes one slot, and a rank that must wait has None.

    Stage actions (unshard, reshard, reduce) take no slot, and the parts of an overlap take one each. For times and costs, use
    `penstock.plan.simulate`.
    """
    whole = (UNSHARD, RESHARD, REDUCE_GRAD)
    rows = {
        rank: [
            part
            for action in actions
            for part in ((action.sub_actions or (action,)) if action is not None else (None,))
            if part is None or part.computation_type not in whole
        ]
        for rank, actions in pipeline_order.items()
    }
    found: dict[int, list[Any]] = _reference._simulate_comms_compute(rows, stage_to_rank, num_stages)
    return found
