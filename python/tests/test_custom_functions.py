"""Functions of the program that replace actions, compared with the reference."""

from __future__ import annotations

import threading
from typing import Any

import models
import pytest
import torch
from both import both, grads, step

CPU = torch.device("cpu")
MSE = torch.nn.functional.mse_loss


def _one_stage(package: Any, texts: list[str], **more: Any) -> tuple[Any, Any, Any]:
    """A module, its stage and a schedule with a table of one rank."""
    tables = package.schedules
    module = models.block(0)
    stage = package.PipelineStage(module, 0, 1, CPU)
    schedule = tables._PipelineScheduleRuntime([stage], 2, loss_fn=MSE, **more)
    schedule._prepare_schedule_with_comms({0: [tables._Action.from_str(text) for text in texts]})
    return module, stage, schedule


def _recording(package: Any, rank: int, size: int, kind: str) -> Any:
    """Functions that only record actions, or that reduce gradients with the method of the stage."""
    tables, calls = package.schedules, []
    module, stage, schedule = _one_stage(
        package, ["0F0", "0F1", "0B0", "0B1"], backward_requires_autograd=kind != "no autograd"
    )

    def record(action: Any, context: Any) -> None:
        calls.append((str(action), torch.is_grad_enabled(), dict(schedule.backward_counter)))
        if kind == "reduce":
            stage.perform_reduce_grad(4)

    replaced = {"no autograd": [tables.FULL_BACKWARD], "all": [tables.FORWARD, tables.FULL_BACKWARD]}
    for computation in replaced.get(kind, [tables.REDUCE_GRAD]):
        schedule.register_custom_function(computation, record)
    with torch.set_grad_enabled(kind != "no autograd"):
        for _ in range(2):
            module.zero_grad()
            if kind == "all":
                schedule._step_microbatches([(x,) for x in models.batch(8)[0].chunk(2)], None, list(models.batch(8)[1].chunk(2)))
            else:
                step(schedule, 0, 1)
    return calls, grads(module), dict(schedule.backward_counter)


@pytest.mark.parametrize("kind", ["no autograd", "all", "record", "reduce"])
def test_functions_that_call_little_or_nothing(kind: str) -> None:
    assert both(_recording, 1, kind)[0][0]


def _changed_values(package: Any, rank: int, size: int) -> Any:
    """Functions that change the inputs and scale the loss."""
    tables = package.schedules
    module = models.block(rank)
    stage = package.PipelineStage(module, rank, size, CPU)
    schedule = tables._PipelineScheduleRuntime([stage], 4, loss_fn=MSE)
    schedule._prepare_schedule_with_comms(
        {r: [tables._Action.from_str(f"{r}{kind}{m}") for kind in "FB" for m in range(4)] for r in range(size)}
    )
    seen = []

    def forward(action: Any, context: Any) -> None:
        index = action.microbatch_index
        if rank > 0:
            tables._wait_batch_p2p(schedule.fwd_recv_ops.pop((rank, index)))
        args = tuple(2 * x for x in context.arg_mbs[index])
        output = stage.forward_one_chunk(index, args, context.kwarg_mbs[index], save_forward_output=True)
        schedule._maybe_compute_loss(stage, output, context.target_mbs, index)

    def backward(action: Any, context: Any) -> None:
        index = action.microbatch_index
        loss = schedule._maybe_get_loss(stage, index)
        seen.append(None if loss is None else round(loss.item(), 5))
        if rank < size - 1:
            tables._wait_batch_p2p(schedule.bwd_recv_ops.pop((rank, index)))
        stage.backward_one_chunk(index, loss=None if loss is None else 3 * loss, full_backward=True)

    schedule.register_custom_function(tables.FORWARD, forward)
    schedule.register_custom_function(tables.FULL_BACKWARD, backward)
    losses: list[torch.Tensor] = []
    output = step(schedule, rank, size, losses=losses)
    return grads(module), seen, [round(loss.item(), 5) for loss in losses], None if output is None else output.tolist()


def test_functions_that_change_values() -> None:
    assert len(both(_changed_values, 2)[1][2]) == 4


def _evaluated(package: Any, rank: int, size: int, kinds: list[str]) -> Any:
    """A step with a backward pass and one without."""
    tables, calls = package.schedules, []
    _, _, schedule = _one_stage(package, ["0F0", "0F1", "0I0", "0W0", "0B1"])

    def record(action: Any, context: Any) -> None:
        calls.append(str(action))

    for kind in kinds:
        schedule.register_custom_function(getattr(tables, kind), record)
    x, target = models.batch(8)
    counts = []
    for run in (schedule.step, schedule.eval):
        run(x, target=target)
        counts.append(dict(schedule.backward_counter))
    return calls, counts


