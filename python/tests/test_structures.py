"""Objects that stages send each other: named tuples, dataclasses, registered nodes of pytrees."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import models
import pytest
import ranks
import torch

CPU = torch.device("cpu")
MSE = torch.nn.functional.mse_loss


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Registered:
    hidden: torch.Tensor
    scale: float


torch.export.register_dataclass(Registered)


@dataclasses.dataclass(frozen=True)
class Plain:
    hidden: Any
    name: str
    parts: list[Any] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.name != "received"  # the initializer runs where the object is made, and nowhere else
        object.__setattr__(self, "name", "received")


def _wrap(kind: str, y: torch.Tensor) -> Any:
    if kind == "named tuple":
        return Pair(y, (2 * y, None))
    if kind == "registered":
        return Registered(y, 0.5)
    if kind == "dataclass":
        return Plain(Pair(y, 3), "sent", [y])
    if kind == "ordered dict":
        return collections.OrderedDict([("b", y), ("a", y.shape)])
    return {("a", 1): y, 2: Registered(y, 0.25)}


def _unwrap(kind: str, value: Any) -> torch.Tensor:
    if kind == "named tuple":
        assert type(value) is Pair and value.right[1] is None
        y: torch.Tensor = value.left + value.right[0]
    elif kind == "registered":
        assert type(value) is Registered
        y = value.hidden * value.scale
    elif kind == "dataclass":
        assert type(value) is Plain and value.name == "received" and value.hidden.right == 3
        y = value.hidden.left + value.parts[0]
    elif kind == "ordered dict":
        assert type(value) is collections.OrderedDict and list(value) == ["b", "a"] and type(value["a"]) is torch.Size
        y = value["b"].reshape(value["a"])
    else:
        assert list(value) == [("a", 1), 2]
        y = value["a", 1] + value[2].hidden * value[2].scale
    return y


class Stage(torch.nn.Module):
    def __init__(self, index: int, last: bool, kind: str) -> None:
        super().__init__()
        self.block = models.block(index)
        self.first, self.last, self.kind = index == 0, last, kind

    def forward(self, value: Any) -> Any:
        y = self.block(value if self.first else _unwrap(self.kind, value))
        return y if self.last else _wrap(self.kind, y)


KINDS = ["named tuple", "registered", "dataclass", "ordered dict", "other keys"]


def _train(rank: int, size: int) -> Any:
    from penstock.pipelining import PipelineStage, ScheduleZBVZeroBubble

    found = {}
    for kind in KINDS:
        modules = {index: Stage(index, index == 3, kind) for index in (rank, 3 - rank)}
        stages = [PipelineStage(module, index, 4, CPU) for index, module in modules.items()]
        schedule = ScheduleZBVZeroBubble(stages, 4, loss_fn=MSE)
        x, target = models.batch(8)
        output = schedule.step(*([x] if rank == 0 else []), target=target)
        evaluated = schedule.eval(*([x] if rank == 0 else []), target=target)
        assert rank > 0 or torch.equal(output, evaluated)
        found[kind] = output, {f"{i}.{n}": p.grad for i, m in modules.items() for n, p in m.block.named_parameters()}
    return found


def test_objects_between_stages() -> None:
    per_rank = ranks.run(_train, 2)
    for kind in KINDS:
        stages = [Stage(index, index == 3, kind) for index in range(4)]
        x, target = models.batch(8)
        value: Any = x
        for stage in stages:
            value = stage(value)
        MSE(value, target).backward()
        torch.testing.assert_close(per_rank[0][kind][0], value.detach(), rtol=1e-5, atol=1e-6)
        for found in per_rank:
            for key, grad in found[kind][1].items():
                index, name = key.split(".", 1)
                want = dict(stages[int(index)].block.named_parameters())[name].grad
                torch.testing.assert_close(grad, want, rtol=1e-4, atol=1e-6, msg=f"{kind}: {key}")


def test_classes_that_other_ranks_cannot_find() -> None:
    from penstock.pipelining._structures import pack

    @dataclasses.dataclass
    class Local:
        x: int

    with pytest.raises(TypeError, match="a Local cannot be sent.*top level of a module"):
        pack(Local(1))
    assert pack({1, 2}) is None
