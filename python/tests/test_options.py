"""Options of stages and schedules, with both packages: deferred weight gradients, late receives, profiler ranges; and copies."""

from __future__ import annotations

import pickle
from typing import Any

import models
import pytest
import ranks
import torch

CPU = torch.device("cpu")
MSE = torch.nn.functional.mse_loss
ROWS, MICROBATCHES = 16, 8


def _with_both(rank: int, size: int, function: Any, names: list[str]) -> Any:
    import penstock.pipelining as ours
    import torch.distributed.pipelining as reference

    return {name: [function(package, rank, size, name) for package in (ours, reference)] for name in names}


def _indices(name: str, rank: int, size: int) -> list[int]:
    if name in ("GPipe", "1F1B"):
        return [rank]
    return [rank, 2 * size - 1 - rank] if name in ("ZBVZeroBubble", "DualPipeV") else [rank, rank + size]


def _step(package: Any, name: str, stages: list[Any], **options: Any) -> torch.Tensor | None:
    made = package.schedules.get_schedule_class(name)
    schedule = made(stages if len(stages) > 1 else stages[0], MICROBATCHES, loss_fn=MSE, **options)
    x, target = models.batch(ROWS)
    output: torch.Tensor | None = schedule.step(*([x] if stages[0].is_first else []), target=target)
    return output


class _Later(torch.autograd.Function):
    """A product with a weight whose gradient is computed later."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, queue: list[Any]) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.queue = queue
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        ctx.queue.append((x, grads[0]))
        return grads[0] @ weight, None, None


class _Deferring(torch.nn.Module):
    """Computes the gradient of its weight in the function that `build` returns."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(models.block(stage).up.weight[: models.WIDTH].detach().clone())
        self.queue: list[Any] = []
        self.events: list[str] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.events.append("forward")
        y: torch.Tensor = _Later.apply(x, self.weight, self.queue)
        return torch.tanh(y)

    def build(self) -> Any:
        self.events.append("build")
        products = list(self.queue)
        self.queue.clear()

        def run() -> None:
            self.events.append("run")
            for x, grad in products:
                total = grad.t() @ x
                self.weight.grad = total if self.weight.grad is None else self.weight.grad + total

        return run


def _deferred(package: Any, rank: int, size: int, name: str) -> Any:
    indices = _indices(name, rank, size)
    modules = {index: _Deferring(index) for index in indices}
    total = size * len(indices)
    example = torch.empty(ROWS // MICROBATCHES, models.WIDTH, requires_grad=True)  # the reference runs the modules once without it
    stages = [
        package.PipelineStage(module, index, total, CPU, input_args=example, output_args=example, dw_builder=module.build)
        for index, module in modules.items()
    ]
    _step(package, name, stages)
    return {index: (module.weight.grad, module.events) for index, module in modules.items()}


def test_deferred_weight_gradients() -> None:
    names = ["GPipe", "1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble"]
    per_rank = ranks.run(_with_both, 2, _deferred, names)
    x, target = models.batch(ROWS)
    for name in names:
        weights = [_Deferring(stage).weight for stage in range(2 * len(_indices(name, 0, 2)))]
        y = x
        for weight in weights:
            y = torch.tanh(y @ weight.t())
        MSE(y, target).backward()
        for found in per_rank:
            ours, reference = found[name]
            assert ours.keys() == reference.keys()
            for index, (grad, events) in ours.items():
                torch.testing.assert_close(grad, weights[index].grad, rtol=1e-4, atol=1e-6)
                torch.testing.assert_close(grad, reference[index][0], rtol=1e-4, atol=1e-6)
                assert events == reference[index][1], (name, index)
                assert events.count("build") == events.count("run") == MICROBATCHES


def _late_receives(package: Any, rank: int, size: int, name: str) -> Any:
    indices = _indices(name, rank, size)
    modules = {index: models.block(index) for index in indices}
    stages = [package.PipelineStage(module, index, size * len(indices), CPU) for index, module in modules.items()]
    output = _step(package, name, stages, defer_pp_recv=True)
    return output, {f"{i}.{n}": p.grad for i, module in modules.items() for n, p in module.named_parameters()}


def test_receives_just_before_their_use() -> None:
    names = ["LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]
    _, dense = models.dense(4, ROWS, MICROBATCHES)
    for found in ranks.run(_with_both, 2, _late_receives, names):
        for name in names:
            ours, reference = found[name]
            if name not in ("InterleavedZeroBubble", "ZBVZeroBubble"):  # the reference mixes up values of microbatches there
                torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-6)
            for key, grad in ours[1].items():
                torch.testing.assert_close(grad, dense[key], rtol=1e-4, atol=1e-6, msg=f"{name}: {key}")


def _ranges(package: Any, rank: int, size: int, name: str) -> Any:
    indices = _indices(name, rank, size)
    stages = [package.PipelineStage(models.block(index), index, size * len(indices), CPU) for index in indices]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        _step(package, name, stages)
    return sorted(event.name for event in profile.events() if event.name.startswith("PP:"))


def test_profiler_ranges() -> None:
    names = ["Interleaved1F1B", "InterleavedZeroBubble", "DualPipeV"]
    for found in ranks.run(_with_both, 2, _ranges, names):
        for name in names:
            ours, reference = found[name]
            computes = [[text for text in each if "SEND" not in text and "RECV" not in text] for each in (ours, reference)]
            assert computes[0] == computes[1], name
            assert len(computes[0]) > 2 * MICROBATCHES, name


def _compiled(rank: int, size: int) -> Any:
    import penstock.pipelining as ours

    module = models.block(rank)
    stage = ours.PipelineStage(torch.compile(module, backend="aot_eager"), rank, size, CPU)
    _step(ours, "1F1B", [stage])
    two = [ours.PipelineStage(stage.submod, index, 2 * size, CPU) for index in (rank, rank + size)]
    for name, stages in (("ZB1P", stage), ("ZB2P", stage), ("VHalf", two), ("InterleavedZeroBubble", two)):
        with pytest.raises(RuntimeError, match=f"{name} schedule is not supported with.*torch.compile"):
            ours.schedules.get_schedule_class(name)(stages, MICROBATCHES, loss_fn=MSE)
    return {f"{rank}.{key}": p.grad for key, p in module.named_parameters()}


def test_compiled_stages() -> None:
    _, dense = models.dense(2, ROWS, MICROBATCHES)
    for grads in ranks.run(_compiled, 2):
        for key, grad in grads.items():
            torch.testing.assert_close(grad, dense[key], rtol=1e-4, atol=1e-6, msg=key)


def _copied(rank: int, size: int) -> Any:
    import penstock.pipelining as ours

    schedule = ours.Schedule1F1B(ours.PipelineStage(models.block(rank), rank, size, CPU), MICROBATCHES, loss_fn=MSE)
    x, target = models.batch(ROWS)
    schedule.step(*([x] if rank == 0 else []), target=target)
    again = pickle.loads(pickle.dumps(schedule))
    module = again._stage.submod
    assert module is not schedule._stage.submod
    module.zero_grad()
    again.step(*([x] if rank == 0 else []), target=target)
    return {f"{rank}.{key}": p.grad for key, p in module.named_parameters()}


def test_schedules_can_be_pickled_after_a_step() -> None:
    _, dense = models.dense(2, ROWS, MICROBATCHES)
    for grads in ranks.run(_copied, 2):
        for key, grad in grads.items():
            torch.testing.assert_close(grad, dense[key], rtol=1e-4, atol=1e-6, msg=key)
