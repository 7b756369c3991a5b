"""What stages accept and return, and the options of schedules."""

from __future__ import annotations

import pathlib
from typing import Any

import models
import pytest
import ranks
import torch

CPU = torch.device("cpu")
MSE = torch.nn.functional.mse_loss


class Pair(torch.nn.Module):
    """Passes on a dict with a tuple and takes a keyword argument."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.block = models.Block()
        self.last = last

    def forward(self, x: Any, scale: float = 1.0, mask: torch.Tensor | None = None) -> Any:
        tensor = x["pair"][0] + x["pair"][1] if isinstance(x, dict) else x
        y = self.block(tensor) * scale
        if mask is not None:
            y = y * mask
        return y if self.last else {"pair": (y, 2 * y), "name": "pair"}


def _structures(rank: int, size: int) -> Any:
    from penstock.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(rank)
    module = Pair(last=rank == size - 1)
    schedule = ScheduleGPipe(PipelineStage(module, rank, size, CPU), 4, loss_fn=MSE)
    x, target = models.batch(8)
    mask = (torch.arange(8) % 2).float().unsqueeze(1)
    losses: list[torch.Tensor] = []
    schedule.step(*([x] if rank == 0 else []), target=target, losses=losses, scale=0.5, mask=mask)
    return {n: p.grad for n, p in module.named_parameters()}, [loss.item() for loss in losses]


def test_structures_and_keyword_arguments() -> None:
    per_rank = ranks.run(_structures, 2)
    stages = []
    for rank in range(2):
        torch.manual_seed(rank)
        stages.append(Pair(last=rank == 1))
    x, target = models.batch(8)
    mask = (torch.arange(8) % 2).float().unsqueeze(1)
    loss = MSE(stages[1](stages[0](x, 0.5, mask), 0.5, mask), target)
    loss.backward()
    for rank, (grads, losses) in enumerate(per_rank):
        for name, parameter in stages[rank].named_parameters():
            torch.testing.assert_close(grads[name], parameter.grad, rtol=1e-4, atol=1e-6)
    assert sum(per_rank[1][1]) / 4 == pytest.approx(loss.item(), rel=1e-5)


def _skip_and_tie(rank: int, size: int, name: str) -> Any:
    from penstock.pipelining import PipelineStage, StageOutput
    from penstock.pipelining.schedules import get_schedule_class

    class First(models.Block):
        def forward(self, x: torch.Tensor) -> Any:
            y = super().forward(x)
            return StageOutput(y, {"early": y * 3})

    class Last(models.Block):
        def forward(self, x: torch.Tensor, early: torch.Tensor) -> Any:
            return super().forward(x) + early

    kinds = {0: First, 3: Last}
    indices = [rank] if size == 4 else [rank, rank + 2]
    modules = {}
    for index in indices:
        torch.manual_seed(1000 + index)
        modules[index] = kinds.get(index, models.Block)()
    stages = [PipelineStage(modules[index], index, 4, CPU) for index in indices]
    schedule = get_schedule_class(name)(stages[0] if size == 4 else stages, 4, loss_fn=MSE)
    schedule.declare_skips([("early", 0, 3)])
    schedule.declare_shared_parameters([{0: "up.weight", 3: "up.weight"}])
    x, target = models.batch(8)
    schedule.step(*([x] if rank == 0 else []), target=target)
    return {f"{i}.{n}": p.grad for i, m in modules.items() for n, p in m.named_parameters()}


@pytest.mark.parametrize(("size", "name"), [(4, "1F1B"), (4, "ZB1P"), (2, "InterleavedZeroBubble")])
def test_skip_values_and_shared_parameters(size: int, name: str) -> None:
    per_rank = ranks.run(_skip_and_tie, size, name)
    blocks = [models.block(stage) for stage in range(4)]
    blocks[3].up.weight = blocks[0].up.weight
    x, target = models.batch(8)
    first = blocks[0](x)
    MSE(blocks[3](blocks[2](blocks[1](first))) + 3 * first, target).backward()
    for grads in per_rank:
        for key, grad in grads.items():
            stage, parameter = key.split(".", 1)
            want = dict(blocks[int(stage)].named_parameters())[parameter].grad
            torch.testing.assert_close(grad, want, rtol=1e-4, atol=1e-6, msg=key)


def _alone(function: Any) -> Any:
    return ranks.run(_alone_main, 1, function)[0]


def _alone_main(rank: int, size: int, function: Any) -> Any:
    return function()


def _eval_keeps_the_mode() -> None:
    from penstock.pipelining import PipelineStage, Schedule1F1B

    module = torch.nn.Sequential(models.block(0), torch.nn.Dropout(0.5))
    schedule = Schedule1F1B(PipelineStage(module, 0, 1, CPU), 2, loss_fn=MSE)
    x, target = models.batch(8)
    losses: list[torch.Tensor] = []
    torch.manual_seed(5)
    output = schedule.eval(x, target=target, losses=losses)
    torch.manual_seed(5)
    parts = [module(chunk) for chunk in x.chunk(2)]
    torch.testing.assert_close(output, torch.cat(parts))  # the mode and the generator are the program's
    assert len(losses) == 2
    assert output.requires_grad and losses[0].requires_grad  # so is the gradient mode
    with torch.no_grad():
        assert not schedule.eval(x).requires_grad
    assert all(p.grad is None for p in module.parameters())
    with torch.no_grad(), pytest.raises(RuntimeError, match="eval"):
        schedule.step(x, target=target)


def test_eval() -> None:
    _alone(_eval_keeps_the_mode)


def _dropout_follows_the_generator() -> None:
    import penstock.pipelining as ours
    import torch.distributed.pipelining as reference

    grads = []
    for package in (ours, reference):
        module = torch.nn.Sequential(models.block(0), torch.nn.Dropout(0.5))
        schedule = package.ScheduleGPipe(package.PipelineStage(module, 0, 1, CPU), 2, loss_fn=MSE)
        x, target = models.batch(8)
        for seed in (3, 4):
            torch.manual_seed(seed)
            schedule.step(x, target=target)
            if seed == 3:
                grads.append([p.grad.clone() for p in module.parameters()])
                module.zero_grad()
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_dropout_follows_the_default_generator() -> None:
    _alone(_dropout_follows_the_generator)


def _options() -> None:
    from penstock.pipelining import PipelineStage, ScheduleGPipe

    def loss(output: torch.Tensor, target: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        return MSE(output, target) * weight

    x, target = models.batch(8)
    grads = {}
    for scale in (True, False):
        module = models.block(0)
        schedule = ScheduleGPipe(PipelineStage(module, 0, 1, CPU), 4, loss_fn=loss, scale_grads=scale)
        assert schedule.step(x, target=target, return_outputs=False, loss_kwargs={"weight": 2.0}) is None
        grads[scale] = module.up.weight.grad
    torch.testing.assert_close(grads[False], 4 * grads[True])
    module = models.block(0)
    (2 * MSE(module(x), target)).backward()
    torch.testing.assert_close(grads[True], module.up.weight.grad, rtol=1e-4, atol=1e-6)


def test_scale_grads_and_loss_kwargs() -> None:
    _alone(_options)


def _input_gradients() -> None:
    from penstock.pipelining import PipelineStage, Schedule1F1B

    module = models.block(0)
    schedule = Schedule1F1B(PipelineStage(module, 0, 1, CPU), 4, loss_fn=MSE)
    x, target = models.batch(8)
    x.requires_grad_()
    schedule.step(x, target=target)
    got = x.grad
    y = x.detach().clone().requires_grad_()
    MSE(module(y), target).backward()
    torch.testing.assert_close(got, y.grad, rtol=1e-4, atol=1e-6)


def test_gradients_of_inputs() -> None:
    _alone(_input_gradients)


def _examples_are_checked() -> None:
    from penstock.errors import ShapeError
    from penstock.pipelining import PipelineStage, Schedule1F1B

    x, target = models.batch(8)
    stage = PipelineStage(models.block(0), 0, 1, CPU, input_args=torch.empty(3, models.WIDTH))
    schedule = Schedule1F1B(stage, 4, loss_fn=MSE)
    with pytest.raises(ShapeError, match=r"\[2, 8\]"):
        schedule.step(x, target=target)


def test_examples_are_checked() -> None:
    _alone(_examples_are_checked)


def _unsendable(rank: int, size: int) -> Any:
    from penstock.pipelining import PipelineStage, Schedule1F1B

    class Odd(models.Block):
        def forward(self, x: torch.Tensor) -> Any:
            return {1, 2}

    module = Odd() if rank == 0 else models.Block()
    schedule = Schedule1F1B(PipelineStage(module, rank, size, CPU), 2, loss_fn=MSE)
    x, target = models.batch(8)
    try:
        schedule.step(*([x] if rank == 0 else []), target=target)
    except Exception as error:
        return type(error).__name__, str(error)


def test_an_output_that_cannot_be_sent() -> None:
    first, last = ranks.run(_unsendable, 2)
    assert first[0] == "TypeError" and "set" in first[1], first
    assert last[0] == "PeerFailed", last


def _csv(rank: int, size: int, directory: str) -> Any:
    from penstock.pipelining import PipelineStage, ScheduleInterleaved1F1B
    from penstock.pipelining.schedules import _PipelineScheduleRuntime

    found = {}
    for level in ("compute_only", "compute_comms"):
        modules = {index: models.block(index) for index in (rank, rank + size)}
        stages = [PipelineStage(modules[i], i, 2 * size, CPU) for i in modules]
        written = ScheduleInterleaved1F1B(stages, 4, loss_fn=MSE)
        path = f"{directory}/{level}-{rank}.csv"
        written._dump_csv(path, level)
        schedule = _PipelineScheduleRuntime(stages, 4, loss_fn=MSE)
        schedule._load_csv(path, level)
        x, target = models.batch(8)
        schedule.step(*([x] if rank == 0 else []), target=target)
        found[level] = {f"{i}.{n}": p.grad for i, m in modules.items() for n, p in m.named_parameters()}
    return found


def test_csv_files(tmp_path: pathlib.Path) -> None:
    per_rank = ranks.run(_csv, 2, str(tmp_path))
    _, dense = models.dense(4, 8, 4)
    for found in per_rank:
        for level, grads in found.items():
            for key, grad in grads.items():
                torch.testing.assert_close(grad, dense[key], rtol=1e-4, atol=1e-6, msg=f"{level}: {key}")


def _early_receive(rank: int, size: int) -> Any:
    from penstock.pipelining import PipelineStage
    from penstock.pipelining.schedules import _Action, _PipelineScheduleRuntime

    schedule = _PipelineScheduleRuntime([PipelineStage(models.block(rank), rank, size, CPU)], 1, loss_fn=MSE)
    rows = {0: "0F0 0RECV_B0 0SEND_F0 0B0", 1: "1RECV_F0 1F0 1B0 1SEND_B0"}
    schedule._prepare_schedule_with_comms(
        {r: [_Action.from_str(text) for text in row.split()] for r, row in rows.items()}, format="compute_comms"
    )
    x, target = models.batch(2)
    try:
        schedule.step(*([x] if rank == 0 else []), target=target)
    except Exception as error:
        return type(error).__name__, str(error)


def test_a_receive_may_be_posted_before_a_send() -> None:
    """Over a transport that matches by tag, this is not a deadlock."""
    found = ranks.run(_early_receive, 2)
    assert all(result is None for result in found), found


def _lost_value(rank: int, size: int) -> Any:
    from penstock.pipelining import PipelineStage
    from penstock.pipelining.schedules import _Action, _PipelineScheduleRuntime

    schedule = _PipelineScheduleRuntime([PipelineStage(models.block(rank), rank, size, CPU)], 1, loss_fn=MSE)
    rows = {0: "0F0 0RECV_B0 0B0", 1: "1RECV_F0 1F0 1B0 1SEND_B0"}
    schedule._prepare_schedule_with_comms(
        {r: [_Action.from_str(text) for text in row.split()] for r, row in rows.items()}, format="compute_comms"
    )
    try:
        schedule.step(*([models.batch(2)[0]] if rank == 0 else []), target=models.batch(2)[1])
    except Exception as error:
        return type(error).__name__, str(error)


def test_a_table_without_a_send_is_refused() -> None:
    for kind, text in ranks.run(_lost_value, 2):
        assert kind in ("ScheduleError", "PeerFailed"), (kind, text)
        assert "1RECV_F0" in text or "SEND_F" in text, text


@pytest.mark.parametrize("text", ["1F0garbage", "F0", "1X0", "1F", "(0F1;1B0)", "1UNSHARD2"])
def test_files_are_parsed_strictly(text: str, tmp_path: pathlib.Path) -> None:
    from penstock.pipelining._actions import check_file

    (tmp_path / "table.csv").write_text(f"0F0,,{text}\n")
    with pytest.raises(RuntimeError):
        check_file(str(tmp_path / "table.csv"))


def test_foreign_stages_are_refused() -> None:
    _alone(_foreign_stage)


def _foreign_stage() -> None:
    import torch.distributed.pipelining as reference
    from penstock.pipelining import ScheduleGPipe

    stage = reference.PipelineStage(models.block(0), 0, 1, CPU)
    with pytest.raises(TypeError, match="penstock.pipelining"):
        ScheduleGPipe(stage, 2, loss_fn=MSE).step(*models.batch(4))


def _timeline(rank: int, size: int) -> Any:
    from penstock import view
    from penstock.pipelining import PipelineStage, ScheduleZB1P

    schedule = ScheduleZB1P(PipelineStage(models.block(rank), rank, size, CPU), 4, loss_fn=MSE)
    with pytest.raises(ValueError, match="first step"):
        schedule.timeline()
    x, target = models.batch(8)
    schedule.step(*([x] if rank == 0 else []), target=target)
    mine, both = schedule.timeline(), schedule.timeline(all_ranks=True)
    assert set(mine.rank) == {rank} and set(both.rank) == {0, 1}
    assert all(start <= end for start, end in zip(both.start, both.end, strict=True))
    assert "<svg" in view.svg(both)
    return [str(action) for action in mine.action]


def test_measured_timelines() -> None:
    for rank, actions in enumerate(ranks.run(_timeline, 2)):
        for kind in "FIW":
            assert [a for a in actions if a.startswith(f"{rank}{kind}")] == [f"{rank}{kind}{m}" for m in range(4)]


def _auto(rank: int, size: int) -> Any:
    from penstock import plan
    from penstock.pipelining import PipelineStage, ScheduleAuto

    costs = plan.Costs.uniform(2 * size, forward=1.0, input=2.0, weight=0.5)
    placed = plan.auto(ranks=size, microbatches=4, costs=costs).schedule.stage_to_rank
    modules = {stage: models.block(stage) for stage, owner in enumerate(placed) if owner == rank}
    stages = [PipelineStage(module, stage, 2 * size, CPU) for stage, module in modules.items()]
    schedule = ScheduleAuto(stages, 4, loss_fn=MSE, costs=costs)
    x, target = models.batch(8)
    schedule.step(*([x] if 0 in modules else []), target=target)
    return {f"{i}.{n}": p.grad for i, m in modules.items() for n, p in m.named_parameters()}


def test_auto() -> None:
    _, dense = models.dense(4, 8, 4)
    seen = set()
    for grads in ranks.run(_auto, 2):
        for key, grad in grads.items():
            seen.add(key)
            torch.testing.assert_close(grad, dense[key], rtol=1e-4, atol=1e-6, msg=key)
    assert seen == dense.keys()


def _plain(rank: int, size: int) -> Any:
    from penstock.pipelining import PipelineStage, Schedule1F1B

    module = models.block(rank)
    schedule = Schedule1F1B(PipelineStage(module, rank, size, CPU), 2, loss_fn=MSE)
    x, target = models.batch(8)
    schedule.step(*([x] if rank == 0 else []), target=target)
    return {f"{rank}.{n}": p.grad for n, p in module.named_parameters()}


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_start_methods(method: str) -> None:
    _, dense = models.dense(2, 8, 2)
    for grads in ranks.run(_plain, 2, method=method):
        for key, grad in grads.items():
            torch.testing.assert_close(grad, dense[key], rtol=1e-4, atol=1e-6, msg=key)


@pytest.mark.parametrize("name", ["Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV", "VHalf"])
def test_lowered_tables_can_be_simulated(name: str) -> None:
    from penstock.pipelining.schedules import get_schedule_class
    from penstock.pipelining.stage import _PipelineStageBase

    class Stage(_PipelineStageBase):  # as much as a table needs
        def __init__(self) -> None:
            self.num_stages, self.group_size, self.group_rank, self.group, self.submod = 8, 4, 0, None, None

        def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any: ...
        def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> Any: ...
        def _create_grad_recv_info(self, *args: Any, **kwargs: Any) -> Any: ...

    schedule = get_schedule_class(name)([Stage(), Stage()], 8)
    simulated = schedule._simulate()
    for rank, actions in simulated.items():
        forwards = [str(a) for a in actions if a is not None and a.computation_type.value == "F"]
        assert len(forwards) == len(set(forwards)) == 16, (rank, forwards)


def _changing_shapes(rank: int, size: int) -> Any:
    from penstock.pipelining import PipelineStage, Schedule1F1B

    module = models.block(rank)
    schedule = Schedule1F1B(PipelineStage(module, rank, size, CPU), 4, loss_fn=MSE)
    for step, rows in enumerate((8, 24, 12)):
        x, target = models.batch(rows, step)
        schedule.step(*([x] if rank == 0 else []), target=target)
    return {f"{rank}.{n}": p.grad for n, p in module.named_parameters()}


def test_shapes_may_change_between_steps() -> None:
    blocks = [models.block(0), models.block(1)]
    for step, rows in enumerate((8, 24, 12)):
        x, target = models.batch(rows, step)
        MSE(blocks[1](blocks[0](x)), target).backward()
    for rank, grads in enumerate(ranks.run(_changing_shapes, 2)):
        for name, parameter in blocks[rank].named_parameters():
            torch.testing.assert_close(grads[f"{rank}.{name}"], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)
