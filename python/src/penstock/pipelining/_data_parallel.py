"""Data parallelism of PyTorch in a pipeline: DDP, `fully_shard` and `replicate`.

Gradients accumulate over the microbatches of a step and are reduced once, after the last backward pass of the stage.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed._composable.replicate_with_fsdp import ReplicateModule, replicate
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel


class StageHooks:
    """What the runtime calls, by stage index."""

    def __init__(self, stages: list[Any]) -> None:
        self._modules = {stage.stage_index: stage for stage in stages}
        self._pending: dict[int, list[Any]] = {}
        self.waits_before_compute = any(isinstance(stage.submod, FSDPModule) for stage in stages)

    def begin_step(self) -> None:
        """No backward pass of a microbatch may reduce gradients or free parameters."""
        for stage in self._modules.values():
            if isinstance(stage.submod, FSDPModule):
                stage.submod.set_is_last_backward(False)
                stage.submod.set_reshard_after_backward(False)
                stage.submod.set_requires_gradient_sync(False)

    def unshard(self, index: int) -> None:
        for module in self._sharded(index):
            handle = module.unshard(async_op=True)
            if handle is not None:
                self._pending.setdefault(index, []).append(handle)

    def reshard(self, index: int) -> None:
        self.before_compute(index)
        for module in self._sharded(index):
            module.reshard()

    def before_compute(self, index: int) -> None:
        for handle in self._pending.pop(index, ()):
            handle.wait()

    def reduce_grad(self, index: int) -> None:
        module = self._modules[index].submod
        if isinstance(module, DistributedDataParallel):
            _reduce_replicated(module)
        elif isinstance(module, FSDPModule):
            _reduce_sharded(module)

    def _sharded(self, index: int) -> list[FSDPModule]:
        module = self._modules[index].submod
        if not isinstance(module, FSDPModule):
            return []
        return [part for part in self._modules[index].submod.modules() if isinstance(part, FSDPModule)]


def _reduce_replicated(module: DistributedDataParallel) -> None:
    """Lets DDP's reducer see all accumulated gradients: a backward pass that adds zero to each of them.

    Buckets, communication hooks and the division by the number of replicas are those of DDP.
    """
    parameters = [p for p in module.module.parameters() if p.requires_grad]
    unused = [p for p in parameters if p.grad is None]
    if module.find_unused_parameters and len(unused) < len(parameters):  # DDP asks the other replicas about them
        parameters = [p for p in parameters if p.grad is not None]
    if not parameters:
        return
    with torch.enable_grad():
        roots = [p.view_as(p) for p in parameters]
    module.reducer.prepare_for_backward(roots if module.find_unused_parameters else [])
    torch.autograd.backward(roots, [torch.zeros((), dtype=p.dtype, device=p.device).expand_as(p) for p in parameters])
    for parameter in unused:
        if parameter.grad is not None and not parameter.grad.any():
            parameter.grad = None  # no replica used it


def _reduce_sharded(module: FSDPModule) -> None:
    module.set_is_last_backward(True)
    module.set_reshard_after_backward(True)
    module.set_requires_gradient_sync(True)
    wrap: Any = replicate if isinstance(module, ReplicateModule) else fully_shard
    state = wrap.state(module)
    for part in state._state_ctx.all_states:
        for group in part._fsdp_param_groups:
            group.post_backward()
    state._root_post_backward_final_callback()
