"""Stages of a pipeline: `PipelineStage` for modules of your own, `build_stage` for traced models.

The classes derive from those of `torch.distributed.pipelining`, so that programs which check the types of stages keep
working. The C++ runtime runs them: it moves values between stages, keeps activations and calls autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import stage as _reference
from torch.distributed.pipelining._utils import PipeInfo
from torch.distributed.pipelining.stage import _PipelineStageBase

from ._distributed import remember_meshes
from ._wiring import StageOutput, Wiring, stage_wiring

__all__ = ["PipelineStage", "StageOutput", "build_stage"]


class _RunsOnRuntime(_PipelineStageBase):
    """Lets functions that replace an action call the methods of the stage.

    While such a function runs, `forward_one_chunk` and its relatives run the default implementation of the action, and
    the methods that would move values do nothing, because the runtime moves them.
    """

    _running: Any = None
    _calls: Any = None
    _wiring: Wiring | None = None
    _shared_parameters: list[dict[int, str]] = []

    def _run_part(self, kind: str, chunk: int) -> None:
        self._running.run_part(f"{self.stage_index}{kind}{chunk}")

    def forward_one_chunk(
        self,
        fwd_chunk_id: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
        save_forward_output: bool = True,
    ) -> Any:
        if self._running is None:
            return super().forward_one_chunk(fwd_chunk_id, args, kwargs, save_forward_output)
        self._run_part("F", fwd_chunk_id)
        return self._calls.last_output

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        if self._running is None:
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
            return
        self._run_part("B" if full_backward else "I", bwd_chunk_id)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        if self._running is None:
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
            return
        self._run_part("W", bwd_chunk_id)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        if self._running is None:
            super().perform_reduce_grad(grad_scale_factor)
            return
        self._running.run_part(f"{self.stage_index}REDUCE_GRAD")
        self.scale_grads(grad_scale_factor)  # the runtime leaves it to the function that replaces the reduction

    def set_local_fwd_input(self, prev_stage_outputs: Any, mb_index: int) -> None:
        if self._running is None:
            super().set_local_fwd_input(prev_stage_outputs, mb_index)

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        if self._running is None:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)

    def get_local_bwd_output(self, mb_index: int) -> Any:
        return () if self._running is not None else super().get_local_bwd_output(mb_index)


class PipelineStage(_RunsOnRuntime, _reference.PipelineStage):
    """A stage of a pipeline: a module, its index and its device.

    Takes the arguments of `torch.distributed.pipelining.PipelineStage`. `input_args` and `output_args` are optional:
    stages learn shapes at the first step and whenever they change. If they are given, every microbatch is checked
    against them, except at the ends of a pipeline whose stages give both.
    """

    def __init__(
        self,
        submodule: torch.nn.Module,
        stage_index: int,
        num_stages: int,
        device: torch.device,
        input_args: Any = None,
        output_args: Any = None,
        output_grads: Any = None,
        input_grads: Any = None,
        group: dist.ProcessGroup | None = None,
        dw_builder: Callable[[], Callable[..., None]] | None = None,
        get_mesh: Any = None,
    ) -> None:
        super().__init__(
            submodule,
            stage_index,
            num_stages,
            device,
            input_args,
            output_args,
            output_grads,
            input_grads,
            group,
            dw_builder,
            get_mesh,
        )
        remember_meshes(self)


class _PipelineStage(_RunsOnRuntime, _reference._PipelineStage):
    """A stage of a traced model. Its inputs may come from any earlier stage."""

    def __init__(
        self,
        stage_module: torch.nn.Module,
        stage_index: int,
        pipe_info: PipeInfo,
        device: torch.device,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(stage_module, stage_index, pipe_info, device, group)
        self._wiring = stage_wiring(pipe_info.graph, stage_index)

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        if self._wiring is None:
            return super().forward_maybe_with_nosync(*args, **kwargs)
        return self._wiring.call(super().forward_maybe_with_nosync, args, kwargs)


def build_stage(
    stage_module: torch.nn.Module,
    stage_index: int,
    pipe_info: PipeInfo,
    device: torch.device,
    group: dist.ProcessGroup | None = None,
) -> _PipelineStage:
    """Makes a stage from a module of a traced model and the information about the model (`pipe.info()`)."""
    return _PipelineStage(stage_module, stage_index, pipe_info, device, group)


def __getattr__(name: str) -> Any:
    return getattr(_reference, name)
