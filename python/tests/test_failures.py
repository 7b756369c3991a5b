"""Failures: exceptions arrive as themselves where they were raised, and as PeerFailed on the other ranks."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import models
import ranks
import torch

LIMIT = 5.0
"""Seconds until every rank must know of a failure."""


class Faulty(models.Block):
    """Raises in the forward pass number `at`."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == self.at:
            raise KeyError("the label of row 7 is missing")
        return super().forward(x)


def _schedule(module: torch.nn.Module, rank: int, size: int, loss: Any = torch.nn.functional.mse_loss) -> Any:
    from penstock.pipelining import PipelineStage, Schedule1F1B

    return Schedule1F1B(PipelineStage(module, rank, size, torch.device("cpu")), 4, loss_fn=loss)


def _step(schedule: Any, rank: int, size: int) -> Any:
    x, target = models.batch(8)
    return schedule.step(*([x] if rank == 0 else []), target=target if rank == size - 1 else None)


def _raised(schedule: Any, rank: int, size: int) -> tuple[str, str, list[str], float]:
    """The class, text, notes and time of the exception of a step."""
    start = time.monotonic()
    try:
        _step(schedule, rank, size)
    except BaseException as error:
        return type(error).__name__, str(error), list(getattr(error, "__notes__", [])), time.monotonic() - start
    return "nothing", "", [], time.monotonic() - start


def _stage_raises(rank: int, size: int) -> Any:
    module = Faulty(at=3 if rank == 1 else 0)
    schedule = _schedule(module, rank, size)
    first = _raised(schedule, rank, size)
    second = _raised(schedule, rank, size)  # the pipeline recovers
    return first, second


def test_an_exception_of_a_stage() -> None:
    found = ranks.run(_stage_raises, 3)
    kind, text, notes, _ = found[1][0]
    assert kind == "KeyError"
    assert "row 7" in text
    assert any("stage 1" in note and "microbatch 2" in note and "1F2" in note for note in notes), notes
    assert any("[Stage 1] failed to run forward" in note and "torch.Size([2, 8])" in note for note in notes), notes
    for rank in (0, 2):
        kind, text, _, seconds = found[rank][0]
        assert kind == "PeerFailed", (rank, kind, text)
        assert "rank 1" in text and "row 7" in text, text
        assert seconds < LIMIT
    for rank in range(3):
        assert found[rank][1][0] == "nothing", found[rank][1]


def _loss_raises(rank: int, size: int) -> Any:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("no valid labels")

    return _raised(_schedule(models.block(rank), rank, size, loss), rank, size)


def test_an_exception_of_the_loss() -> None:
    first, last = ranks.run(_loss_raises, 2)
    assert last[0] == "ZeroDivisionError"
    assert first[0] == "PeerFailed" and "no valid labels" in first[1]


def _hook_raises(rank: int, size: int) -> Any:
    module = models.block(rank)
    if rank == 0:
        def hook(grad: torch.Tensor) -> None:
            raise OverflowError("gradient of row 3")

        module.up.weight.register_hook(hook)
    return _raised(_schedule(module, rank, size), rank, size)


def test_an_exception_of_a_gradient_hook() -> None:
    first, last = ranks.run(_hook_raises, 2)
    assert first[0] == "OverflowError", first
    assert last[0] == "PeerFailed" and "row 3" in last[1], last


def _bad_input(rank: int, size: int) -> Any:
    schedule = _schedule(models.block(rank), rank, size)
    start = time.monotonic()
    try:
        if rank == 0:
            schedule.step(torch.randn(2, models.WIDTH))  # two rows for four microbatches
        else:
            schedule.step(target=models.batch(8)[1])
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - start
    return "nothing", "", 0.0


def test_bad_input_on_one_rank_reaches_the_other() -> None:
    first, last = ranks.run(_bad_input, 2)
    assert first[0] == "UsageError" and "at most 2" in first[1], first
    assert last[0] == "PeerFailed" and "at most 2" in last[1], last
    assert last[2] < LIMIT


def _interrupted(rank: int, size: int) -> Any:
    """Rank 1 waits for rank 0, which waits until rank 1 was interrupted."""
    schedule = _schedule(models.block(rank), rank, size)
    _step(schedule, rank, size)
    if rank == 0:
        return _raised(schedule, rank, size) if _wait_for_interrupt() else None
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    return _raised(schedule, rank, size)


def _wait_for_interrupt() -> bool:
    from penstock.pipelining._worlds import world_of

    world = world_of(None, torch.device("cpu"))
    for _ in range(200):
        try:
            world.handle.check()
        except Exception:
            return True
        threading.Event().wait(0.05)
    return False


def test_ctrl_c_ends_a_wait() -> None:
    first, last = ranks.run(_interrupted, 2)
    assert last[0] == "KeyboardInterrupt", last
    assert last[3] < 0.5 + LIMIT
    assert first is not None and first[0] == "PeerFailed" and "interrupted" in first[1], first


def _killed(rank: int, size: int) -> Any:
    schedule = _schedule(models.block(rank), rank, size)
    _step(schedule, rank, size)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return _raised(schedule, rank, size)


def test_a_killed_rank() -> None:
    try:
        ranks.run(_killed, 2)
    except ranks.RankEnded as ended:
        kind, text, _, seconds = ended.results[0]
        assert kind == "PeerFailed" and "rank 1" in text, (kind, text)
        assert seconds < LIMIT
    else:
        raise AssertionError("rank 1 was killed, but all ranks returned")


def _many(rank: int, size: int) -> list[str]:
    """Schedules of several kinds, a third of which fail in one stage first."""
    import random

    from penstock.pipelining import PipelineStage
    from penstock.pipelining.schedules import get_schedule_class

    choose = random.Random(5)
    seen = []
    for number in range(15):
        name = choose.choice(["GPipe", "1F1B", "ZB1P", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"])
        kind, failing = choose.choice(["step", "eval", "failure"]), choose.randrange(size)
        second = {"Interleaved1F1B": [rank + size], "ZBVZeroBubble": [2 * size - 1 - rank], "DualPipeV": [2 * size - 1 - rank]}
        modules = {}
        for index in [rank, *second.get(name, [])]:
            torch.manual_seed(1000 + index)
            modules[index] = Faulty(at=2 if kind == "failure" and rank == failing and not modules else 0)
        total = size * len(modules)
        stages = [PipelineStage(module, index, total, torch.device("cpu")) for index, module in modules.items()]
        schedule = get_schedule_class(name)(stages if len(stages) > 1 else stages[0], 4, loss_fn=torch.nn.functional.mse_loss)
        x, target = models.batch(8)
        args = [x] if rank == 0 else []
        if kind == "eval":
            with torch.inference_mode():
                schedule.eval(*args, target=target)
        elif kind == "failure":
            try:
                schedule.step(*args, target=target)
            except (KeyError, RuntimeError) as error:
                seen.append(type(error).__name__)
            for module in modules.values():
                module.zero_grad()
        schedule.step(*args, target=target)
        _, dense = models.dense(total, 8, 4)
        for index, module in modules.items():
            for key, p in module.named_parameters():
                torch.testing.assert_close(p.grad, dense[f"{index}.{key}"], rtol=1e-4, atol=1e-6, msg=f"{number}, {name}: {key}")
    return seen


def test_many_schedules_and_failures_on_one_group() -> None:
    first, last = ranks.run(_many, 2)
    assert len(first) == len(last) > 2
    assert all({a, b} == {"KeyError", "PeerFailed"} for a, b in zip(first, last, strict=True)), (first, last)
