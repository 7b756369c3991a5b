"""Which values a stage of a traced model takes from which stage, and which it passes on."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch.fx as fx
from torch.utils._pytree import tree_leaves

_WHOLE = -1  # the index of an output that is not indexed


class StageOutput:
    """The result of a stage that also sends values to later stages than the next one.

    Return it from the `forward` of a stage. The schedule needs the list of skip values (`skips`), and the stage that uses
    a value gets it as a keyword argument.
    """

    __slots__ = ("output", "skips")

    def __init__(self, output: Any, skips: dict[str, Any]) -> None:
        self.output = output
        self.skips = skips


@dataclass(frozen=True)
class _Source:
    """An input of the model (`stage` is -1), or an output of a stage."""

    stage: int
    name: str
    index: int = _WHOLE

    @property
    def key(self) -> str:
        """The name of the value when it skips stages."""
        if self.stage < 0:
            return f"_input_{self.name}"
        return f"_stage{self.stage}_output" + ("" if self.index == _WHOLE else str(self.index))

    @property
    def sender(self) -> int:
        """Inputs of the model arrive at the first stage, which passes them on."""
        return max(self.stage, 0)


def _stage_nodes(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "call_module"]


def _source(node: fx.Node, index_of: dict[fx.Node, int]) -> _Source:
    if node.op == "placeholder":
        return _Source(-1, node.name)
    index = _WHOLE
    if node.target is operator.getitem:
        node, index = node.args[0], node.args[1]  # type: ignore[assignment]
    if node not in index_of:
        raise ValueError(f"stage inputs must come from stages or from the model's inputs, but {node.format_node()} is neither")
    return _Source(index_of[node], node.name, index)


def _all_sources(graph: fx.Graph) -> list[list[_Source]]:
    nodes = _stage_nodes(graph)
    index_of = {node: i for i, node in enumerate(nodes)}
    return [[_source(arg, index_of) for arg in node.args] for node in nodes]  # type: ignore[arg-type]


def skip_values(graph: fx.Graph) -> list[tuple[str, int, int]]:
    """The values that go to a later stage than the next one: name, first stage, last stage.

    Inputs of the model that a later stage uses are among them.
    """
    found: dict[tuple[str, int, int], None] = {}
    for stage, sources in enumerate(_all_sources(graph)):
        for source in sources:
            if stage > 0 and not _is_adjacent(source, stage):
                found[(source.key, source.sender, stage)] = None
    return list(found)


def _is_adjacent(source: _Source, stage: int) -> bool:
    return source.stage == stage - 1


def _unique(sources: list[_Source]) -> list[_Source]:
    return list(dict.fromkeys(sources))


@dataclass
class Wiring:
    """The inputs and outputs of one stage."""

    is_first: bool
    is_last: bool
    inputs: list[_Source]
    from_previous: list[_Source]
    to_next: list[_Source]
    to_later: list[_Source]
    model_inputs: list[str] = field(default_factory=list)

    def call(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the module with its inputs and returns what other stages take from its output."""
        inputs = self._bind(args, kwargs) if self.is_first and (self.to_later or not self._takes_all) else kwargs
        if self.is_first and self._takes_all:
            output = forward(*args, **kwargs)  # the traced module accepts the structure of the model's arguments
        else:
            received = dict(zip(self.from_previous, args, strict=True)) if not self.is_first else {}
            output = forward(*(self._resolve(source, received, inputs) for source in self.inputs))
        if self.is_last:
            return output
        picked = tuple(_pick(output, source.index) for source in self.to_next)
        if not self.to_later:
            return picked
        return StageOutput(picked, {source.key: self._passed_on(source, output, inputs) for source in self.to_later})

    @property
    def _takes_all(self) -> bool:
        return len(self.inputs) == len(self.model_inputs)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The inputs of the model by name. Positional tensors fill the names that are not given as keywords, in order."""
        bound = {name: value for name, value in kwargs.items() if name in self.model_inputs}
        nested = [value for name, value in kwargs.items() if name not in bound]
        names = [name for name in self.model_inputs if name not in bound]
        leaves = tree_leaves((args, nested))
        if len(leaves) > len(names):
            raise TypeError(f"the model takes {len(self.model_inputs)} inputs, but {len(leaves) + len(bound)} were given")
        return {**bound, **dict(zip(names, leaves, strict=False))}

    def _resolve(self, source: _Source, received: dict[_Source, Any], inputs: dict[str, Any]) -> Any:
        if source in received:
            return received[source]
        if source.stage < 0 and source.name in inputs:
            return inputs[source.name]
        if source.key in inputs:
            return inputs[source.key]
        raise TypeError(f"the model needs the argument {source.name!r}, but it was not given")

    @staticmethod
    def _passed_on(source: _Source, output: Any, inputs: dict[str, Any]) -> Any:
        return inputs.get(source.name) if source.stage < 0 else _pick(output, source.index)


def _pick(output: Any, index: int) -> Any:
    return output if index == _WHOLE else output[index]


def stage_wiring(graph: fx.Graph, stage: int) -> Wiring:
    """Reads the wiring of a stage off the graph of a split model."""
    sources = _all_sources(graph)
    return Wiring(
        is_first=stage == 0,
        is_last=stage == len(sources) - 1,
        inputs=sources[stage],
        from_previous=_unique([s for s in sources[stage] if s.stage == stage - 1]) if stage > 0 else [],
        to_next=_unique([s for s in sources[stage + 1] if s.stage == stage]) if stage + 1 < len(sources) else [],
        to_later=_unique(
            [
                s
                for target in range(stage + 1, len(sources))
                for s in sources[target]
                if s.sender == stage and not _is_adjacent(s, target)
            ]
        ),
        model_inputs=[node.name for node in graph.nodes if node.op == "placeholder"],
    )
