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
from ._mirror import mirror
from ._wiring import StageOutput, Wiring, stage_wiring

__all__ = ["PipelineStage", "StageOutput", "build_stage"]


class _RunsOnRuntime(_PipelineStageBase):
    """A stage that the C++ runtime runs. Calls of its methods by the program do what they do in PyTorch."""

    _wiring: Wiring | None = None
    _shared_parameters: list[dict[int, str]] = []


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


mirror(__name__, _reference)
