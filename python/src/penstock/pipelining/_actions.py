"""Actions of tables as text, and tables slot by slot."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch.distributed.pipelining import schedules as _reference
from torch.distributed.pipelining.schedules import OVERLAP_F_B, REDUCE_GRAD, RESHARD, UNSHARD, _ComputationType

_OVERLAP = re.compile(r"\((?P<forward>[^;()]+);(?P<backward>[^;()]+)\)OVERLAP_F_B")
_PLAIN = re.compile(
    r"(?P<stage>\d+)(?:(?P<compute>SEND_F|RECV_F|SEND_B|RECV_B|F|I|B|W)(?P<microbatch>\d+)"
    r"|(?P<whole>UNSHARD|RESHARD|REDUCE_GRAD))"
)


class _Action(_reference._Action):
    """An action of a rank. `from_str` refuses text that is not exactly an action."""

    __slots__ = ()

    @staticmethod
    def from_str(action_string: str) -> _Action | None:
        text = action_string.strip()
        if text in ("", "None"):
            return None
        overlap = _OVERLAP.fullmatch(text)
        if overlap is not None:
            parts: Any = tuple(_Action.from_str(overlap[name]) for name in ("forward", "backward"))
            return _Action(-1, OVERLAP_F_B, None, parts)
        match = _PLAIN.fullmatch(text)
        if match is None:
            _reference._Action.from_str(text)  # raises, unless the text only starts like an action
            raise RuntimeError(f"Invalid action string: {action_string!r} does not end after the action")
        if match["whole"] is not None:
            return _Action(int(match["stage"]), _ComputationType(match["whole"]))
        return _Action(int(match["stage"]), _ComputationType(match["compute"]), int(match["microbatch"]))


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
