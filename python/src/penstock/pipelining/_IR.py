"""Traced models: `pipeline` splits a model with `torch.export`, as `torch.distributed.pipelining` does.

Differences: values may skip stages, parameters that several stages use are kept equal, inputs of the model may be used by
any stage, and a model may be split again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import fx
from torch.distributed.pipelining import _IR as _reference
from torch.distributed.pipelining._IR import SplitPoint, get_submod_name, pipe_split

from ._mirror import mirror
from .stage import _PipelineStage

__all__ = ["Pipe", "SplitPoint", "annotate_split_points", "pipe_split", "pipeline", "pipeline_from_export"]


class Pipe(_reference.Pipe):
    """A model that is split into stages."""

    @staticmethod
    def from_tracing(
        mod: torch.nn.Module,
        example_args: tuple[Any, ...],
        example_kwargs: dict[str, Any] | None = None,
        split_policy: Callable[[fx.GraphModule], fx.GraphModule] | None = None,
    ) -> Pipe:
        """Traces a model and splits it at its marks, its calls of `pipe_split()` and where `split_policy` inserts them."""
        return Pipe._adopt(_reference.Pipe.from_tracing(mod, example_args, example_kwargs, split_policy))

    @staticmethod
    def _from_traced(*args: Any, **kwargs: Any) -> Pipe:
        return Pipe._adopt(_reference.Pipe._from_traced(*args, **kwargs))

    @staticmethod
    def _adopt(traced: Any) -> Pipe:
        """Makes the result of PyTorch's functions a pipe of this package."""
        traced.__class__ = Pipe
        pipe: Pipe = traced
        pipe._drop_stale_aliases()
        return pipe

    def build_stage(
        self, stage_index: int, device: torch.device, group: dist.ProcessGroup | None = None
    ) -> _PipelineStage:
        """Makes the stage with this index."""
        module = self.get_stage_module(stage_index)
        if isinstance(module, fx.GraphModule):
            _reference._modify_graph_op_device(module, device)
        stage = _PipelineStage(module, stage_index, self.info(), device, group)
        stage._shared_parameters = self.shared_parameters()
        return stage

    def _drop_stale_aliases(self) -> None:
        """Removes copies of shared parameters that no stage uses.

        A stage that uses a tied weight has it under all its names. PyTorch gives each stage a copy of its own under one
        name, and the other names keep the old tensor, which gets no gradient.
        """
        for index in range(self.num_stages):
            module = self.get_stage_module(index)
            names = [uses[index] for uses in self.shared_parameters() if index in uses]
            used = _used_attributes(module)
            for name, parameter in list(module.named_parameters(remove_duplicate=False)):
                if name not in used and any(_same_values(parameter, module.get_parameter(other)) for other in names):
                    owner, _, attribute = name.rpartition(".")
                    delattr(module.get_submodule(owner), attribute)

    def shared_parameters(self) -> list[dict[int, str]]:
        """The parameters that several stages hold: their name in each of these stages, by stage index."""
        index_of = {get_submod_name(index): index for index in range(self.num_stages)}
        return [
            {index_of[stage]: name for stage, name in sorted(uses.items(), key=lambda use: index_of[use[0]])}
            for uses in self.replicated_params
        ]


def _used_attributes(module: torch.nn.Module, scope: str = "") -> set[str]:
    """The parameters and buffers that the graphs of a stage read."""
    used = set()
    for node in getattr(getattr(module, "graph", None), "nodes", ()):
        if node.op == "get_attr":
            used.add(scope + str(node.target))
    for name, child in module.named_children():
        used |= _used_attributes(child, f"{scope}{name}.")
    return used


def _same_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a is not b and a.shape == b.shape and a.dtype == b.dtype and not a.is_meta and bool(torch.equal(a, b))


def _forget_split_points(module: torch.nn.Module, names: Iterable[str]) -> None:
    """Removes the marks of these submodules."""
    for name in names:
        part = module
        for atom in name.split("."):
            part = getattr(part, atom, None)  # type: ignore[assignment]
        original = getattr(part, "__dict__", {}).pop("_orig_forward", None)
        if original is not None:
            part.__dict__.pop("forward", None)
            if getattr(original, "__func__", None) is not type(part).forward:
                part.forward = MethodType(original.__func__, part) if hasattr(original, "__func__") else original


def annotate_split_points(mod: torch.nn.Module, spec: dict[str, SplitPoint]) -> None:
    """Marks where to split a model, in addition to earlier marks. A new mark of a submodule replaces the earlier one."""
    _forget_split_points(mod, spec)
    _reference.annotate_split_points(mod, spec)


def pipeline(
    module: torch.nn.Module,
    mb_args: tuple[Any, ...],
    mb_kwargs: dict[str, Any] | None = None,
    split_spec: dict[str, SplitPoint] | None = None,
    split_policy: Callable[[fx.GraphModule], fx.GraphModule] | None = None,
) -> Pipe:
    """Traces a model with the arguments of one microbatch and splits it.

    The split points are those of `split_spec` (submodule names), those that `split_policy` inserts, or the calls of
    `pipe_split()` in the model.
    """
    if split_spec is not None and split_policy is not None:
        raise ValueError("Cannot specify both `split_spec` and `split_policy`. Please use only one of them.")
    if split_spec is None:
        return Pipe.from_tracing(module, mb_args, mb_kwargs, split_policy)
    annotate_split_points(module, split_spec)
    try:
        return Pipe.from_tracing(module, mb_args, mb_kwargs)
    finally:
        _forget_split_points(module, split_spec)


def pipeline_from_export(
    program: str | os.PathLike[str] | torch.export.ExportedProgram, split_spec: dict[str, SplitPoint]
) -> Pipe:
    """Splits a model that was exported before: a file of `torch.export.save`, or the program itself.

    `split_spec` names submodules of the original model. Calls of `pipe_split()` in it are split points too.
    """
    if not isinstance(program, torch.export.ExportedProgram):
        program = torch.export.load(os.fspath(program))
    whole: Any = program.module(check_guards=False)
    return Pipe._from_traced(
        whole,
        program,
        _reference.MultiUseParameterConfig.REPLICATE,
        split_policy=lambda graph_module: _with_split_points(graph_module, split_spec),
    )


def _with_split_points(module: fx.GraphModule, spec: dict[str, SplitPoint]) -> fx.GraphModule:
    """Inserts a mark before the first or after the last operator of each submodule."""
    for path, point in spec.items():
        nodes = [node for node in module.graph.nodes if _is_in(node, path)]
        if not nodes:
            raise AttributeError(f"the exported model has no operators in a submodule {path!r}")
        at = module.graph.inserting_before(nodes[0]) if point == SplitPoint.BEGINNING else module.graph.inserting_after(nodes[-1])
        with at:
            module.graph.call_function(_reference.aten_pipe_split_alias)
    module.recompile()
    return module


def _is_in(node: fx.Node, path: str) -> bool:
    if node.op != "call_function":
        return False
    paths = (name for name, _ in (node.meta.get("nn_module_stack") or {}).values())
    return any(name == path or name.startswith(path + ".") for name in paths)


def __getattr__(name: str) -> Any:
    return getattr(_reference, name)


mirror(__name__, _reference)
