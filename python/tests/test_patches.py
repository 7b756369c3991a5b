"""Methods and functions that programs override or replace, compared with the reference."""

from __future__ import annotations

import importlib
from typing import Any
from unittest import mock

import models
import pytest
import torch
from both import PACKAGES, both, grads, step

CPU = torch.device("cpu")
MSE = torch.nn.functional.mse_loss
METHODS = [
    "_backward_metadata_inference",
    "_compute_input_grads",
    "_compute_outputs",
    "_create_grad_recv_info",
    "_create_grad_send_info",
    "_forward_metadata_inference",
    "_get_grad_send_meta",
    "_get_recv_ops",
    "_is_same_rank",
    "_ones_from_metadata",
    "_post_metadata_inference_cleanup",
    "_recv_meta",
    "_resolve_peer_global_rank",
    "_send_meta",
    "_setup_backward_recv_info",
    "_setup_forward_recv_info",
    "_setup_forward_send_info",
    "_to_tensor",
    "_validate_inferred_metadata",
    "_warmup_backward_result",
    "_warmup_forward_vote",
    "forward_one_chunk",
]
PARTS = ["_initialize_pp_stages", "_initialize_stages", "_validate_adjacent_stage_communication", "_warmup_p2p"]


def _train(package: Any, rank: int, size: int, stage_class: Any = None, schedule_class: Any = None) -> Any:
    module = models.block(rank)
    stage = (stage_class or package.PipelineStage)(module, rank, size, CPU)
    schedule = (schedule_class or package.ScheduleInterleaved1F1B)([stage], 4, loss_fn=MSE)
    step(schedule, rank, size)
    return grads(module)


def _counting(base: Any, names: list[str], calls: dict[str, int]) -> Any:
    """A class that counts the calls of methods."""

    def counted(name: str) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls[name] = calls.get(name, 0) + 1
            return getattr(base, name)(self, *args, **kwargs)

        return method

    return type("Counting", (base,), {name: counted(name) for name in names})


def _overridden(package: Any, rank: int, size: int, name: str) -> Any:
    calls: dict[str, int] = {}
    if name in PARTS:
        found = _train(package, rank, size, None, _counting(package.ScheduleInterleaved1F1B, [name], calls))
    else:
        found = _train(package, rank, size, _counting(package.PipelineStage, [name], calls))
    return calls, found


@pytest.mark.parametrize("name", METHODS + PARTS)
def test_overridden_methods(name: str) -> None:
    assert any(calls for calls, _ in both(_overridden, 2, name))


def _patched_class(package: Any, rank: int, size: int) -> Any:
    """Methods replaced in the class itself, as with mock.patch."""
    counts = []
    for where, name in ((package.PipelineStage, "_compute_outputs"), (package.ScheduleInterleaved1F1B, "_initialize_stages")):
        with mock.patch.object(where, name, autospec=True, side_effect=getattr(where, name)) as patched:
            _train(package, rank, size)
        counts.append(patched.call_count)
    return counts, _train(package, rank, size)


def test_classes_may_be_patched() -> None:
    assert both(_patched_class, 1)[0][0] == [1, 1]


def _patched_functions(package: Any, rank: int, size: int, place: str, name: str) -> Any:
    """Functions replaced in a module of the package."""
    path = f"{package.__name__}.{place}"
    module = importlib.import_module(path)
    original = getattr(module, name)
    with mock.patch(f"{path}.{name}", wraps=original) as patched:
        found = _train(package, rank, size)
    assert getattr(module, name) is original
    count = patched.call_count
    again = _train(package, rank, size)
    return found, again, count, patched.call_count


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("schedules", "_batch_p2p"),
        ("schedules", "_wait_batch_p2p"),
        ("stage", "stage_backward"),
        ("stage", "_normalize_model_output_as_tuple"),
    ],
)
def test_functions_of_modules_may_be_patched(place: str, name: str) -> None:
    for found, again, during, after in both(_patched_functions, 2, place, name):
        assert found == again and during == after > 0


def test_names_that_are_set_and_deleted() -> None:
    ours = importlib.import_module("penstock.pipelining._utils")
    reference = importlib.import_module("torch.distributed.pipelining._utils")
    original = reference.flatten_args
    ours.flatten_args = None
    assert reference.flatten_args is None
    del ours.flatten_args
    assert reference.flatten_args is ours.flatten_args is original
    ours.of_the_program = 1
    assert not hasattr(reference, "of_the_program")
    del ours.of_the_program
    assert not hasattr(ours, "of_the_program")


def test_replaced_classes_stay_here() -> None:
    for name in ("PipelineStage", "build_stage"):
        reference, ours = (importlib.import_module(f"{package}.stage") for package in PACKAGES)
        original = getattr(reference, name)
        with mock.patch.object(ours, name):
            assert getattr(reference, name) is original
