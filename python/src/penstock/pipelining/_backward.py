"""The backward functions of `torch.distributed.pipelining._backward`, for programs that call them."""

from __future__ import annotations

from typing import Any

from torch.distributed.pipelining import _backward as _reference

from ._mirror import mirror


def __getattr__(name: str) -> Any:
    return getattr(_reference, name)


mirror(__name__, _reference)
