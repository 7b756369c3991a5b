"""Runs one program with `torch.distributed.pipelining` and with `penstock.pipelining`, and compares what it returns."""

from __future__ import annotations

import importlib
from typing import Any

import models
import ranks
import torch

PACKAGES = ["torch.distributed.pipelining", "penstock.pipelining"]


def both(function: Any, size: int, *args: Any) -> list[Any]:
    """Compares `function(package, rank, size, *args)` of the packages on every rank. Returns what the ranks found."""
    found = ranks.run(_run_both, size, function, args)
    for rank, (reference, ours) in enumerate(found):
        assert ours == reference, f"rank {rank}"
    return [reference for reference, _ in found]


def _run_both(rank: int, size: int, function: Any, args: tuple[Any, ...]) -> list[Any]:
    return [outcome(lambda: function(importlib.import_module(name), rank, size, *args)) for name in PACKAGES]


def outcome(call: Any) -> Any:
    """What a call returns, or the text of its exception, with tensors as lists."""
    try:
        found = call()
    except (NameError, ImportError):
        raise  # a mistake of the test
    except Exception as error:
        return str(error)
    return found.tolist() if isinstance(found, torch.Tensor) else found


def grads(module: torch.nn.Module) -> list[Any]:
    """The gradients of a module, rounded."""
    return [None if p.grad is None else p.grad.mul(1e4).round().tolist() for p in module.parameters()]


def step(schedule: Any, rank: int, size: int, **more: Any) -> Any:
    """A step with the batch of the models."""
    x, target = models.batch(8)
    return schedule.step(*([x] if rank == 0 else []), **({"target": target} if rank == size - 1 else {}), **more)
