"""A drop-in replacement of `torch.distributed.pipelining` on Penstock's C++ runtime.

Change the import, and a program runs unchanged::

    from penstock.pipelining import PipelineStage, Schedule1F1B
"""

from . import _backward, _debug, _unflatten, _utils, microbatch  # noqa: F401
from ._IR import Pipe, SplitPoint, pipe_split, pipeline, pipeline_from_export
from .schedules import (
    Schedule1F1B,
    ScheduleAuto,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleVHalf,
    ScheduleVMin,
    ScheduleZB1P,
    ScheduleZB2P,
    ScheduleZBVZeroBubble,
    _ScheduleForwardOnly,
)
from .stage import PipelineStage, StageOutput, build_stage

__all__ = [
    "Pipe",
    "PipelineStage",
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
    "SplitPoint",
    "StageOutput",
    "_ScheduleForwardOnly",
    "build_stage",
    "pipe_split",
    "pipeline",
    "pipeline_from_export",
]
