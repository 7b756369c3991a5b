"""Steps keep nothing: no tensors, graphs or objects accumulate over 1,000 steps."""

from __future__ import annotations

import gc
import sys
from typing import Any

import models
import ranks
import torch

STEPS = 1000


def _objects() -> tuple[int, int]:
    gc.collect()
    objects = gc.get_objects()
    return len(objects), sum(isinstance(item, torch.Tensor) for item in objects)


def _train(rank: int, size: int, name: str) -> Any:
    from penstock.pipelining import PipelineStage
    from penstock.pipelining.schedules import get_schedule_class

    module = models.block(rank)
    stage = PipelineStage(module, rank, size, torch.device("cpu"))
    schedule = get_schedule_class(name)(stage, 4, loss_fn=torch.nn.functional.mse_loss)
    x, target = models.batch(8)
    counts, memory = [], []
    for step in range(STEPS + 1):
        losses: list[torch.Tensor] = []
        schedule.step(*([x] if rank == 0 else []), target=target, losses=losses)
        module.zero_grad()
        if step in (STEPS // 10, STEPS):
            del losses
            counts.append(_objects())
            memory.append(_resident())
    return counts, memory, sys.getrefcount(module)


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_nothing_accumulates() -> None:
    for name in ("1F1B", "ZB1P"):
        for counts, memory, references in ranks.run(_train, 2, name):
            (objects, tensors), (objects_later, tensors_later) = counts
            assert tensors_later <= tensors, (name, counts)
            assert objects_later <= objects + 20, (name, counts)
            assert memory[1] - memory[0] < 16 << 20, (name, memory)
            assert references < 20, (name, references)
