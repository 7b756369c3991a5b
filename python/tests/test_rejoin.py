"""Ranks that change their schedule, give up a step before it starts, or do not come to it, while other ranks go on."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import models
import pytest
import ranks
import torch

CPU = torch.device("cpu")
MSE = torch.nn.functional.mse_loss
ROWS = 8


def _step(schedule: Any, rank: int, size: int) -> Any:
    x, target = models.batch(ROWS)
    return schedule.step(*([x] if rank == 0 else []), target=target if rank == size - 1 else None)


def _grads(modules: dict[int, Any]) -> dict[str, Any]:
    return {f"{i}.{n}": p.grad for i, module in modules.items() for n, p in module.named_parameters()}


def _check(per_rank: list[Any], stages: int, steps: int) -> None:
    _, dense = models.dense(stages, ROWS, 4)
    for grads in per_rank:
        for key, grad in grads.items():
            torch.testing.assert_close(grad, steps * dense[key], rtol=1e-4, atol=1e-6, msg=key)


def _function_on_one_rank(rank: int, size: int) -> Any:
    from penstock.pipelining import PipelineStage, ScheduleLoopedBFS
    from penstock.pipelining.schedules import FORWARD, _wait_batch_p2p

    modules = {index: models.block(index) for index in (rank, rank + size)}
    stages = [PipelineStage(module, index, 2 * size, CPU) for index, module in modules.items()]
    schedule = ScheduleLoopedBFS(stages, 4, loss_fn=MSE)
    calls = []
    by_index = {stage.stage_index: stage for stage in stages}

    def forward(action: Any, ctx: Any) -> None:
        calls.append(str(action))
        stage, microbatch = by_index[action.stage_index], action.microbatch_index
        _wait_batch_p2p(schedule.fwd_recv_ops.pop((action.stage_index, microbatch)))
        output = stage.forward_one_chunk(microbatch, ctx.arg_mbs[microbatch], ctx.kwarg_mbs[microbatch])
        ctx.schedule_ref._maybe_compute_loss(stage, output, ctx.target_mbs, microbatch)

    _step(schedule, rank, size)
    if rank == 1:
        schedule.register_custom_function(FORWARD, forward)
    for _ in range(2):
        for module in modules.values():
            module.zero_grad()  # PyTorch's loop scales earlier gradients again
        _step(schedule, rank, size)
    assert len(calls) == (16 if rank == 1 else 0), calls
    return _grads(modules)


def test_a_function_registered_on_one_rank_after_a_step() -> None:
    _check(ranks.run(_function_on_one_rank, 3), 6, steps=1)


def _file_on_one_rank(rank: int, size: int, path: str) -> Any:
    from penstock.pipelining import PipelineStage
    from penstock.pipelining.schedules import _Action, _PipelineScheduleRuntime

    modules = {rank: models.block(rank)}
    schedule = _PipelineScheduleRuntime([PipelineStage(modules[rank], rank, size, CPU)], 4, loss_fn=MSE)
    order = {r: [_Action.from_str(f"{r}{kind}{m}") for kind in "FB" for m in range(4)] for r in range(size)}
    schedule._prepare_schedule_with_comms(order)
    schedule.pipeline_order = order
    _step(schedule, rank, size)
    if rank == 0:
        schedule._dump_csv(path, "compute_only")
        schedule._load_csv(path)
    _step(schedule, rank, size)
    return _grads(modules)


def test_a_file_loaded_on_one_rank_after_a_step(tmp_path: pathlib.Path) -> None:
    _check(ranks.run(_file_on_one_rank, 2, str(tmp_path / "table.csv")), 2, steps=2)


def _usage_error(rank: int, size: int, late: int) -> Any:
    """Rank 0 calls `step` with too few rows, and then as it should. Rank `late` starts its step after the error."""
    from torch.distributed.distributed_c10d import _get_default_store

    from penstock.pipelining import PipelineStage, Schedule1F1B

    modules = {rank: models.block(rank)}
    schedule = Schedule1F1B(PipelineStage(modules[rank], rank, size, CPU), 4, loss_fn=MSE)
    _step(schedule, rank, size)
    store = _get_default_store()
    for attempt in range(2):
        if rank == 0:
            with pytest.raises(ValueError, match="at most 2"):
                schedule.step(torch.randn(2, models.WIDTH))
            store.set(f"refused/{attempt}", "yes")
        elif rank == late:
            store.wait([f"refused/{attempt}"])
        _step(schedule, rank, size)
    return _grads(modules)


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_usage_error_of_one_rank_does_not_concern_the_next_step(late: int) -> None:
    _check(ranks.run(_usage_error, 3, late), 3, steps=3)


def _missing(rank: int, size: int) -> Any:
    from penstock.errors import TimeoutError
    from penstock.pipelining import PipelineStage, Schedule1F1B
    from torch.distributed.distributed_c10d import _get_default_store

    os.environ["PENSTOCK_TIMEOUT"] = "1"
    stage = PipelineStage(models.block(rank), rank, size, CPU)
    _step(Schedule1F1B(stage, 4, loss_fn=MSE), rank, size)
    if rank == 1:
        _get_default_store().wait(["raised"])
        return
    with pytest.raises(TimeoutError, match=r"ranks \[1\] do not"):
        _step(Schedule1F1B(stage, 4, loss_fn=MSE), rank, size)
    _get_default_store().set("raised", "yes")


def test_a_rank_that_does_not_start_a_schedule_is_named() -> None:
    ranks.run(_missing, 2)
