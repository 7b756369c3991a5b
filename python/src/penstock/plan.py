"""Costs, the simulator, the partitioner and the planner. Does not need torch.

>>> from penstock import plan, schedule
>>> zb = schedule.generate("ZB1P", ranks=4, microbatches=16)
>>> plan.simulate(zb).step_time
51.0

Times are seconds, or any other unit if all of them use it. Sizes are bytes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from penstock import _plan
from penstock._plan import Action, Program, Schedule, Simulation, Timeline
from penstock.errors import UsageError
from penstock.schedule import SendMode, StagePair

TimeUnit = Literal["seconds", "units"]
"""The unit of the times, for pictures and reports."""


@dataclass(frozen=True, kw_only=True)
class StageCosts:
    """Times and bytes of one stage, or of one layer, per microbatch."""

    forward: float = 1.0
    input: float = 1.0
    """I: the gradient of the inputs."""
    weight: float = 1.0
    """W: the gradients of the parameters."""
    backward: float | None = None
    """B; by default `input + weight`."""
    unshard: float = 0.0
    reshard: float = 0.0
    reduce_grad: float = 0.0
    activation_bytes: int = 1
    """In use from F until the end of I or B."""
    weight_bytes: int = 0
    """In use from F until the end of W or B."""
    output_bytes: int = 0
    """The size of a message to the next stage, and of its gradient."""
    input_bytes: int = 0
    """Kept per microbatch if the stage recomputes."""
    parameter_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    unsharded_bytes: int = 0
    """Additionally in use from UNSHARD until RESHARD."""
    recompute: bool = False
    """Frees the activations except `input_bytes` after F and computes them again before I or B."""


@dataclass(frozen=True)
class Layer:
    """One layer of a model that is not yet partitioned into stages."""

    name: str
    costs: StageCosts


@dataclass(frozen=True)
class Link:
    """A message of n bytes takes `latency + n / bandwidth`."""

    latency: float = 0.0
    bandwidth: float = math.inf
    """Bytes per unit of time."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The costs of a pipeline. `docs/simulation.md` explains each field."""

    stages: tuple[StageCosts, ...] = ()
    link: Link = Link()
    """For every ordered pair of ranks that is not in `links`."""
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    """Keys: (from rank, to rank)."""
    skip_bytes: Mapping[StagePair, int] = field(default_factory=dict)
    """The message sizes of values that skip stages."""
    overlap: float = 0.0
    """The fraction of the shorter part of an OVERLAP_F_B that the longer part hides, from 0 to 1."""
    overhead: float = 0.0
    """The fixed time per computation, independent of the microbatch size. Only the planner uses it."""
    unit: TimeUnit = "seconds"

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))

    @classmethod
    def uniform(cls, stages: int, *, unit: TimeUnit = "units", **each: Any) -> Costs:
        """All stages cost the same and transfers are free. `each` are fields of StageCosts."""
        return cls(stages=(StageCosts(**each),) * stages, unit=unit)

    def check(self, stages: int, microbatches: int = 1) -> None:
        """Raises UsageError if a cost is out of range or the number of stages is another one."""
        _plan.check_costs(self, stages, microbatches)


@dataclass(frozen=True)
class CostFile:
    """The content of a cost file. It describes stages, or layers that are partitioned once the stages are known."""

    shared: Costs
    """Links, overlap, overhead and skip values; no stages."""
    each: StageCosts
    """The costs of every stage if the file has neither stages nor layers."""
    stages: tuple[StageCosts, ...]
    layers: tuple[Layer, ...]
    microbatches: int | None
    """The number of microbatches that the costs apply to."""

    def costs(self, stage_to_rank: Sequence[int]) -> Costs:
        """The costs of a pipeline with these stages: those of the file, or the best partition of its layers."""
        stages = self.stages or (self.each,) * len(stage_to_rank)
        if self.layers:
            best = partition(self.layers, stage_to_rank=stage_to_rank)
            assert best is not None  # without a memory cap, every partition fits
            stages = best.stages
        costs = replace(self.shared, stages=stages)
        costs.check(len(stage_to_rank))
        return costs


