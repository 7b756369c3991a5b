"""Splitting a batch into microbatches and merging outputs, as in `torch.distributed.pipelining.microbatch`."""

from __future__ import annotations

from typing import Any

from torch.distributed.pipelining import microbatch as _reference
from torch.distributed.pipelining.microbatch import (  # noqa: F401
    TensorChunkSpec,
    merge_chunks,
    split_args_kwargs_into_chunks,
)

from ._mirror import mirror

__all__ = ["TensorChunkSpec", "merge_chunks", "split_args_kwargs_into_chunks"]


def __getattr__(name: str) -> Any:
    return getattr(_reference, name)


mirror(__name__, _reference)
