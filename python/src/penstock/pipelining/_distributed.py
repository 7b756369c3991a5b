"""Distributed tensors of Python between stages: the local shard travels as a tensor, the rest as text."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

_meshes: dict[str, Any] = {}


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
    key = json.dumps([list(mesh.mesh_dim_names or ()), list(mesh.shape)])
    _meshes.setdefault(key, mesh)
    return key


def pack(tensor: torch.Tensor) -> tuple[torch.Tensor, str] | None:
    """Returns the local shard of a distributed tensor and its description; None for any other subclass."""
    if not isinstance(tensor, DTensor):
        return None
    description = {
        "mesh": remember_mesh(tensor.device_mesh),
        "placements": [_describe(placement) for placement in tensor.placements],
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
    }
    return tensor.to_local(), json.dumps(description)


def unpack(local: torch.Tensor, text: str) -> DTensor:
    """The inverse of `pack`, on the mesh of this rank with the same axes."""
    description = json.loads(text)
    mesh = _meshes.get(description["mesh"])
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
