"""Metadata of stages: what steps set, check and refuse, compared with the reference."""

from __future__ import annotations

from typing import Any

import models
import pytest
import ranks
import torch
from both import both, step

CPU = torch.device("cpu")
MSE = torch.nn.functional.mse_loss
WIDTH = models.WIDTH


def _meta(meta: Any) -> Any:
    return None if meta is None else (tuple(meta.shape), tuple(meta.stride), str(meta.dtype), meta.requires_grad)


def _metas(stage: Any) -> Any:
    found = stage._stage_meta
    kinds = ("inputs", "outputs", "input_grads", "output_grads")
    return {kind: None if (metas := getattr(found, kind)) is None else [_meta(m) for m in metas] for kind in kinds}


def _info(info: Any) -> Any:
    buffer = None if info.buffer is None else tuple(info.buffer.shape)
    return info.input_name, info.source, info.is_root_arg, _meta(info.tensor_meta), buffer


def _attributes(schedule: Any, stage: Any) -> Any:
    """What PyTorch's loop leaves in a stage and a schedule."""
    return {
        "metas": _metas(stage),
        "mode": getattr(stage, "_inference_mode", None) and stage._inference_mode.value,
        "recv": {chunk: [_info(i) for i in infos] for chunk, infos in stage.args_recv_info.items()},
        "grad_recv": {chunk: [_info(i) for i in infos] for chunk, infos in stage.grad_recv_info.items()},
        "send": stage.act_send_info,
        "grad_send": stage.grad_send_info,
        "chunks": stage.chunks,
        "flags": {name: value for name, value in vars(schedule).items() if name.endswith("_initialized")},
    }


class Pair(models.Block):
    """Takes and returns two tensors; the second one needs no gradient."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.last = last

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        y = super().forward(x) * (1 if mask is None else mask)
        return y if self.last else (y, (x.detach() > 0).float().mean(1, keepdim=True))


def _attributes_after(package: Any, rank: int, size: int, runs: str, multi: bool) -> Any:
    torch.manual_seed(rank)
    if multi:
        indices = [rank, rank + size]
        stages = [package.PipelineStage(Pair(i == 2 * size - 1), i, 2 * size, CPU) for i in indices]
        schedule = package.ScheduleInterleaved1F1B(stages, 4, loss_fn=MSE)
    else:
        stages = [package.PipelineStage(Pair(rank == size - 1), rank, size, CPU)]
        schedule = package.ScheduleGPipe(stages[0], 4, loss_fn=MSE)
    found = []
    for run in runs.split():
        x, target = models.batch(8)
        getattr(schedule, run)(*([x] if rank == 0 else []), target=target)
        found.append([_attributes(schedule, stage) for stage in stages])
    return found


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("runs", ["step", "eval", "step eval step", "eval step"])
def test_attributes_after_steps(runs: str, multi: bool) -> None:
    for found in both(_attributes_after, 2, runs, multi):
        assert len(found) == len(runs.split())


def _traced(package: Any, rank: int, size: int) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(models.Block() for _ in range(2)))
    x, target = models.batch(8)
    pipe = package.pipeline(model, (x[:2],), split_spec={"1": package.SplitPoint.BEGINNING})
    stage = pipe.build_stage(rank, CPU)
    schedule = package.ScheduleGPipe(stage, 4, loss_fn=MSE)
    schedule.step(*([x] if rank == 0 else []), target=target)
    return _attributes(schedule, stage)


def test_attributes_of_traced_stages() -> None:
    assert both(_traced, 2)[0]["chunks"] == 4


def _strided(package: Any, rank: int, size: int) -> Any:
    """The gradient of a sum has the strides of an expanded tensor."""

    class Same(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    stages = [package.PipelineStage(models.block(0) if i == 0 else Same(), i, 2, CPU) for i in range(2)]
    schedule = package.ScheduleInterleaved1F1B(stages, 4, loss_fn=lambda output, target: output.sum())
    step(schedule, 0, 1)
    return _metas(stages[1])


def test_strides_of_gradients() -> None:
    assert both(_strided, 1)[0]["input_grads"][0][1] == (0, 0)


class Distributed(models.Block):
    """Returns a distributed tensor, and takes one with a gradient of another placement."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.mesh = mesh

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.distributed.tensor import DTensor, Partial, Replicate

        if isinstance(x, DTensor):
            return super().forward(x.to_local(grad_placements=[Partial()]))
        return DTensor.from_local(super().forward(x), self.mesh, [Replicate()])


