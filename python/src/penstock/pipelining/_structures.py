"""Dataclasses, named tuples and other nodes of PyTorch's pytrees between stages: their children travel, and their class as text."""

from __future__ import annotations

import base64
import dataclasses
import functools
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree


def _make_dataclass(children: list[Any], kind: type) -> Any:
    """A dataclass that is not registered. Its `__init__` is not called, because it may have done other work."""
    made: Any = object.__new__(kind)
    for field, child in zip(dataclasses.fields(kind), children, strict=True):
        object.__setattr__(made, field.name, child)
    return made


def _make_size(children: list[Any], context: Any) -> Any:
    """PyTorch's function returns a tuple."""
    return torch.Size(children)


@functools.lru_cache(maxsize=256)
def _decode(text: str) -> tuple[Callable[[list[Any], Any], Any], Any]:
    """The function that makes a node of its children, and its second argument."""
    kind, context = pickle.loads(base64.b64decode(text))
    if kind is torch.Size:
        return _make_size, context
    if kind in pytree.SUPPORTED_NODES:
        return pytree.SUPPORTED_NODES[kind].unflatten_fn, context
    return _make_dataclass, kind


def pack(value: Any) -> tuple[list[Any], str] | None:
    """Returns the children of a node and its description; None for any other object."""
    kind = pytree._get_node_type(value)
    context = None
    if kind in pytree.SUPPORTED_NODES:
        found, context = pytree.SUPPORTED_NODES[kind].flatten_fn(value)
        children = list(found)
    elif dataclasses.is_dataclass(kind):
        children = [getattr(value, field.name) for field in dataclasses.fields(kind)]
    else:
        return None
    try:
        text = base64.b64encode(pickle.dumps((kind, context))).decode()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"a {type(value).__name__} cannot be sent to another stage, because its class cannot be found there by name: {error}. "
            "Define the class at the top level of a module"
        ) from None
    return children, text


def unpack(children: list[Any], text: str) -> Any:
    """The inverse of `pack`."""
    make, context = _decode(text)
    return make(children, context)


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Applies a function to all tensors of a tree, also in dataclasses that are not registered."""

    def apply(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return function(leaf)
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            kind = type(leaf)
            return _make_dataclass([map_tensors(function, getattr(leaf, field.name)) for field in dataclasses.fields(kind)], kind)
        return leaf

    return pytree.tree_map(apply, value, is_leaf=lambda node: type(node) is torch.Size)
