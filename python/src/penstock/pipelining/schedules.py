"""Schedules: the classes of `torch.distributed.pipelining.schedules`, on the C++ runtime, and more schedules.

A schedule is validated before its first step: a table that would deadlock, lose a value or use one before it exists is
refused. Steps report failures of other ranks, and Python's exceptions of a stage arrive as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from penstock import plan
from penstock import schedule as _tables
from torch.distributed.pipelining import schedules as _reference
from torch.distributed.pipelining.schedules import (  # noqa: F401
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FULL_BACKWARD,
    OVERLAP_F_B,
    RECV_B,
    RECV_F,
    REDUCE_GRAD,
    RESHARD,
    SEND_B,
    SEND_F,
    UNSHARD,
    B,
    F,
    I,
    W,
    _Action,
    _add_reduce_grad,
    _add_send_recv,
    _add_unshard_reshard,
    _batch_p2p,
    _check_torch_compile_compatibility,
    _ComputationType,
    _defer_recv_ops,
    _dump_chrometrace,
    _format_pipeline_order,
    _get_1f1b_rank_ops,
    _merge_bw,
    _PipelineContext,
    _PipelineSchedule,
    _sorted_batch_p2p,
    _validate_schedule,
    _wait_batch_p2p,
)

from ._actions import _simulate_comms_compute, actions_of, check_file, texts_of
from ._engine import Table
from ._loop import _TableLoop
from ._metadata import MetadataError
from ._mirror import mirror
from ._steps import _OnRuntime

__all__ = [
    "MetadataError",
    "PipelineScheduleMulti",
    "PipelineScheduleSingle",
    "Schedule1F1B",
    "ScheduleAuto",
    "ScheduleDualPipeV",
    "ScheduleGPipe",
    "ScheduleInterleaved1F1B",
    "ScheduleInterleavedZeroBubble",
    "ScheduleLoopedBFS",
    "ScheduleVHalf",
    "ScheduleVMin",
    "ScheduleZB1P",
    "ScheduleZB2P",
    "ScheduleZBVZeroBubble",
    "get_schedule_class",
]


def _check_compiled(stages: list[Any], schedule: Any, table: Any) -> None:
    """Refuses compiled modules if the schedule splits backward passes: their buffers are used up by the first part."""
    if any(action is not None and action.kind in ("I", "W") for row in table.table for action in row):
        _check_torch_compile_compatibility(stages, type(schedule).__name__)


class PipelineScheduleSingle(_OnRuntime, _reference.PipelineScheduleSingle):
    """Base class of schedules with one stage per rank. Derived classes define `_get_pipeline_order`."""

    _initialized_flags = "_stage_forward_initialized", "_stage_backward_initialized"

    def __new__(cls, *args: Any, **kwargs: Any) -> PipelineScheduleSingle:
        own = cls._step_microbatches is not PipelineScheduleSingle._step_microbatches
        if not own and cls._get_pipeline_order is _reference.PipelineScheduleSingle._get_pipeline_order:
            raise TypeError(
                f"Can't instantiate abstract class {cls.__name__} with abstract method _step_microbatches: define it or "
                "_get_pipeline_order"
            )
        return super().__new__(cls)

    def _local_stages(self) -> list[Any]:
        return [self._stage]

    def _table(self) -> Table:
        if self.pipeline_order is None:
            raise NotImplementedError(f"{type(self).__name__} does not define _get_pipeline_order")
        return self._table_of_order(self.pipeline_order)

    def _table_of_order(self, order: dict[int, list[_Action | None]]) -> Table:
        placed = [self._stage.stage_index_to_group_rank[stage] for stage in range(self._num_stages)]
        rows: list[list[str]] = [[] for _ in placed]
        for stage, rank in enumerate(placed):
            rows[rank] = texts_of([a for a in order[stage] if a is None or a.is_compute_op])
        return Table(rows, False, placed, self._n_microbatches)

    def _generated_order(self, name: str) -> dict[int, list[_Action | None]]:
        """The table of a built-in schedule."""
        table = _tables.generate(name, ranks=self._num_stages, microbatches=self._n_microbatches)
        _check_compiled([self._stage], self, table)
        return {rank: _add_reduce_grad(actions_of(row), self._n_microbatches) for rank, row in enumerate(table.table)}


class _ScheduleForwardOnly(PipelineScheduleSingle, _reference._ScheduleForwardOnly):
    """Runs only the forward passes."""

    def _step_microbatches(
        self,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if target_mbs is not None or losses is not None:
            _reference._ScheduleForwardOnly._step_microbatches(self, arg_mbs, kwarg_mbs, target_mbs, losses)  # raises
        super()._step_microbatches(arg_mbs, kwarg_mbs, None, None, return_outputs)

    def _table(self) -> Table:
        return self._table_of_order(self._generated_order("ForwardOnly"))


class ScheduleGPipe(PipelineScheduleSingle, _reference.ScheduleGPipe):
    """All forward passes, then all backward passes."""


class Schedule1F1B(PipelineScheduleSingle, _reference.Schedule1F1B):
    """After a warm-up, one forward pass and one backward pass in turn."""

    def _get_pipeline_order(self) -> dict[int, list[Any]]:
        return self._generated_order("1F1B")


class ScheduleZB1P(PipelineScheduleSingle, _TableLoop):
    """Zero-bubble schedule with the memory of 1F1B: the backward pass is split, and weight gradients fill the bubble."""

    def _get_pipeline_order(self) -> dict[int, list[Any]]:
        return self._generated_order("ZB1P")


class ScheduleZB2P(PipelineScheduleSingle, _TableLoop):
    """Zero-bubble schedule with twice the memory of 1F1B and no bubble if all passes take the same time."""

    def _get_pipeline_order(self) -> dict[int, list[Any]]:
        return self._generated_order("ZB2P")


class PipelineScheduleMulti(_OnRuntime, _reference.PipelineScheduleMulti):
    """Base class of schedules with several stages per rank. Derived classes set `pipeline_order`."""

    _initialized_flags = "_stages_forward_initialized", "_stages_backward_initialized"

    def _local_stages(self) -> list[Any]:
        return list(self._stages)

    def _order(self) -> Any:
        return self.pipeline_order

    def _table(self) -> Table:
        return self._table_of(self.pipeline_order, lowered=False)

    def _table_of(self, order: dict[int, list[Any]], lowered: bool) -> Table:
        rows = [texts_of(order[rank]) for rank in range(self.pp_group_size)]
        mapping = self.stage_index_to_group_rank
        return Table(rows, lowered, [mapping[stage] for stage in range(self._num_stages)], self._n_microbatches)

    def _load_csv(self, filename: str, format: Literal["compute_only", "compute_comms"] = "compute_only") -> None:
        self._engine = None
        if format == "compute_only" or (format == "compute_comms" and isinstance(self, _reference._PipelineScheduleRuntime)):
            check_file(filename)  # otherwise the format is refused
        super()._load_csv(filename, format)


class _PipelineScheduleRuntime(PipelineScheduleMulti, _reference._PipelineScheduleRuntime):
    """Runs any table of actions, with or without sends and receives."""

    _lowered_by_user = False
    _prepared: dict[int, list[Any]] | None = None

    def _order(self) -> Any:
        return getattr(self, "pipeline_order_with_comms", None)

    def _prepare_schedule_with_comms(
        self,
        actions: dict[int, list[Any]],
        format: Literal["compute_only", "compute_comms"] = "compute_only",
    ) -> None:
        self._engine = None
        self._lowered_by_user = format == "compute_comms"
        self._compute_order = actions
        super()._prepare_schedule_with_comms(actions, format)
        self._prepared = {rank: list(row) for rank, row in self.pipeline_order_with_comms.items()}

    def _table(self) -> Table:
        if not hasattr(self, "pipeline_order_with_comms"):
            raise AssertionError("this schedule has no table yet: call _load_csv or _prepare_schedule_with_comms first")
        changed = self.pipeline_order_with_comms != self._prepared
        if self._lowered_by_user or changed:
            return self._table_of(self.pipeline_order_with_comms, lowered=True)
        return self._table_of(self._compute_order, lowered=False)

    def _simulate(self) -> dict[int, list[Any]]:
        return _simulate_comms_compute(
            self.pipeline_order_with_comms, lambda stage: self.stage_index_to_group_rank[stage], self._num_stages
        )

    def register_custom_function(self, computation_type: Any, custom_function: Any) -> None:
        super().register_custom_function(computation_type, custom_function)
        self._engine = None

    def _must_run_as_written(self) -> bool:
        """Whether functions of the program replace actions: they may use anything that PyTorch's loop has, even on threads."""
        return bool(self._comp_type_to_function_map)

    def _after_runtime_step(self, train: bool) -> None:
        super()._after_runtime_step(train)
        self.backward_counter.clear()
        for action in self.pipeline_order_with_comms[self.rank]:
            for part in action.sub_actions or (action,):
                if part.computation_type in (FULL_BACKWARD, BACKWARD_WEIGHT):
                    self.backward_counter[part.stage_index] += 1