def _distributed(package: Any, rank: int, size: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    world = init_device_mesh("cpu", (size, 1), mesh_dim_names=("pp", "tp"))
    more = {"group": world.get_group("pp"), "get_mesh": lambda names, layout: world["tp"]}
    stage = package.PipelineStage(Distributed(world["tp"]), rank, size, CPU, **more)
    step(package.ScheduleGPipe(stage, 2, loss_fn=MSE), rank, size)
    meta = stage._stage_meta
    kinds = (meta.inputs, meta.outputs, meta.input_grads)
    return [None if metas is None else [str(m and (_meta(m), getattr(m, "placements", None))) for m in metas] for metas in kinds]


def test_distributed_gradients() -> None:
    _, last = both(_distributed, 2)
    assert "Partial" in last[2][0]


def _example(shape: tuple[int, ...], grad: bool = False) -> torch.Tensor:
    return torch.empty(shape, device="meta", requires_grad=grad)


def _vote(package: Any, rank: int, size: int, described: list[int]) -> Any:
    """Stages that describe their values, and others that do not."""
    example = _example((2, WIDTH), True)
    more = {"input_args": example, "output_args": example} if rank in described else {}
    module = models.block(rank)
    stage = package.PipelineStage(module, rank, size, CPU, **more)
    step(package.ScheduleGPipe(stage, 4, loss_fn=MSE), rank, size)
    return stage._inference_mode.value


@pytest.mark.parametrize(("described", "mode"), [([0], "dynamic"), ([1], "dynamic"), ([0, 1], "static")])
def test_stages_agree_on_the_mode(described: list[int], mode: str) -> None:
    assert both(_vote, 2, described) == [mode, mode]


def _gradient_examples(package: Any, rank: int, size: int, more: dict[str, Any]) -> Any:
    """Examples of gradients at the second of two stages on one rank."""
    given = {name: tuple(None if s is None else _example(s) for s in shapes) for name, shapes in more.items() if name != "static"}
    stages = []
    for index in range(2):
        example = _example((2, WIDTH), index > 0)
        static = {"input_args": example, "output_args": _example((2, WIDTH), True)} if "static" in more else {}
        stages.append(package.PipelineStage(models.block(index), index, 2, CPU, **static, **(given if index == 1 else {})))
    schedule = package.ScheduleInterleaved1F1B(stages, 4, loss_fn=MSE)
    step(schedule, 0, 1)
    return [_metas(stage) for stage in stages]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"input_grads": [(2, WIDTH)]}, None),
        ({"input_grads": [(3, WIDTH)]}, "Stage 1 input_grad[0]: shape mismatch"),
        ({"input_grads": [None]}, "Stage 1 input_grad[0]: expected None, got metadata"),
        ({"input_grads": [(2, WIDTH), None]}, "Stage 1 input_grad: expected 2 tensors, got 1"),
        ({"output_grads": [(3, WIDTH)]}, None),
        ({"input_grads": [(3, WIDTH)], "output_grads": [None], "static": []}, None),
    ],
)
def test_examples_of_gradients(more: dict[str, Any], text: str | None) -> None:
    (found,) = both(_gradient_examples, 1, more)
    assert (text in found) if text else len(found) == 2


class Changing(models.Block):
    """Its output has another dtype from the call number `at` on."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.calls = at, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = super().forward(x.to(self.up.weight.dtype))
        return y.double() if 0 < self.at <= self.calls else y


def _debugged(package: Any, rank: int, size: int, at: int, rows: int) -> Any:
    """With TORCH_DISTRIBUTED_DEBUG=DETAIL: stage 0 changes its output, or the second batch has another size."""
    import torch.distributed as dist

    level = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        inferred = package.__name__.startswith("torch") and at > 0  # PyTorch's inference is a call of its own
        modules = [Changing(at + inferred), models.block(1)]
        stages = [package.PipelineStage(module, index, 2, CPU) for index, module in enumerate(modules)]
        schedule = package.ScheduleInterleaved1F1B(stages, 4, loss_fn=MSE)
        step(schedule, 0, 1)
        x, target = models.batch(rows)
        schedule.step(x, target=target)
        return "accepted"
    finally:
        dist.set_debug_level(level)


@pytest.mark.parametrize(
    ("at", "rows", "text"),
    [
        (0, 8, "accepted"),
        (2, 8, "Stage 0 forward outputs[0]: dtype mismatch: torch.float32 vs torch.float64"),
        (6, 8, "Stage 0 forward outputs[0]: dtype mismatch: torch.float32 vs torch.float64"),
        (0, 12, "Stage 0 forward inputs[0]: shape mismatch: torch.Size([2, 8]) vs torch.Size([3, 8])"),
    ],
)
def test_debug_mode_checks_every_value(at: int, rows: int, text: str) -> None:
    assert text in both(_debugged, 1, at, rows)[0]


def _none(package: Any, rank: int, size: int, where: str) -> Any:
    class Odd(models.Block):
        def forward(self, x: torch.Tensor, more: Any = None) -> Any:
            y = super().forward(x)
            return {"output": None, "element": (y, None)}.get(where, y)

    stages = [package.PipelineStage(Odd() if i == 0 else models.block(i), i, 2, CPU) for i in range(2)]
    schedule = package.ScheduleInterleaved1F1B(stages, 4, loss_fn=MSE)
    x, target = models.batch(8)
    schedule.step(*([x, None] if where == "input" else [x]), target=target)
    return "accepted"


@pytest.mark.parametrize(("where", "text"), [("input", "arg[1] is None"), ("element", "arg[1] is None")])
def test_none_is_refused(where: str, text: str) -> None:
    assert text in both(_none, 1, where)[0]


def _nothing_returned(rank: int, size: int) -> Any:
    import penstock.pipelining as package
    from torch.distributed.pipelining._utils import PipeliningMetadataError

    with pytest.raises(PipeliningMetadataError, match="is None"):
        _none(package, rank, size, "output")


def test_a_stage_that_returns_nothing_is_refused() -> None:
    ranks.run(_nothing_returned, 1)
