"""Pipelines whose stages are replicated (DDP), sharded (fully_shard) or made of distributed tensors."""

from __future__ import annotations

from typing import Any

import models
import pytest
import ranks
import torch

CPU = torch.device("cpu")
MSE = torch.nn.functional.mse_loss
SINGLE = ["GPipe", "1F1B"]
LOOPED = ["LoopedBFS", "Interleaved1F1B"]
ZERO_BUBBLE = ["InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]
ROWS = 16


def _indices(name: str, rank: int) -> list[int]:
    if name in [*SINGLE, "ZB1P"]:
        return [rank]
    return [rank, 3 - rank] if name in ("ZBVZeroBubble", "DualPipeV") else [rank, rank + 2]


def _wrap(module: torch.nn.Module, mode: str, mesh: Any) -> Any:
    from torch.distributed._composable.replicate_with_fsdp import replicate
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    if mode == "ddp":
        return DistributedDataParallel(module, process_group=mesh.get_group())
    if mode == "replicate":
        return replicate(module, mesh=mesh)
    if mode == "fsdp":
        return fully_shard(module, mesh=mesh)
    return fully_shard(module, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


def _train(package: Any, names: list[str], mode: str, steps: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    dp, pp = mesh["dp"], mesh["pp"]
    found = {}
    for name in names:
        stages = []
        indices = _indices(name, pp.get_local_rank())
        for index in indices:
            module = _wrap(models.block(index), mode, dp)
            stages.append(package.PipelineStage(module, index, 2 * len(indices), CPU, group=pp.get_group()))
        made = package.schedules.get_schedule_class(name)
        schedule = made(stages[0] if len(indices) == 1 else stages, 4, loss_fn=lambda y, target: MSE(y.float(), target))
        x, target = models.batch(ROWS)
        half = slice(dp.get_local_rank() * ROWS // 2, (dp.get_local_rank() + 1) * ROWS // 2)
        for _ in range(steps):  # gradients accumulate
            schedule.step(*([x[half]] if pp.get_local_rank() == 0 else []), target=target[half])
        grads = {}
        for stage in stages:
            for key, parameter in stage.submod.named_parameters():
                grad = parameter.grad
                grads[f"{stage.stage_index}.{key.removeprefix('module.')}"] = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
        found[name] = grads
    return found


def _train_ours(rank: int, size: int, names: list[str], mode: str) -> Any:
    import penstock.pipelining as ours

    return _train(ours, names, mode, steps=2)


@pytest.mark.parametrize("mode", ["ddp", "fsdp", "replicate"])
def test_gradients_are_those_of_the_full_batch(mode: str) -> None:
    names = [*SINGLE, "ZB1P", *LOOPED, *ZERO_BUBBLE]
    per_rank = ranks.run(_train_ours, 4, names, mode)
    for name in names:
        _, dense = models.dense(2 * len(_indices(name, 0)), ROWS, 4)
        for found in per_rank:
            for key, grad in found[name].items():
                torch.testing.assert_close(grad, 2 * dense[key], rtol=1e-4, atol=1e-6, msg=f"{mode}, {name}: {key}")


def _train_both(rank: int, size: int, names: list[str], mode: str) -> Any:
    import penstock.pipelining as ours
    import torch.distributed.pipelining as reference

    return [_train(package, names, mode, steps=1) for package in (ours, reference)]


@pytest.mark.parametrize("mode", ["ddp", "fsdp", "replicate", "bf16"])
def test_gradients_of_one_step_are_those_of_the_reference(mode: str) -> None:
    names = SINGLE + LOOPED + (ZERO_BUBBLE if mode != "ddp" else [])  # DDP there reduces only some gradients
    for ours, reference in ranks.run(_train_both, 4, names, mode):
        for name in names:
            assert ours[name].keys() == reference[name].keys()
            for key, grad in ours[name].items():
                torch.testing.assert_close(grad, reference[name][key], rtol=1e-5, atol=1e-7, msg=f"{mode}, {name}: {key}")


def _tensor_parallel(rank: int, size: int, names: list[str]) -> Any:
    from penstock.pipelining import PipelineStage
    from penstock.pipelining.schedules import get_schedule_class
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    found = {}
    for name in names:
        index = mesh["pp"].get_local_rank()
        module = models.block(index)
        parallelize_module(module, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        stage = PipelineStage(module, index, 2, CPU, group=mesh["pp"].get_group())
        schedule = get_schedule_class(name)(stage, 4, loss_fn=MSE)
        x, target = models.batch(ROWS)
        schedule.step(*([x] if index == 0 else []), target=target)
        found[name] = {
            f"{index}.{key}": p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
            for key, p in module.named_parameters()
        }
    return found


def test_stages_of_distributed_parameters() -> None:
    names = ["1F1B", "ZB1P"]
    per_rank = ranks.run(_tensor_parallel, 4, names)
    _, dense = models.dense(2, ROWS, 4)
    for found in per_rank:
        for name in names:
            for key, grad in found[name].items():
                torch.testing.assert_close(grad, dense[key], rtol=1e-4, atol=1e-6, msg=f"{name}: {key}")


class Sharded(torch.nn.Module):
    """Returns a distributed tensor that is sharded over the rows."""

    def __init__(self, stage: int, mesh: Any) -> None:
        super().__init__()
        from torch.distributed.tensor import distribute_module

        self.block = distribute_module(models.block(stage), mesh)
        self.mesh = mesh
        self.stage = stage

    def forward(self, x: torch.Tensor) -> Any:
        from torch.distributed.tensor import DTensor, Shard, distribute_tensor

        if self.stage == 0:
            x = distribute_tensor(x, self.mesh, [Shard(0)])
        assert isinstance(x, DTensor) and x.placements == (Shard(0),), x
        y = self.block(x)
        return y if self.stage == 0 else y.full_tensor()


def _distributed_activations(rank: int, size: int) -> Any:
    from penstock.pipelining import PipelineStage, Schedule1F1B
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    index = mesh["pp"].get_local_rank()
    module = Sharded(index, mesh["tp"])
    schedule = Schedule1F1B(PipelineStage(module, index, 2, CPU, group=mesh["pp"].get_group()), 4, loss_fn=MSE)
    x, target = models.batch(ROWS)
    schedule.step(*([x] if index == 0 else []), target=target)
    return {f"{index}.{key.removeprefix('block.')}": p.grad.full_tensor() for key, p in module.named_parameters()}


def test_distributed_tensors_between_stages() -> None:
    per_rank = ranks.run(_distributed_activations, 4)
    _, dense = models.dense(2, ROWS, 4)
    for found in per_rank:
        for key, grad in found.items():
            torch.testing.assert_close(grad, dense[key], rtol=1e-4, atol=1e-6, msg=key)


def _two_layouts(rank: int, size: int) -> Any:
    """Distributed tensors on two meshes with equal axes and sizes, and on one that is not known."""
    from penstock.pipelining import PipelineStage
    from penstock.pipelining._distributed import pack, unpack
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining._utils import PipeliningMetadataError
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    world = init_device_mesh("cpu", (4,), mesh_dim_names=("world",))
    meshes = [world._unflatten(0, (2, 2), names)["tp"] for names in (("pp", "tp"), ("tp", "pp"))]
    full = torch.arange(8.0).view(4, 2)
    stages, packed = [], []
    for mesh in meshes:
        module = models.block(0)
        module.scale = torch.nn.Parameter(distribute_tensor(torch.zeros(2), mesh))
        stages.append(PipelineStage(module, 0, 4, CPU))
        found = pack(distribute_tensor(full, mesh, [Shard(0)]))
        assert found is not None
        packed.append(found)
    for mesh, (local, text) in zip(meshes, packed, strict=True):
        again = unpack(local, text)
        assert isinstance(again, DTensor) and again.device_mesh == mesh
        torch.testing.assert_close(again.full_tensor(), full)
    assert len(stages[0]._mesh_cache) == len(stages[1]._mesh_cache) == 1

    import penstock.pipelining._distributed as distributed

    distributed._meshes.clear()
    del stages, module
    unknown = PipelineStage(models.block(0), 0, 4, CPU, get_mesh=lambda names, layout: None)
    with pytest.raises(PipeliningMetadataError, match="(?s)axes .'tp',.*callback returned None.*get_mesh"):
        unpack(*packed[0])
    unknown._mesh_cache._get_mesh_cb = lambda names, layout: meshes[0] if (names, layout) == (("tp",), meshes[0]._layout) else None
    assert unpack(*packed[0]).device_mesh == meshes[0]


def test_meshes_are_found_by_axes_and_layout() -> None:
    ranks.run(_two_layouts, 4)


class Wraps(models.Block):
    """Sends a distributed tensor to a stage that does not know its mesh."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.mesh = mesh

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.distributed.tensor import DTensor, Replicate

        return DTensor.from_local(super().forward(x), self.mesh, [Replicate()])


def _unknown_mesh(rank: int, size: int) -> Any:
    from penstock.pipelining import PipelineStage, ScheduleGPipe
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (size, 1), mesh_dim_names=("pp", "tp"))
    module = Wraps(mesh["tp"]) if rank == 0 else models.block(1)
    schedule = ScheduleGPipe(PipelineStage(module, rank, size, CPU, group=mesh.get_group("pp")), 2, loss_fn=MSE)
    x, target = models.batch(ROWS)
    try:
        schedule.step(*([x] if rank == 0 else []), target=target)
    except RuntimeError as error:
        return [base.__name__ for base in type(error).__mro__], str(error)


def test_an_unknown_mesh_is_a_metadata_error_on_every_rank() -> None:
    for bases, text in ranks.run(_unknown_mesh, 2):
        assert "PipeliningMetadataError" in bases
        assert "axes ('tp',)" in text and "get_mesh" in text


class PartlyUsed(models.Block):
    """Has a parameter that only the second replica uses, and one that none uses."""

    def __init__(self, used: bool) -> None:
        super().__init__()
        self.used = used
        self.sometimes, self.never = torch.nn.Linear(models.WIDTH, models.WIDTH), torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return self.sometimes(y) if self.used else y


def _unused(rank: int, size: int) -> Any:
    from penstock.pipelining import PipelineStage, Schedule1F1B
    from torch.nn.parallel import DistributedDataParallel

    x, target = models.batch(ROWS)
    half = slice(rank * ROWS // 2, (rank + 1) * ROWS // 2)
    groups = [torch.distributed.new_group([each]) for each in range(size)]
    found = []
    for pipelined in (True, False):
        torch.manual_seed(3)
        module = DistributedDataParallel(PartlyUsed(rank == 1), find_unused_parameters=True)
        if pipelined:
            stage = PipelineStage(module, 0, 1, CPU, group=groups[rank])
            Schedule1F1B(stage, 4, loss_fn=MSE).step(x[half], target=target[half])
        else:
            MSE(module(x[half]), target[half]).backward()
        found.append({key: p.grad for key, p in module.named_parameters()})
    return found


def test_unused_parameters_have_no_gradients() -> None:
    for ours, dense in ranks.run(_unused, 2):
        assert {key for key, grad in ours.items() if grad is None} == {"module.never.weight", "module.never.bias"}
        for key, grad in ours.items():
            torch.testing.assert_close(grad, dense[key], rtol=1e-4, atol=1e-6, msg=key)