@dataclass(frozen=True)
class RankReport:
    """Time and memory of one rank in a step."""

    busy: float
    """The time spent in computations."""
    first: float
    """The start of the first computation."""
    last: float
    """The end of the last computation."""
    bubble: float
    """The idle fraction of the step."""
    own_bubble: float
    """The idle fraction between the first and the last computation."""
    peak_memory: int
    peak_at: float
    """When the peak is first reached."""


@dataclass(frozen=True)
class CriticalAction:
    """One action of the critical path. Each action on it kept the next one from starting earlier."""

    rank: int
    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Partition:
    """Consecutive layers assigned to stages."""

    first_layer: tuple[int, ...]
    """Per stage; the last entry is the number of layers."""
    stages: tuple[StageCosts, ...]
    slowest: float
    """The time of the slowest stage per microbatch."""
    rank_memory: tuple[int, ...]
    """Resident bytes plus activations in flight, per rank."""
    fullest: int
    """The maximum of `rank_memory`."""
    exact: bool
    """Whether `slowest` is the minimum over all partitions, not only over those that were tried."""


@dataclass(frozen=True)
class AutoResult:
    """A schedule generated for given costs."""

    schedule: Schedule
    step_time: float
    """The predicted step time."""
    best_named: str | None
    """The fastest built-in schedule that fits; None if none fits."""
    best_named_time: float | None
    """Its predicted step time."""
    lower_bound: float
    """Of the step time, over the placements that were tried."""


@dataclass(frozen=True)
class TimeShares:
    """Breakdown of the step time; the parts add up to it."""

    compute: float
    """The mean computation time per rank."""
    imbalance: float
    """The computation time of the busiest rank above the mean."""
    bubble: float
    """The idle time of that rank if transfers took no time."""
    communication: float
    """The additional time due to transfers."""


@dataclass(frozen=True)
class Plan:
    """One candidate of the planner, with its predicted time and memory."""

    schedule: str
    """The name of the schedule, or `Auto`."""
    stages_per_rank: int
    microbatches: int
    recompute: bool
    recompute_modules: tuple[str, ...]
    """Modules whose activations are recomputed; only `penstock plan --model` chooses them."""
    first_layer: tuple[int, ...]
    """Per stage, then the number of layers; empty for plan_stages."""
    step_time: float
    bubble: float
    """The idle fraction of the step."""
    peak_memory: int
    shares: TimeShares
    verdict: Literal["best", "slower", "does not fit", "impossible"]
    why: str
    """Why the plan is not the best, or why it is impossible."""


@dataclass(frozen=True)
class PlanResult:
    """All candidates in order of preference."""

    plans: tuple[Plan, ...]
    """Plans that fit, by time; then plans that do not fit, by memory; then impossible ones."""
    schedule: Schedule | None
    """The schedule of the best plan; None if no plan fits."""

    @property
    def best(self) -> Plan | None:
        """The best plan; None if no plan fits."""
        return self.plans[0] if self.plans and self.plans[0].verdict == "best" else None


def read_costs(path: str | os.PathLike[str]) -> CostFile:
    """Reads a cost file: TOML in the format that docs/simulation.md describes and `penstock costs` writes.

    Raises ParseError if the file is not valid, and OSError if it cannot be opened.
    """
    from penstock import _cost_file

    return _cost_file.read(path)


def simulate(
    program: Program | Schedule,
    costs: Costs | None = None,
    *,
    send_mode: SendMode | None = None,
    memory_samples: bool = True,
    critical_path: bool = True,
) -> Simulation:
    """Predicts a step: when each action runs, the bubble, the memory and the critical path.

    A schedule is lowered first, for `send_mode` (default: `buffered`). A program keeps its send mode. By default, F,
    I and W take one unit of time, B takes two, and memory counts activations. Without `memory_samples`, the timeline
    has only the peaks of the memory.
    """
    if costs is None:
        costs = Costs.uniform(program.stages)
    if isinstance(program, Schedule):
        program = program.lower(send_mode=send_mode or "buffered", skips=list(costs.skip_bytes))
    elif send_mode is not None and send_mode != program.send_mode:
        raise UsageError(
            f"the program was validated for {program.send_mode} sends, not for {send_mode}",
            hint="simulate the schedule instead of the program",
        )
    return _plan.simulate(program, costs, memory_samples, critical_path)