class ScheduleLoopedBFS(_PipelineScheduleRuntime, _reference.ScheduleLoopedBFS):
    """All microbatches of one stage, then all of the rank's next stage."""


class ScheduleInterleaved1F1B(_PipelineScheduleRuntime, _reference.ScheduleInterleaved1F1B):
    """1F1B with several stages per rank."""


class ScheduleInterleavedZeroBubble(_PipelineScheduleRuntime, _reference.ScheduleInterleavedZeroBubble):
    """Interleaved 1F1B with a split backward pass."""


class ScheduleZBVZeroBubble(_PipelineScheduleRuntime, _reference.ScheduleZBVZeroBubble):
    """Zero-bubble schedule with two stages per rank in a V."""


class ScheduleDualPipeV(_PipelineScheduleRuntime, _reference.ScheduleDualPipeV):
    """Two stages per rank in a V; forward and backward passes of different microbatches overlap."""


class _Generated(_PipelineScheduleRuntime):
    """A schedule from Penstock's generators."""

    _name: str

    def __init__(self, stages: list[Any], n_microbatches: int, loss_fn: Callable[..., Any] | None = None, **more: Any) -> None:
        super().__init__(stages, n_microbatches, loss_fn, **more)
        self._prepare(self._make_table())

    def _make_table(self) -> Any:
        return _tables.generate(
            self._name,
            ranks=self.pp_group_size,
            stages_per_rank=self._num_stages // self.pp_group_size,
            microbatches=self._n_microbatches,
        )

    def _prepare(self, table: Any) -> None:
        _check_compiled(self._stages, self, table)
        self.pipeline_order = {rank: actions_of(row) for rank, row in enumerate(table.table)}
        self._prepare_schedule_with_comms(self.pipeline_order)


