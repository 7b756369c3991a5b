"""Modules that share their names with a module of PyTorch.

A name that is replaced here, such as with `mock.patch`, is replaced there too if both modules have the same object under
it: PyTorch's functions look up names in their own module.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Mirror(ModuleType):
    _reference: ModuleType
    _replaced: dict[str, Any]

    def __setattr__(self, name: str, value: Any) -> None:
        here, there = vars(self), vars(self._reference)
        if name in there and here.get(name, there[name]) is there[name]:
            self._replaced.setdefault(name, there[name])
            setattr(self._reference, name, value)
            if name not in here:
                return
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in vars(self) or name not in self._replaced:
            super().__delattr__(name)
        else:
            setattr(self._reference, name, self._replaced.pop(name))


def mirror(name: str, reference: ModuleType) -> None:
    """Lets the module with this name share the names of a module of PyTorch."""
    module = sys.modules[name]
    vars(module).update(_reference=reference, _replaced={})
    module.__class__ = _Mirror
