"""Models that `pipeline` traces and splits: skip connections, tied weights, inputs of later stages."""

from __future__ import annotations

import pathlib
from typing import Any

import models
import pytest
import ranks
import torch
from both import both

CPU = torch.device("cpu")
MSE = torch.nn.functional.mse_loss
STAGES = 4


class Skipping(torch.nn.Module):
    """The first block's output is also an input of the last one; a mask is used by the third; two weights are tied."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(models.Block() for _ in range(STAGES))
        self.blocks[3].up.weight = self.blocks[1].up.weight

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        first = self.blocks[0](x)
        y = self.blocks[1](first)
        y = self.blocks[2](y * mask)
        return self.blocks[3](y + first)


def _model() -> Skipping:
    torch.manual_seed(7)
    return Skipping()


def _spec() -> dict[str, Any]:
    from penstock.pipelining import SplitPoint

    return {f"blocks.{i}": SplitPoint.BEGINNING for i in range(1, STAGES)}


def _mask(rows: int) -> torch.Tensor:
    return (torch.arange(rows) % 3 > 0).float().unsqueeze(1)


def _train(rank: int, size: int, names: list[str]) -> Any:
    from penstock.pipelining import pipeline
    from penstock.pipelining.schedules import get_schedule_class

    found = {}
    for name in names:
        x, target = models.batch(8)
        pipe = pipeline(_model(), mb_args=(x[:2], _mask(8)[:2]), split_spec=_spec())
        assert pipe.num_stages == STAGES
        if size == STAGES:
            stage: Any = pipe.build_stage(rank, CPU)
            stages = [stage]
        else:
            other = 2 * size - 1 - rank if name in ("ZBVZeroBubble", "VHalf") else rank + size
            stage = stages = [pipe.build_stage(index, CPU) for index in (rank, other)]
        schedule = get_schedule_class(name)(stage, 4, loss_fn=MSE)
        losses: list[torch.Tensor] = []
        output = schedule.step(*([x, _mask(8)] if rank == 0 else []), target=target, losses=losses)
        found[name] = {
            "grads": {n: p.grad for s in stages for n, p in s.submod.named_parameters()},
            "losses": [loss.item() for loss in losses],
            "output": output,
        }
    return found


@pytest.mark.parametrize(
    ("size", "names"),
    [(4, ["GPipe", "1F1B", "ZB1P"]), (2, ["LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "VHalf"])],
)
def test_skips_ties_and_late_inputs(size: int, names: list[str]) -> None:
    per_rank = ranks.run(_train, size, names)
    model = _model()
    x, target = models.batch(8)
    output = model(x, _mask(8))
    loss = MSE(output, target)
    loss.backward()
    want = {name: p.grad for name, p in model.named_parameters(remove_duplicate=False)}
    for name in names:
        seen = set()
        for found in per_rank:
            for key, grad in found[name]["grads"].items():
                seen.add(key)
                torch.testing.assert_close(grad, want[key], rtol=1e-4, atol=1e-6, msg=f"{name}: {key}")
            if found[name]["losses"]:
                assert sum(found[name]["losses"]) / 4 == pytest.approx(loss.item(), rel=1e-5)
                torch.testing.assert_close(found[name]["output"], output.detach(), rtol=1e-5, atol=1e-6)
        assert seen == set(want), name


def _train_in_debug_mode(rank: int, size: int) -> Any:
    import torch.distributed as dist

    dist.set_debug_level(dist.DebugLevel.DETAIL)
    return _train(rank, size, ["LoopedBFS"])["LoopedBFS"]["losses"]


def test_skips_are_accepted_in_debug_mode() -> None:
    x, target = models.batch(8)
    want = MSE(_model()(x, _mask(8)), target).item()
    losses = ranks.run(_train_in_debug_mode, 2)[1]
    assert sum(losses) / 4 == pytest.approx(want, rel=1e-5)


class Chain(torch.nn.Module):
    """Every stage passes two values to the next one."""

    def __init__(self, stages: int) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(models.block(stage) for stage in range(stages))

    def forward(self, x: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x, before = block(x + before), x
        return x - before


SINGLE = ["GPipe", "1F1B"]
V_SHAPED = ["ZBVZeroBubble", "DualPipeV"]
LOOPED = ["LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble"]


def _chain_batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (*models.batch(16), models.batch(16, seed=1)[0])


def _train_chain(package: Any, names: list[str], rank: int, size: int) -> dict[str, Any]:
    x, target, before = _chain_batch()
    pipes = {}
    found = {}
    for name in names:
        stages = size if name in SINGLE else 2 * size
        if stages not in pipes:
            spec = {f"blocks.{i}": package.SplitPoint.BEGINNING for i in range(1, stages)}
            pipes[stages] = package.pipeline(Chain(stages), mb_args=(x[:2], before[:2]), split_spec=spec)
        second = 2 * size - 1 - rank if name in V_SHAPED else rank + size
        mine = [pipes[stages].build_stage(index, CPU) for index in ([rank] if name in SINGLE else [rank, second])]
        schedule = package.schedules.get_schedule_class(name)(mine[0] if name in SINGLE else mine, 8, loss_fn=MSE)
        losses: list[torch.Tensor] = []
        output = schedule.step(*([x, before] if rank == 0 else []), target=target, losses=losses)
        found[name] = {
            "grads": {n: p.grad.clone() for stage in mine for n, p in stage.submod.named_parameters()},
            "losses": [loss.detach() for loss in losses],
            "output": output,
        }
        for stage in mine:
            stage.submod.zero_grad()
    return found


def _chain_with_both(rank: int, size: int) -> Any:
    import penstock.pipelining as ours
    import torch.distributed.pipelining as reference

    # The reference cannot pass values of traced stages from a rank to itself, as V-shaped schedules do.
    names = SINGLE if size == 1 else SINGLE + LOOPED
    return _train_chain(ours, SINGLE + LOOPED + V_SHAPED, rank, size), _train_chain(reference, names, rank, size)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_schedule_matches_the_reference(size: int) -> None:
    per_rank = ranks.run(_chain_with_both, size)
    x, target, before = _chain_batch()
    for name in SINGLE + LOOPED + V_SHAPED:
        model = Chain(size if name in SINGLE else 2 * size)
        MSE(model(x, before), target).backward()
        want = {key: parameter.grad for key, parameter in model.named_parameters()}
        seen = set()
        for ours, reference in per_rank:
            seen |= ours[name]["grads"].keys()
            for key, grad in ours[name]["grads"].items():
                torch.testing.assert_close(grad, want[key], rtol=1e-4, atol=1e-6, msg=f"{name}: {key}")
            if name in reference:
                torch.testing.assert_close(ours[name], reference[name], rtol=1e-4, atol=1e-6)
        assert seen == set(want), name
        assert any(len(ours[name]["losses"]) == 8 for ours, _ in per_rank), name


def test_marks_can_be_set_twice() -> None:
    from penstock.pipelining import pipeline

    model = _model()
    x, _ = models.batch(2)
    for _ in range(2):
        pipe = pipeline(model, mb_args=(x, _mask(2)), split_spec=_spec())
        assert pipe.num_stages == STAGES
        torch.testing.assert_close(pipe(x, _mask(2))[0], model(x, _mask(2)))


def test_marks_add_up() -> None:
    from penstock.pipelining import SplitPoint, pipeline
    from penstock.pipelining._IR import Pipe, annotate_split_points

    model = Chain(4)
    args = models.batch(2)
    annotate_split_points(model, {"blocks.1": SplitPoint.BEGINNING})
    annotate_split_points(model, {"blocks.2": SplitPoint.BEGINNING})
    assert Pipe.from_tracing(model, args).num_stages == 3
    annotate_split_points(model, {"blocks.2": SplitPoint.END})  # in place of the other mark
    pipe = Pipe.from_tracing(model, args)
    assert pipe.num_stages == 3 and "blocks.2.up.weight" in dict(pipe.get_stage_module(1).named_parameters())
    assert pipeline(model, mb_args=args, split_spec={"blocks.3": SplitPoint.END}).num_stages == 4
    assert Pipe.from_tracing(model, args).num_stages == 3  # `pipeline` leaves no marks


def test_both_ways_to_split_are_refused() -> None:
    from penstock.pipelining import pipeline

    with pytest.raises(ValueError, match="both"):
        pipeline(_model(), mb_args=models.batch(2), split_spec=_spec(), split_policy=lambda graph: graph)


class WithSplits(torch.nn.Module):
    """Calls pipe_split in its forward; takes a keyword argument."""

    def __init__(self) -> None:
        super().__init__()
        self.one = models.Block()
        self.two = models.Block()

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        from penstock.pipelining import pipe_split

        y = self.one(x) * scale
        pipe_split()
        return self.two(y), y.mean(dim=1)


def _with_splits(rank: int, size: int) -> Any:
    from penstock.pipelining import Schedule1F1B, build_stage, pipeline

    torch.manual_seed(3)
    model = WithSplits()
    x, target = models.batch(8)
    scale = torch.full((8, 1), 0.5)
    pipe = pipeline(model, mb_args=(x[:2],), mb_kwargs={"scale": scale[:2]})
    stage = build_stage(pipe.get_stage_module(rank), rank, pipe.info(), CPU)
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda output, target: MSE(output[0], target) + output[1].square().mean())
    output = schedule.step(*([x] if rank == 0 else []), target=target, **({"scale": scale} if rank == 0 else {}))
    return output, {n: p.grad for n, p in stage.submod.named_parameters()}


def test_split_calls_keyword_inputs_and_several_outputs() -> None:
    per_rank = ranks.run(_with_splits, 2)
    torch.manual_seed(3)
    model = WithSplits()
    x, target = models.batch(8)
    output = model(x, torch.full((8, 1), 0.5))
    (MSE(output[0], target) + output[1].square().mean()).backward()
    want = {name: p.grad for name, p in model.named_parameters()}
    assert per_rank[0][0] is None
    for got, expected in zip(per_rank[1][0], output, strict=True):
        torch.testing.assert_close(got, expected.detach(), rtol=1e-5, atol=1e-6)
    for _, grads in per_rank:
        for key, grad in grads.items():
            torch.testing.assert_close(grad, want[key], rtol=1e-4, atol=1e-6, msg=key)


def _called(package: Any, rank: int, size: int, kind: str) -> Any:
    """The methods of a traced stage, called by the program or by PyTorch's loop."""
    torch.manual_seed(0)
    model = _model() if kind == "skips" else torch.nn.Sequential(models.Block(), models.Block())
    x, target = models.batch(8)
    args = (x, _mask(8)) if kind == "skips" else (x,)
    spec = _spec() if kind == "skips" else {"1": package.SplitPoint.BEGINNING}
    pipe = package.pipeline(model, tuple(arg[:2] for arg in args), split_spec=spec)
    if kind != "loop":
        stage = pipe.build_stage(0, CPU)
        stage._prepare_forward_infra(4, args)
        return stage.forward_one_chunk(0, (x[:2],)).tolist()
    stage = pipe.build_stage(rank, CPU)
    outputs = []
    original = stage.forward_one_chunk

    def forward(*args: Any, **kwargs: Any) -> Any:
        outputs.append(original(*args, **kwargs))
        return outputs[-1]

    stage.forward_one_chunk = forward
    package.ScheduleGPipe(stage, 4, loss_fn=MSE).step(*(args if rank == 0 else ()), target=target)
    return [output.tolist() for output in outputs]


