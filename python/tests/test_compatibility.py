"""What programs written for torch.distributed.pipelining may rely on, compared with the reference."""

from __future__ import annotations

import importlib
import re
from typing import Any
from unittest import mock

import models
import pytest
import ranks
import torch
from both import PACKAGES, both, grads, step

CPU = torch.device("cpu")
MSE = torch.nn.functional.mse_loss


@pytest.mark.parametrize("name", ["_backward", "_debug", "_unflatten", "_utils", "microbatch", "schedules", "stage", "_IR"])
def test_modules_and_names(name: str) -> None:
    reference, ours = (getattr(importlib.import_module(package), name) for package in PACKAGES)
    assert [n for n in dir(reference) if not hasattr(ours, n)] == []


@pytest.mark.parametrize("name", ["1F1B", "GPipe", "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "DualPipeV"])
def test_tables_of_mock_stages_hold_actions(name: str) -> None:
    from penstock.pipelining.schedules import PipelineScheduleSingle, _Action, get_schedule_class
    from penstock.pipelining.stage import PipelineStage

    made = get_schedule_class(name)
    single = issubclass(made, PipelineScheduleSingle)
    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.submod, stage.num_stages = 0, 2, None, 2 if single else 4
    schedule = made(stage if single else [stage, stage], 4)
    rows = [*schedule.pipeline_order.values(), *getattr(schedule, "pipeline_order_with_comms", {}).values()]
    assert all(isinstance(action, _Action) for row in rows for action in row if action is not None)
    if single:
        assert str(schedule.pipeline_order[1][-1]) == "1REDUCE_GRAD"


def test_unknown_schedules() -> None:
    from penstock.pipelining.schedules import get_schedule_class

    with pytest.raises(ValueError, match=re.escape("Unknown schedule name 'GPype'. The valid options are ['1F1B', ")):
        get_schedule_class("GPype")


def _few_microbatches(package: Any, rank: int, size: int) -> Any:
    return package.Schedule1F1B(package.PipelineStage(models.block(rank), rank, size, CPU), 1)


def test_too_few_microbatches() -> None:
    assert "Number of microbatches (1) must be greater than" in both(_few_microbatches, 2)[0]


def test_a_traced_graph_becomes_a_pipe_of_the_package() -> None:
    from penstock.pipelining._IR import MultiUseParameterConfig, Pipe

    program = torch.export.export(models.block(0), models.batch(2)[:1])
    assert isinstance(Pipe._from_traced(program.module(), program, MultiUseParameterConfig.REPLICATE), Pipe)


def _examples(package: Any, rank: int, size: int, given: str, rows: int) -> Any:
    example = (torch.empty(rows, models.WIDTH, device="meta", requires_grad=True),)
    more: dict[str, Any] = {f"{kind}_args": example for kind in ("input", "output") if kind in given}
    module = models.block(rank)
    stage = package.PipelineStage(module, rank, size, CPU, **more)
    step(package.ScheduleGPipe(stage, 4, loss_fn=MSE), rank, size)
    inputs = stage._stage_meta.inputs
    return grads(module), stage._inference_mode.value, [(m.shape, m.dtype) for m in inputs], stage.chunks


@pytest.mark.parametrize("given", ["", "input", "output", "input output"])
def test_examples_of_values(given: str) -> None:
    both(_examples, 2, given, 2)


@pytest.mark.parametrize(("given", "rows"), [("input", 3), ("output", 3), ("input output", 3)])
def test_wrong_examples(given: str, rows: int) -> None:
    both(_examples, 1, given, rows)


def _wrong_example(rank: int, size: int) -> Any:
    from penstock.pipelining import PipelineStage, ScheduleGPipe

    example = torch.empty(3, models.WIDTH) if rank == 0 else None
    stage = PipelineStage(models.block(rank), rank, size, CPU, input_args=example)
    try:
        step(ScheduleGPipe(stage, 4, loss_fn=MSE), rank, size)
    except RuntimeError as error:
        return [base.__name__ for base in type(error).__mro__], str(error)


def test_a_wrong_example_is_a_metadata_error_on_every_rank() -> None:
    for bases, text in ranks.run(_wrong_example, 2):
        assert "PipeliningMetadataError" in bases
        assert "Stage 0 input[0]: shape mismatch: torch.Size([3, 8]) vs torch.Size([2, 8])" in text


def _no_target(package: Any, rank: int, size: int) -> Any:
    package.ScheduleGPipe(package.PipelineStage(models.block(0), 0, 1, CPU), 4, loss_fn=MSE).step(models.batch(8)[0])


def test_a_missing_target() -> None:
    both(_no_target, 1)


def _evaluated(package: Any, rank: int, size: int) -> Any:
    modes = []
    module = models.block(rank)
    module.register_forward_hook(lambda m, i, o: modes.append((torch.is_grad_enabled(), i[0].requires_grad, o.requires_grad)))
    schedule = package.ScheduleGPipe(package.PipelineStage(module, rank, size, CPU), 4, loss_fn=lambda o, t: (o - t).sum(1))
    losses: list[torch.Tensor] = []
    more = {"losses": losses} if rank == size - 1 else {}
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            x, target = models.batch(8)
            schedule.eval(*([x] if rank == 0 else []), target=target, **more)
        modes.append([(loss.shape, loss.requires_grad) for loss in losses])
    return modes[-1], modes[-2], modes[-6]


def test_eval_runs_in_the_gradient_mode_of_the_caller() -> None:
    both(_evaluated, 2)


def _microbatches(package: Any, rank: int, size: int, backward: bool) -> Any:
    module = models.block(rank)
    stage = package.PipelineStage(module, rank, size, CPU)
    stage.has_backward = backward
    schedule = package.Schedule1F1B(stage, 4, loss_fn=MSE)
    x, target = models.batch(8)
    losses: list[torch.Tensor] = []
    args = [[chunk] for chunk in x.chunk(4)] if rank == 0 else None
    schedule._step_microbatches(args, [None] * 4, list(target.chunk(4)), losses)
    return grads(module), len(losses), len(stage.output_chunks)


@pytest.mark.parametrize("backward", [True, False])
def test_microbatches_without_step(backward: bool) -> None:
    both(_microbatches, 2, backward)


def _overridden(package: Any, rank: int, size: int, where: str) -> Any:
    calls = []

    class Stage(package.PipelineStage):  # type: ignore[misc]
        def perform_reduce_grad(self, grad_scale_factor: int) -> None:
            calls.append(f"reduce {grad_scale_factor}")
            super().perform_reduce_grad(grad_scale_factor)

    module = models.block(rank)
    stage = (Stage if where == "class" else package.PipelineStage)(module, rank, size, CPU)
    if where == "object" and rank == 1:  # the other rank must follow
        stage.forward_one_chunk = mock.Mock(side_effect=stage.forward_one_chunk)
    schedule = package.ScheduleGPipe(stage, 4, loss_fn=MSE)
    for _ in range(2):
        module.zero_grad()
        step(schedule, rank, size)
    return grads(module), calls, getattr(stage.forward_one_chunk, "call_count", None)


@pytest.mark.parametrize("where", ["class", "object"])
def test_stages_with_methods_of_their_own(where: str) -> None:
    both(_overridden, 2, where)


def test_a_stage_of_another_kind() -> None:
    from penstock.pipelining import ScheduleGPipe

    stage = mock.MagicMock()
    stage.num_stages, stage.is_last, stage.device, stage.output_chunks = 1, True, CPU, []
    stage.forward_one_chunk.side_effect = lambda i, args, kwargs, save_forward_output: stage.output_chunks.append(args[0])
    x, _ = models.batch(8)
    torch.testing.assert_close(ScheduleGPipe(stage, 4).step(x), x)
    assert stage.forward_one_chunk.call_count == stage.backward_one_chunk.call_count == 4


def _edited_table(package: Any, rank: int, size: int) -> Any:
    module = models.block(rank)
    stage = package.PipelineStage(module, rank, size, CPU)
    schedule = package.schedules._PipelineScheduleRuntime([stage], 4, loss_fn=MSE)
    schedule._prepare_schedule_with_comms(
        {r: [package.schedules._Action.from_str(f"{r}{kind}{m}") for kind in "FB" for m in range(4)] for r in range(size)}
    )
    for row in schedule.pipeline_order_with_comms.values():
        row[:] = [action for action in row if action.computation_type.value != "REDUCE_GRAD"]
    step(schedule, rank, size)
    return grads(module)


def test_an_edited_table_without_reductions() -> None:
    both(_edited_table, 2)


def _fails_early(rank: int, size: int) -> Any:
    from penstock.pipelining import PipelineStage, ScheduleGPipe

    schedule = ScheduleGPipe(PipelineStage(models.block(rank), rank, size, CPU), 4, loss_fn=MSE)
    if rank == 0:
        with torch.no_grad(), pytest.raises(RuntimeError, match="requires gradients"):
            step(schedule, rank, size)
    return step(schedule, rank, size) is not None


def test_a_step_without_gradients_does_not_wait_for_other_ranks() -> None:
    assert ranks.run(_fails_early, 2) == [False, True]


class _Wraps(models.Block):
    """Sends a distributed tensor to the next stage, which has no parameters on the mesh."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.mesh = mesh

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.distributed.tensor import DTensor, Replicate

        if isinstance(x, DTensor):
            return super().forward(x.to_local())
        return DTensor.from_local(super().forward(x), self.mesh, [Replicate()])


def _get_mesh(package: Any, rank: int, size: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    world = init_device_mesh("cpu", (size, 1), mesh_dim_names=("pp", "tp"))
    torch.manual_seed(rank)
    module = _Wraps(world["tp"])
    asked = []

    def get_mesh(names: Any, layout: Any) -> Any:
        asked.append((names, layout == world["tp"]._layout))
        return world["tp"]

    stage = package.PipelineStage(module, rank, size, CPU, group=world.get_group("pp"), get_mesh=get_mesh)
    step(package.ScheduleGPipe(stage, 2, loss_fn=MSE), rank, size)
    return grads(module), asked if rank == 1 else None


def test_get_mesh() -> None:
    both(_get_mesh, 2)


def _patched(package: Any, rank: int, size: int) -> Any:
    module = models.block(0)
    stage = package.PipelineStage(module, 0, 1, CPU)
    schedule = package.ScheduleGPipe(stage, 4, loss_fn=MSE)
    step(schedule, 0, 1)
    counts = []
    for thing, name in ((stage, "scale_grads"), (schedule, "_maybe_compute_loss"), (schedule, "_compute_loss")):
        with mock.patch.object(thing, name, wraps=getattr(thing, name)) as patched:
            module.zero_grad()
            step(schedule, 0, 1)
            counts.append(patched.call_count)
    module.zero_grad()
    step(schedule, 0, 1)
    return grads(module), counts[:2]


def test_methods_may_be_patched_between_steps() -> None:
    both(_patched, 1)


def _overridden_split(rank: int, size: int, name: str) -> Any:
    from penstock.pipelining import PipelineStage
    from penstock.pipelining.schedules import get_schedule_class

    calls = []

    class Stage(PipelineStage):
        def perform_reduce_grad(self, grad_scale_factor: int) -> None:
            calls.append(grad_scale_factor)
            super().perform_reduce_grad(grad_scale_factor)

    module = models.block(rank)
    schedule = get_schedule_class(name)(Stage(module, rank, size, CPU), 4, loss_fn=MSE)
    losses: list[torch.Tensor] = []
    output = step(schedule, rank, size, losses=losses)
    x, target = models.batch(8)
    evaluated = schedule.eval(*([x] if rank == 0 else []), target=target)
    assert rank < size - 1 or (len(losses) == 4 and torch.equal(output, evaluated))
    return {f"{rank}.{key}": p.grad for key, p in module.named_parameters()}, calls


@pytest.mark.parametrize("name", ["ZB1P", "ZB2P"])
def test_our_schedules_with_methods_of_the_program(name: str) -> None:
    _, dense = models.dense(3, 8, 4)
    for grads, calls in ranks.run(_overridden_split, 3, name):
        assert calls == [4]
        for key, grad in grads.items():
            torch.testing.assert_close(grad, dense[key], rtol=1e-4, atol=1e-6, msg=key)


@pytest.mark.parametrize("name", ["1F1B", "InterleavedZeroBubble", "ZB1P", "VHalf"])
def test_the_visualizer_knows_every_schedule(name: str) -> None:
    from penstock import schedule
    from penstock.pipelining._schedule_visualizer import get_schedule_ops
    from penstock.pipelining.schedules import get_schedule_class
    from torch.distributed.pipelining import _schedule_visualizer as reference

    ours = [[str(action) for action in row if action is not None] for row in get_schedule_ops(name, 4, 8)]
    if name == "InterleavedZeroBubble":
        assert ours == [[str(a) for a in row if a is not None] for row in reference.get_schedule_ops(name, 4, 8)]
    else:
        made = schedule.generate({"VHalf": "V-Half"}.get(name, name), ranks=4, microbatches=8)
        assert [[text for text in row if "REDUCE" not in text] for row in ours] == [
            [str(a) for a in row if a is not None] for row in made.table
        ]
    with pytest.raises(AssertionError, match="num_stages_per_rank"):
        get_schedule_ops(get_schedule_class(name), 4, 8, num_stages_per_rank=2 if name in ("1F1B", "ZB1P") else 1)


def _abstract(package: Any, rank: int, size: int) -> Any:
    stage = package.PipelineStage(models.block(0), 0, 1, CPU)
    try:
        package.schedules.PipelineScheduleSingle(stage, 4)
    except TypeError as error:
        return str(error).partition(" with")[0]


def test_the_base_class_is_abstract() -> None:
    both(_abstract, 1)


def _missing_file(package: Any, rank: int, size: int) -> Any:
    stage = package.PipelineStage(models.block(0), 0, 1, CPU)
    found = []
    for made in (package.schedules.PipelineScheduleMulti, package.schedules._PipelineScheduleRuntime):
        for form in ("compute_only", "compute_comms", "other"):
            try:
                made([stage], 4)._load_csv("does/not/exist.csv", form)
            except Exception as error:
                found.append((type(error).__name__, str(error)))
    return found


def test_formats_are_checked_before_files() -> None:
    both(_missing_file, 1)


def _reversed_ranks(package: Any, rank: int, size: int) -> Any:
    index = size - 1 - rank
    module = models.block(index)
    stage = package.PipelineStage(module, index, size, CPU)
    stage.stage_index_to_group_rank = {i: size - 1 - i for i in range(size)}
    losses: list[torch.Tensor] = []
    output = step(package.Schedule1F1B(stage, 4, loss_fn=MSE), index, size, losses=losses)
    return grads(module), [round(loss.item(), 5) for loss in losses], output is None


def test_stages_may_be_on_other_ranks() -> None:
    both(_reversed_ranks, 3)