def auto(
    *,
    ranks: int,
    microbatches: int,
    costs: Costs,
    memory_cap: int | None = None,
    send_mode: SendMode = "buffered",
    effort: int = 1,
) -> AutoResult:
    """Searches for the fastest schedule for given costs.

    The number of stages is that of `costs` and must be a multiple of `ranks`. `memory_cap` is the limit in bytes per
    rank. The time of the search is proportional to `effort`. Raises ScheduleError if no schedule fits.
    """
    return _plan.auto(ranks, microbatches, costs, memory_cap, send_mode, effort)


def partition(
    layers: Sequence[Layer],
    *,
    stage_to_rank: Sequence[int],
    in_flight: Sequence[int] | None = None,
    memory_cap: int | None = None,
) -> Partition | None:
    """Partitions layers into stages: minimizes the time of the slowest stage, then the memory of the fullest rank.

    `stage_to_rank` has the rank of each stage, `in_flight` the peak number of microbatches in flight per stage
    (default: 1). Returns None if no partition fits under `memory_cap`, in bytes per rank.
    """
    return _plan.partition(layers, list(stage_to_rank), None if in_flight is None else list(in_flight), memory_cap)


def merge_layers(layers: Sequence[Layer]) -> StageCosts:
    """The costs of a stage with these layers."""
    return _plan.merge_layers(layers)


def plan_layers(
    layers: Sequence[Layer],
    *,
    ranks: int,
    microbatches: Sequence[int] | int,
    links: Costs | None = None,
    measured_microbatches: int | None = None,
    stages_per_rank: Sequence[int] = (1, 2, 3, 4),
    schedules: Sequence[str] = (),
    memory_cap: int | None = None,
    recomputation: bool = True,
    send_mode: SendMode = "buffered",
) -> PlanResult:
    """Finds the fastest partition and schedule for a model given as layers.

    It tries every schedule (or `schedules`, which may contain `Auto`), number of stages per rank and number of
    microbatches, with and without recomputation, and ranks them by predicted time under `memory_cap`. `links`
    provides links, overlap and overhead; its stages are ignored. The costs apply to `measured_microbatches`, by
    default the first of `microbatches`; the batch size stays the same.
    """
    return _search(
        layers, links or Costs(), ranks, microbatches, measured_microbatches, stages_per_rank, schedules, memory_cap,
        recomputation, send_mode,
    )  # fmt: skip


def plan_stages(
    costs: Costs,
    *,
    ranks: int,
    microbatches: Sequence[int] | int,
    measured_microbatches: int | None = None,
    schedules: Sequence[str] = (),
    memory_cap: int | None = None,
    recomputation: bool = True,
    send_mode: SendMode = "buffered",
) -> PlanResult:
    """Finds the fastest schedule for a model that is already split into the stages of `costs`."""
    return _search(
        None, costs, ranks, microbatches, measured_microbatches, (1,), schedules, memory_cap, recomputation, send_mode
    )


def _search(
    layers: Sequence[Layer] | None,
    costs: Costs,
    ranks: int,
    microbatches: Sequence[int] | int,
    measured_microbatches: int | None,
    stages_per_rank: Sequence[int],
    schedules: Sequence[str],
    memory_cap: int | None,
    recomputation: bool,
    send_mode: SendMode,
) -> PlanResult:
    if isinstance(schedules, str):
        schedules = (schedules,)
    counts = [microbatches] if isinstance(microbatches, int) else list(microbatches)
    return _plan.search(
        layers, costs, ranks, counts, measured_microbatches, list(stages_per_rank), list(schedules), memory_cap,
        recomputation, send_mode,
    )  # fmt: skip


__all__ = [
    "AutoResult",
    "CostFile",
    "Costs",
    "CriticalAction",
    "Layer",
    "Link",
    "Partition",
    "Plan",
    "PlanResult",
    "RankReport",
    "Simulation",
    "StageCosts",
    "TimeShares",
    "TimeUnit",
    "Timeline",
    "auto",
    "merge_layers",
    "partition",
    "plan_layers",
    "plan_stages",
    "read_costs",
    "simulate",
]
