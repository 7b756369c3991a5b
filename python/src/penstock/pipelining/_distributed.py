"""Distributed tensors of Python between stages: the local shard travels as a tensor, the rest as text."""

from __future__ import annotations

import base64
import functools
import json
import pickle
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining._utils import PipeliningMetadataError
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from ._metadata import MetadataError

_Key = tuple[tuple[str, ...], Any]
"""The axes and the layout of a mesh, which stages on other ranks have in common."""

_meshes: dict[_Key, Any] = {}
_texts: dict[_Key, str] = {}
_caches: list[weakref.ref[Any]] = []  # those of the stages, the newest first
_default_group: weakref.ref[dist.ProcessGroup] | None = None


def _forget_old_meshes() -> None:
    """Drops what belongs to process groups that were destroyed."""
    global _default_group
    group = dist.distributed_c10d._get_default_group()
    if _default_group is None or _default_group() is not group:
        _default_group = weakref.ref(group)
        for known in (_meshes, _texts, _caches):
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


def _key_of(mesh: Any) -> _Key:
    return tuple(mesh.mesh_dim_names or ()), mesh._layout


def remember_meshes(stage: Any) -> None:
    """Lets values that arrive here use the meshes of a stage: those of its examples, its parameters and its `get_mesh`."""
    _forget_old_meshes()
    cache = stage._mesh_cache
    if all(known() is not cache for known in _caches):
        _caches[:] = [weakref.ref(cache), *(known for known in _caches if known() is not None)]
    parameters = stage.submod.parameters() if isinstance(stage.submod, torch.nn.Module) else ()
    for mesh in {getattr(parameter, "device_mesh", None) for parameter in parameters} - {None}:
        cache.put(_key_of(mesh), mesh)


def _text_of(key: _Key) -> str:
    if key not in _texts:
        _texts[key] = base64.b64encode(pickle.dumps(key)).decode()
    return _texts[key]


@functools.lru_cache(maxsize=64)
def _key_from(text: str) -> _Key:
    key: _Key = pickle.loads(base64.b64decode(text))
    return key


def _find_mesh(key: _Key) -> Any:
    """The mesh of this rank with the key; asks the functions of the program if it is not known."""
    caches = [cache for cache in (known() for known in _caches) if cache is not None]
    for known in (_meshes, *caches):
        if key in known:
            return known[key] if isinstance(known, dict) else known.get_mesh(key)
    reason = ""
    for cache in caches:
        if cache._get_mesh_cb is not None:
            try:
                return cache.get_mesh(key)
            except PipeliningMetadataError as error:
                reason = f": {error}"
    raise MetadataError(
        f"this stage received a distributed tensor on a mesh with the axes {key[0]} and the layout {key[1]}, which it does not "
        f"know{reason}",
        hint="pass `get_mesh` to PipelineStage, or give the stage a parameter or an example on that mesh",
    )


def pack(tensor: torch.Tensor) -> tuple[torch.Tensor, str] | None:
    """Returns the local shard of a distributed tensor and its description; None for any other subclass."""
    if not isinstance(tensor, DTensor):
        return None
    _forget_old_meshes()
    key = _key_of(tensor.device_mesh)
    _meshes.setdefault(key, tensor.device_mesh)
    description = {
        "mesh": _text_of(key),
        "placements": [_describe(placement) for placement in tensor.placements],
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
    }
    return tensor.to_local(), json.dumps(description)


def unpack(local: torch.Tensor, text: str) -> DTensor:
    """The inverse of `pack`, on the mesh of this rank with the same axes and layout."""
    description = json.loads(text)
    return DTensor.from_local(
        local,
        _find_mesh(_key_from(description["mesh"])),
        [_placement(placement) for placement in description["placements"]],
        run_check=False,
        shape=torch.Size(description["shape"]),
        stride=tuple(description["stride"]),
    )
