"""Stages and schedules whose methods must run as they are written, which the C++ runtime would not call."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.pipelining import stage as _reference

from .stage import _RunsOnRuntime

_ACTIONS = (
    "_prepare_backward_infra",
    "_prepare_forward_infra",
    "_retrieve_recv_activations",
    "_retrieve_recv_grads",
    "backward_maybe_with_nosync",
    "backward_one_chunk",
    "backward_weight_one_chunk",
    "forward_one_chunk",
    "get_bwd_recv_ops",
    "get_bwd_send_ops",
    "get_fwd_recv_ops",
    "get_fwd_send_ops",
    "get_local_bwd_output",
    "perform_reduce_grad",
    "scale_grads",
    "set_local_bwd_input",
    "set_local_fwd_input",
)
_LOSSES = ("_maybe_compute_loss", "_maybe_get_loss")


def _is_ours(owner: type) -> bool:
    return owner.__module__.startswith(("penstock.pipelining.", "torch.distributed.pipelining."))


def _overrides(thing: Any, names: tuple[str, ...]) -> bool:
    for name in names:
        owner = next(owner for owner in type(thing).__mro__ if name in owner.__dict__)
        if name in thing.__dict__ or not _is_ours(owner):
            return True
    return False


def overrides_actions(schedule: Any, stages: list[Any]) -> bool:
    """Whether a derived class or the program replaces a method that runs a part of a step."""
    return _overrides(schedule, _LOSSES) or any(_overrides(stage, _ACTIONS) for stage in stages)


def cannot_use_runtime(stages: list[Any]) -> bool:
    """Whether the stages are objects of another kind, or their process group does not connect processes.

    Raises TypeError for stages of PyTorch, which a program gets if it changed only some of its imports.
    """
    for stage in stages:
        if issubclass(type(stage), _RunsOnRuntime):
            continue
        if issubclass(type(stage), (_reference.PipelineStage, _reference._PipelineStage)):
            raise TypeError(
                f"a {type(stage).__name__} of PyTorch cannot run here: make stages with PipelineStage or build_stage of "
                "penstock.pipelining"
            )
        return True
    return str(dist.get_backend(stages[0].group)) == "fake"