@pytest.mark.parametrize("kind", ["direct", "skips", "loop"])
def test_methods_of_traced_stages_return_what_the_module_returns(kind: str) -> None:
    assert all(isinstance(found, list) for found in both(_called, 2, kind))


def _from_file(rank: int, size: int, path: str) -> Any:
    from penstock.pipelining import Schedule1F1B, SplitPoint, pipeline_from_export

    pipe = pipeline_from_export(path, {"blocks.2": SplitPoint.BEGINNING})
    assert pipe.num_stages == 2
    stage = pipe.build_stage(rank, CPU)
    schedule = Schedule1F1B(stage, 4, loss_fn=MSE)
    x, target = models.batch(8)
    schedule.step(*([x, _mask(8)] if rank == 0 else []), target=target)
    return {n: p.grad for n, p in stage.submod.named_parameters()}


def test_a_model_that_was_exported_before(tmp_path: pathlib.Path) -> None:
    from penstock.pipelining import SplitPoint, pipeline_from_export

    path = tmp_path / "model.pt2"
    x, target = models.batch(8)
    program = torch.export.export(_model(), (x[:2], _mask(8)[:2]))
    torch.export.save(program, path)
    model = _model()
    MSE(model(x, _mask(8)), target).backward()
    want = {name: p.grad for name, p in model.named_parameters(remove_duplicate=False)}
    seen = set()
    for grads in ranks.run(_from_file, 2, str(path)):
        for key, grad in grads.items():
            seen.add(key)
            torch.testing.assert_close(grad, want[key], rtol=1e-4, atol=1e-6, msg=key)
    # The archive has the tied weight under one of its names.
    assert len(set(want) - seen) == 1 and set(want) - seen <= {"blocks.1.up.weight", "blocks.3.up.weight"}
    with pytest.raises(AttributeError, match="blocks.9"):
        pipeline_from_export(program, {"blocks.9": SplitPoint.BEGINNING})