@pytest.mark.parametrize("kinds", [[], ["REDUCE_GRAD"], ["FULL_BACKWARD", "BACKWARD_INPUT", "BACKWARD_WEIGHT"]])
def test_counters_and_functions_in_eval(kinds: list[str]) -> None:
    calls, counts = both(_evaluated, 1, kinds)[0]
    assert bool(calls) == bool(kinds) and len(counts) == 2


def _overlapping(package: Any, rank: int, size: int, kind: str) -> Any:
    """Functions of DualPipeV: for whole overlaps, or for single passes, which parts of overlaps do not call."""
    tables = package.schedules
    indices = [rank, 2 * size - 1 - rank]
    modules = {index: models.block(index) for index in indices}
    by_index = {i: package.PipelineStage(modules[i], i, 2 * size, CPU) for i in indices}
    schedule = package.ScheduleDualPipeV(list(by_index.values()), 8, loss_fn=MSE)
    calls = []

    def forward(action: Any, context: Any) -> None:
        index, microbatch = action.stage_index, action.microbatch_index
        stage = by_index[index]
        if not stage.is_first and index - 1 not in by_index:
            tables._wait_batch_p2p(schedule.fwd_recv_ops.pop((index, microbatch)))
        output = stage.forward_one_chunk(microbatch, context.arg_mbs[microbatch], context.kwarg_mbs[microbatch])
        schedule._maybe_compute_loss(stage, output, context.target_mbs, microbatch)
        if index + 1 in by_index:
            by_index[index + 1].set_local_fwd_input(output, microbatch)

    def backward(action: Any, context: Any) -> None:
        index, microbatch = action.stage_index, action.microbatch_index
        stage, full = by_index[index], action.computation_type == tables.FULL_BACKWARD
        if not stage.is_last and index + 1 not in by_index:
            tables._wait_batch_p2p(schedule.bwd_recv_ops.pop((index, microbatch)))
        loss = schedule._maybe_get_loss(stage, microbatch)
        schedule.backward_counter[index] += full
        stage.backward_one_chunk(microbatch, loss=loss, full_backward=full)
        if index - 1 in by_index:
            by_index[index - 1].set_local_bwd_input(stage.get_local_bwd_output(microbatch), microbatch)

    def overlap(action: Any, context: Any) -> None:
        calls.append(str(action))
        thread = threading.Thread(target=backward, args=(action.sub_actions[1], context))
        thread.start()
        forward(action.sub_actions[0], context)
        thread.join()

    def record_forward(action: Any, context: Any) -> None:
        calls.append(str(action))
        forward(action, context)

    if kind == "overlap":
        schedule.register_custom_function(tables.OVERLAP_F_B, overlap)
    else:
        schedule.register_custom_function(tables.FORWARD, record_forward)
    x, target = models.batch(16)
    schedule.step(*([x] if rank == 0 else []), target=target)
    return calls, dict(schedule.backward_counter), {index: grads(module) for index, module in modules.items()}


@pytest.mark.parametrize("kind", ["overlap", "forward"])
def test_functions_of_overlaps(kind: str) -> None:
    _, dense = models.dense(4, 16, 8)
    for calls, _, found in both(_overlapping, 2, kind):
        assert calls and all(("OVERLAP_F_B" in call) == (kind == "overlap") for call in calls)
        for index, gradients in found.items():
            names = [name for name, _ in models.block(index).named_parameters()]
            for name, gradient in zip(names, gradients, strict=True):
                expected = dense[f"{index}.{name}"] * 1e4
                torch.testing.assert_close(torch.tensor(gradient), expected, rtol=1e-4, atol=1.0, msg=f"{index}.{name}")


def test_declared_values_need_the_runtime() -> None:
    """Skip values and tied weights are not what PyTorch's loop knows, so they are not silently ignored."""
    import ranks

    assert ranks.run(_declared, 1) == ["UsageError"]


def _declared(rank: int, size: int) -> Any:
    import penstock.pipelining as package

    _, _, schedule = _one_stage(package, ["0F0", "0F1", "0B0", "0B1"])
    schedule.declare_shared_parameters([{0: "up.weight"}])
    schedule.register_custom_function(package.schedules.REDUCE_GRAD, lambda action, context: None)
    try:
        step(schedule, 0, 1)
    except Exception as error:
        assert "PyTorch's loop" in str(error)
        return type(error).__name__
