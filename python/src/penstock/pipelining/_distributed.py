"""Distributed tensors of Python between stages: the local shard travels as a tensor, the rest as text."""

from __future__ import annotations

import base64
import json
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

_meshes: dict[str, Any] = {}
_layouts: dict[str, str] = {}
_get_mesh: list[Callable[..., Any]] = []
_default_group: weakref.ref[dist.ProcessGroup] | None = None


def _forget_old_meshes() -> None:
    """Drops what belongs to process groups that were destroyed."""
    global _default_group
    group = dist.distributed_c10d._get_default_group()
    if _default_group is None or _default_group() is not group:
        _default_group = weakref.ref(group)
        for known in (_meshes, _layouts, _get_mesh):
            known.clear()


def _describe(placement: Placement) -> list[Any]:
    if isinstance(placement, Replicate):
        return ["replicate"]
    if isinstance(placement, Partial):
        return ["partial", placement.reduce_op]
    if type(placement) is Shard:
        return ["shard", placement.dim]
    raise TypeError(f"a distributed tensor with the placement {placement} cannot be sent to another stage")


def _placement(description: list[Any]) -> Placement:
    kind, *rest = description
    if kind == "replicate":
        return Replicate()
    return Shard(rest[0]) if kind == "shard" else Partial(rest[0])


def remember_mesh(mesh: Any) -> str:
    """Returns the key of a mesh: its axes and their sizes, which stages on other ranks have in common."""
    _forget_old_meshes()
    key = json.dumps([list(mesh.mesh_dim_names or ()), list(mesh.shape)])
    _meshes.setdefault(key, mesh)
    return key


def remember_get_mesh(get_mesh: Callable[..., Any]) -> None:
    """Adds a function of a program that returns the mesh with given axes and layout."""
    _forget_old_meshes()
    _get_mesh.insert(0, get_mesh)


def _layout_of(mesh: Any, key: str) -> str:
    if key not in _layouts:
        _layouts[key] = base64.b64encode(pickle.dumps(mesh._layout)).decode()
    return _layouts[key]


def _find_mesh(key: str, layout: str) -> Any:
    """The mesh of this rank with the key; asks the functions of the program if it is not known."""
    if key not in _meshes:
        axes = tuple(json.loads(key)[0])
        for get_mesh in _get_mesh:
            mesh = get_mesh(axes, pickle.loads(base64.b64decode(layout)))
            if mesh is not None:
                _meshes[key] = mesh
                break
    return _meshes.get(key)


def pack(tensor: torch.Tensor) -> tuple[torch.Tensor, str] | None:
    """Returns the local shard of a distributed tensor and its description; None for any other subclass."""
    if not isinstance(tensor, DTensor):
        return None
    key = remember_mesh(tensor.device_mesh)
    description = {
        "mesh": key,
        "layout": _layout_of(tensor.device_mesh, key),
        "placements": [_describe(placement) for placement in tensor.placements],
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
    }
    return tensor.to_local(), json.dumps(description)


def unpack(local: torch.Tensor, text: str) -> DTensor:
    """The inverse of `pack`, on the mesh of this rank with the same axes."""
    description = json.loads(text)
    mesh = _find_mesh(description["mesh"], description["layout"])
    if mesh is None:
        axes, sizes = json.loads(description["mesh"])
        raise RuntimeError(
            f"this stage received a distributed tensor on a mesh with the axes {axes} of sizes {sizes}, but knows no such "
            "mesh: pass `get_mesh` to PipelineStage, or give the stage a parameter on that mesh"
        )
    return DTensor.from_local(
        local,
        mesh,
        [_placement(placement) for placement in description["placements"]],
        run_check=False,
        shape=torch.Size(description["shape"]),
        stride=tuple(description["stride"]),
    )