class ScheduleVHalf(_Generated):
    """Two stages per rank in a V, with about half the memory of 1F1B."""

    _name = "V-Half"


class ScheduleVMin(_Generated):
    """Two stages per rank in a V, with about a third of the memory of 1F1B."""

    _name = "V-Min"


class ScheduleAuto(_Generated):
    """The fastest schedule that a search finds for given costs, with any number of stages per rank.

    `costs` are the times of all stages (`penstock.plan.Costs`). The stages
    of this rank must be those that the schedule places here (`penstock.plan.auto`).
    """

    def __init__(
        self,
        stages: list[Any],
        n_microbatches: int,
        loss_fn: Callable[..., Any] | None = None,
        *,
        costs: plan.Costs,
        memory_cap: int | None = None,
        **more: Any,
    ) -> None:
        self._costs, self._memory_cap = costs, memory_cap
        super().__init__(stages, n_microbatches, loss_fn, **more)

    def _make_table(self) -> Any:
        found = plan.auto(
            ranks=self.pp_group_size, microbatches=self._n_microbatches, costs=self._costs, memory_cap=self._memory_cap
        )
        return found.schedule


_CLASSES: dict[str, type] = {
    "1F1B": Schedule1F1B,
    "Interleaved1F1B": ScheduleInterleaved1F1B,
    "GPipe": ScheduleGPipe,
    "LoopedBFS": ScheduleLoopedBFS,
    "InterleavedZeroBubble": ScheduleInterleavedZeroBubble,
    "PipelineScheduleSingle": PipelineScheduleSingle,
    "PipelineScheduleMulti": PipelineScheduleMulti,
    "ZBVZeroBubble": ScheduleZBVZeroBubble,
    "DualPipeV": ScheduleDualPipeV,
    "ZB1P": ScheduleZB1P,
    "ZB2P": ScheduleZB2P,
    "VHalf": ScheduleVHalf,
    "VMin": ScheduleVMin,
    "Auto": ScheduleAuto,
}


def get_schedule_class(schedule_name: str) -> type:
    """Returns the class of a schedule by its name, ignoring case: `1F1B`, `InterleavedZeroBubble`, `ZB1P`, …"""
    for name, found in _CLASSES.items():
        if name.lower() == schedule_name.lower().replace("-", ""):
            return found
    raise ValueError(f"Unknown schedule name '{schedule_name}'. The valid options are {list(_CLASSES)}")


def __getattr__(name: str) -> Any:
    return getattr(_reference, name)


mirror(__name__, _reference)
