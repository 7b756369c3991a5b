"""Stages and schedules whose methods must run as they are written, which the C++ runtime would not call."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch.distributed as dist
from torch.distributed.pipelining import _backward, schedules
from torch.distributed.pipelining import stage as _reference

from .stage import _RunsOnRuntime

_ACTIONS = (
    "_backward_metadata_inference",
    "_compute_input_grads",
    "_compute_outputs",
    "_create_act_recv_info",
    "_create_act_send_info",
    "_create_grad_recv_info",
    "_create_grad_send_info",
    "_forward_metadata_inference",
    "_get_grad_send_meta",
    "_get_init_p2p_neighbors_ops",
    "_get_recv_ops",
    "_is_same_rank",
    "_map_tensor_from_recv_info",
    "_ones_from_metadata",
    "_post_metadata_inference_cleanup",
    "_prepare_backward_infra",
    "_prepare_forward_infra",
    "_recv_meta",
    "_resolve_peer_global_rank",
    "_retrieve_recv_activations",
    "_retrieve_recv_grads",
    "_send_meta",
    "_setup_backward_recv_info",
    "_setup_forward_recv_info",
    "_setup_forward_send_info",
    "_to_tensor",
    "_validate_inferred_metadata",
    "_validate_stage_tensors",
    "_warmup_backward_result",
    "_warmup_forward_vote",
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
_SCHEDULE_PARTS = (
    "_assert_unsharded",
    "_initialize_pp_stages",
    "_initialize_stage",
    "_initialize_stages",
    "_maybe_compute_loss",
    "_maybe_get_loss",
    "_validate_adjacent_stage_communication",
    "_warmup_p2p",
)
_FUNCTIONS = [
    (module, name, value)
    for module in (_backward, schedules, _reference)
    for name, value in vars(module).items()
    if isinstance(value, FunctionType)
]
"""The functions of PyTorch that its loop calls."""


def _is_ours(function: Any) -> bool:
    module = function.__globals__.get("__name__", "") if isinstance(function, FunctionType) else ""
    return module.startswith(("penstock.pipelining.", "torch.distributed.pipelining."))


def _overrides(thing: Any, names: tuple[str, ...]) -> bool:
    for name in names:
        found = next((owner.__dict__[name] for owner in type(thing).__mro__ if name in owner.__dict__), None)
        if name in thing.__dict__ or (found is not None and not _is_ours(found)):
            return True
    return False


def overrides_actions(schedule: Any, stages: list[Any]) -> bool:
    """Whether a derived class or the program replaces a method or function that runs a part of a step."""
    return (
        _overrides(schedule, _SCHEDULE_PARTS)
        or any(_overrides(stage, _ACTIONS) for stage in stages)
        or any(getattr(module, name, None) is not function for module, name, function in _FUNCTIONS)
    )


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
