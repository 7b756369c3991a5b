"""Every schedule against the reference and against a dense run, in the same processes."""

from __future__ import annotations

from typing import Any

import models
import pytest
import ranks
import torch

SINGLE = ["GPipe", "1F1B"]
LOOPED = ["LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble"]
V_SHAPED = ["ZBVZeroBubble", "DualPipeV"]
OURS = ["ZB1P", "ZB2P", "VHalf", "VMin"]
ROWS, STEPS = 16, 2


def _stage_indices(name: str, rank: int, size: int) -> list[int]:
    if name in SINGLE + ["ZB1P", "ZB2P"]:
        return [rank]
    if name in V_SHAPED + ["VHalf", "VMin"]:
        return [rank, 2 * size - 1 - rank]
    return [rank, rank + size]


def _train(package: Any, name: str, rank: int, size: int, microbatches: int, rows: int) -> dict[str, Any]:
    indices = _stage_indices(name, rank, size)
    total = size * len(indices)
    modules = {index: models.block(index) for index in indices}
    stages = [package.PipelineStage(modules[i], i, total, torch.device("cpu")) for i in indices]
    schedule_class = package.schedules.get_schedule_class(name)
    one = schedule_class in [package.schedules.get_schedule_class(n) for n in SINGLE] or len(stages) == 1
    schedule = schedule_class(stages[0] if one else stages, microbatches, loss_fn=torch.nn.functional.mse_loss)
    losses, outputs = [], []
    first: dict[str, torch.Tensor] = {}
    for step in range(STEPS):
        x, target = models.batch(rows, step)
        kept: list[torch.Tensor] = []
        output = schedule.step(*([x] if 0 in indices else []), target=target if total - 1 in indices else None, losses=kept)
        losses.append([loss.item() for loss in kept])
        outputs.append(None if output is None else output.detach())
        grads = {f"{i}.{n}": p.grad.clone() for i, m in modules.items() for n, p in m.named_parameters()}
        first = first or grads
    return {"losses": losses, "outputs": outputs, "first": first, "grads": grads}


def _compare(rank: int, size: int, names: list[str], microbatches: int) -> dict[str, Any]:
    import penstock.pipelining as ours
    import torch.distributed.pipelining as reference

    found: dict[str, Any] = {}
    for name in names:
        found[name] = {"ours": _train(ours, name, rank, size, microbatches, ROWS)}
        if name not in OURS:
            found[name]["reference"] = _train(reference, name, rank, size, microbatches, ROWS)
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_matches_the_reference(size: int) -> None:
    names = SINGLE + LOOPED + V_SHAPED + OURS
    microbatches = 8
    per_rank = ranks.run(_compare, size, names, microbatches)
    for name in names:
        stages = size * len(_stage_indices(name, 0, size))
        dense_losses, dense_grads = models.dense(stages, ROWS, microbatches, STEPS)
        for rank, found in enumerate(per_rank):
            mine = found[name]["ours"]
            where = f"{name}, rank {rank} of {size}"
            for key, grad in mine["grads"].items():
                torch.testing.assert_close(grad, dense_grads[key], rtol=1e-4, atol=1e-6, msg=f"{where}: {key}")
            for step, losses in enumerate(mine["losses"]):
                if losses:
                    assert sum(losses) / len(losses) == pytest.approx(dense_losses[step], rel=1e-5), where
            if "reference" not in found[name]:
                continue
            theirs = found[name]["reference"]
            assert len(theirs["losses"][0]) == len(mine["losses"][0]), where
            for a, b in zip(mine["losses"], theirs["losses"], strict=True):
                assert a == pytest.approx(b, rel=1e-6), where
            for a, b in zip(mine["outputs"], theirs["outputs"], strict=True):
                assert (a is None) == (b is None), where
                if a is not None:
                    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7, msg=where)
            assert mine["first"].keys() == theirs["first"].keys(), where
            for key, grad in theirs["first"].items():
                torch.testing.assert_close(mine["first"][key], grad, rtol=1e-4, atol=1e-6, msg=f"{where}: {key}")


def _uneven(rank: int, size: int) -> dict[str, Any]:
    import penstock.pipelining as ours

    return {name: _train(ours, name, rank, size, 4, 10)["grads"] for name in ["1F1B", "InterleavedZeroBubble"]}


def test_uneven_microbatches_give_the_dense_gradients() -> None:
    per_rank = ranks.run(_uneven, 2)
    for name in ["1F1B", "InterleavedZeroBubble"]:
        stages = 2 * len(_stage_indices(name, 0, 2))
        _, dense_grads = models.dense(stages, 10, 4, STEPS)
        for found in per_rank:
            for key, grad in found[name].items():
                torch.testing.assert_close(grad, dense_grads[key], rtol=1e-4, atol=1e-6, msg=f"{name}: {key}")
