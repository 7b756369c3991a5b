"""Runs the steps of a schedule on the C++ runtime."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from penstock import _torch
from torch.distributed.pipelining._debug import map_debug_info as describe

from ._data_parallel import StageHooks
from ._distributed import remember_meshes
from ._metadata import StageMetadata, needs_inference
from ._structures import map_tensors
from ._wiring import StageOutput
from ._worlds import GroupWorld, world_of


def _detach(value: Any) -> Any:
    if type(value) is torch.Tensor:
        return value.detach()
    if isinstance(value, StageOutput):
        return StageOutput(_detach(value.output), _detach(value.skips))
    return map_tensors(torch.Tensor.detach, value)


def _add_note(error: BaseException, note: str) -> None:
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(note)


class StageCalls:
    """What the runtime calls on a stage."""

    output_type = StageOutput

    def __init__(self, stage: Any, microbatches: int) -> None:
        self._stage = stage
        self._metadata = StageMetadata(stage, microbatches)
        self._saves_outputs = False
        self._train = False
        self._grad_mode = True
        self._order: list[int] = []
        self._next = 0
        self.started = False
        self.outputs: dict[int, Any] = {}
        self.forward: Callable[..., Any] = self._forward_last if stage.is_last else self._forward

    def begin_step(self, order: list[int], saves_outputs: bool, train: bool, infers: bool) -> None:
        """`order` lists the microbatches in the order of their forward passes. `infers`: see `StageMetadata`."""
        self._order, self._next, self._saves_outputs = order, 0, saves_outputs
        self.started = False
        self._train, self._grad_mode = train, torch.is_grad_enabled()
        self._metadata.begin_step(train, infers)
        self.outputs = {}

    def end_step(self, succeeded: bool) -> None:
        self.outputs = {}
        if succeeded:
            self._metadata.end_step()

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        stage = self._stage
        self.started = True
        self._metadata.check_inputs(args)
        try:
            with torch.set_grad_enabled(self._grad_mode):  # a step without a backward pass runs in the mode of the caller
                output = self._call(args, kwargs)
        except Exception as error:
            _add_note(error, f"{stage.log_prefix} failed to run forward: args: {describe(args)}, kwargs: {describe(kwargs)}")
            raise
        self._metadata.check_outputs(args, output)
        return output if self._train or stage.is_last else _detach(output)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        forward = self._stage.forward_maybe_with_nosync
        return forward(*args, **kwargs) if self._stage._wiring is None else self._stage._wiring.call(forward, args, kwargs)

    def _forward_last(self, *args: Any, **kwargs: Any) -> Any:
        output = self._forward(*args, **kwargs)
        microbatch = self._order[self._next]
        self._next += 1
        if self._saves_outputs:
            self.outputs[microbatch] = _detach(output) if self._train else output
        return output

    def parameters(self) -> Iterable[tuple[str, torch.Tensor]]:
        module: torch.nn.Module = self._stage.submod
        return module.named_parameters(remove_duplicate=False)

    def buffers(self) -> Iterable[tuple[str, torch.Tensor]]:
        module: torch.nn.Module = self._stage.submod
        return module.named_buffers(remove_duplicate=False)

    def train(self, on: bool) -> None:
        self._stage.submod.train(on)

    def is_training(self) -> bool:
        return bool(self._stage.submod.training)


class Engine:
    """The pipeline of this rank: its stages, its table of actions, and the world of its group."""

    def __init__(self, stages: list[Any], world: GroupWorld, table: Table, settings: dict[str, Any]) -> None:
        self._stages = stages
        self._world = world
        self.table = table
        self.generation = world.generation
        self.calls = {stage.stage_index: StageCalls(stage, table.microbatches) for stage in stages}
        self._infers: dict[bool, bool] = {}
        for stage in stages:
            remember_meshes(stage)  # again: the program may have distributed the parameters since it made the stage
        self._hooks = StageHooks(stages)
        entries = [
            (
                self.calls[stage.stage_index],
                stage.stage_index,
                str(torch.device(stage.device)),
                stage.dw_builder,
                None,
                None,
            )
            for stage in stages
        ]
        self._pipeline = _torch.Pipeline(
            world.handle,
            entries,
            stages[0].num_stages,
            table.rows,
            table.lowered,
            table.stage_to_rank,
            table.microbatches,
            {"data_parallel": self._hooks, **settings},
        )
        self.forward_order = _forward_order(self._pipeline.actions(), stages[0].num_stages - 1)

    def run(
        self,
        args: list[tuple[Any, ...]],
        kwargs: list[dict[str, Any]],
        targets: list[Any] | None,
        train: bool,
        return_outputs: bool,
    ) -> None:
        """Runs a step."""
        first = any(stage.is_first for stage in self._stages)
        last = any(stage.is_last for stage in self._stages)
        infers = self._infers_metadata(train)
        for call in self.calls.values():
            call.begin_step(self.forward_order, return_outputs, train, infers)
        self._hooks.begin_step()
        succeeded = False
        try:
            with torch.set_grad_enabled(train or torch.is_grad_enabled()):
                self._pipeline.step(
                    args if first else [], kwargs, targets if last else None, train, _interruptible()
                )
            for stage in self._stages:
                if stage.is_last and return_outputs:
                    outputs = self.calls[stage.stage_index].outputs
                    stage.output_chunks.extend(outputs[microbatch] for microbatch in sorted(outputs))
            succeeded = True
        finally:
            for call in self.calls.values():
                call.end_step(succeeded)

    def _infers_metadata(self, train: bool) -> bool:
        """Whether a stage of any rank does not describe its values, so that all stages take them from the first step."""
        if train not in self._infers:
            mine = any(needs_inference(stage, train) for stage in self._stages)
            self._infers[train] = self._world.any_rank(mine)
        return self._infers[train]

    @property
    def started(self) -> bool:
        """Whether a module was called in this step."""
        return any(call.started for call in self.calls.values())

    def timeline(self) -> list[tuple[str, float, float]]:
        return list(self._pipeline.timeline())

    def clip_grad_norm(self, max_norm: float, norm_type: float) -> float:
        return float(self._pipeline.clip_grad_norm(max_norm, norm_type))


@dataclass(frozen=True)
class Table:
    """A table of actions as text. `lowered` tables contain sends and receives."""

    rows: list[list[str]]
    lowered: bool
    stage_to_rank: list[int]
    microbatches: int

    @property
    def reduces_gradients(self) -> bool:
        """Whether gradients are reduced and scaled at the end: always, unless a lowered table leaves it out."""
        return not self.lowered or any(text.endswith("REDUCE_GRAD") for row in self.rows for text in row)


def _forward_order(actions: list[str], stage: int) -> list[int]:
    order = []
    for text in actions:
        forward = text[1:].split(";")[0] if text.startswith("(") else text
        head, mark, microbatch = forward.partition("F")
        if mark and head == str(stage):
            order.append(int(microbatch))
    return order


def _interruptible() -> bool:
    """Whether Ctrl-C raises KeyboardInterrupt here."""
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def usable_world(stages: list[Any]) -> GroupWorld:
    """Returns the world of the stages' group, after it has recovered from earlier failures. Collective."""
    world = world_of(stages[0].group, torch.device(stages[0].device))
    world.ensure_usable()
    return world
