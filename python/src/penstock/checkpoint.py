"""Reads and writes the checkpoints of `penstock train` and of the C++ library.

A checkpoint holds every tensor of a model under its name, whatever topology wrote it. From Python, it is read and written
as full tensors, in one process::

    state = penstock.checkpoint.load("runs/gpt")          # the newest checkpoint, as a state dict
    model.load_state_dict(state)
    penstock.checkpoint.save("runs/gpt", 100, model, optimizer)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from penstock import _torch
from penstock.errors import CheckpointError, UsageError

__all__ = ["Checkpoint", "CheckpointError", "StoredTensor", "load", "load_into", "save"]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a checkpoint."""

    name: str
    kind: str
    """`parameter`, `buffer`, `optimizer` or `extra`."""
    state: str
    """Of optimizer states: `exp_avg`, `step`, …; else empty."""
    shape: tuple[int, ...]
    aliases: tuple[str, ...]
    """Other names of the same tensor (tied weights)."""


class Checkpoint:
    """A complete checkpoint: the directory of one step, or the newest one in a directory of checkpoints.

    Opening reads only the list of tensors.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._opened = _torch.Checkpoint(os.fspath(path))

    @property
    def path(self) -> str:
        """The directory of the step."""
        return self._opened.path

    @property
    def step(self) -> int:
        """The number of the step."""
        return self._opened.step

    @property
    def notes(self) -> dict[str, str]:
        """Strings that the run stored with the tensors."""
        return dict(self._opened.notes)

    @property
    def tensors(self) -> list[StoredTensor]:
        """All tensors, sorted by name."""
        return [
            StoredTensor(name, kind, state, tuple(shape), tuple(aliases))
            for name, kind, state, shape, aliases in self._opened.tensors()
        ]

    def read(self, name: str, state: str = "") -> torch.Tensor:
        """Reads a full tensor, by name or alias. Raises CheckpointError if it is missing or damaged."""
        tensor: torch.Tensor = self._opened.read(name, state)
        return tensor

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The parameters and buffers, under all their names."""
        state: dict[str, torch.Tensor] = {}
        for stored in self.tensors:
            if stored.kind in ("parameter", "buffer"):
                tensor = self.read(stored.name)
                for name in (stored.name, *stored.aliases):
                    state[name] = tensor
        return state

    def optimizer_states(self) -> dict[str, dict[str, torch.Tensor]]:
        """The states of the optimizer, by name of the parameter and of the state."""
        states: dict[str, dict[str, torch.Tensor]] = {}
        for stored in self.tensors:
            if stored.kind == "optimizer":
                states.setdefault(stored.name, {})[stored.state] = self.read(stored.name, stored.state)
        return states

    def verify(self) -> list[str]:
        """Reads every byte and returns every problem found; empty if the checkpoint is intact."""
        return list(self._opened.verify())


def load(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a checkpoint, for `load_state_dict`."""
    return Checkpoint(path).state_dict()


def load_into(
    path: str | os.PathLike[str], module: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> int:
    """Fills a module and its optimizer from a checkpoint and returns the step. Raises if names or shapes differ."""
    opened = Checkpoint(path)
    module.load_state_dict(opened.state_dict())
    if optimizer is not None:
        states = opened.optimizer_states()
        for name, parameter in module.named_parameters():
            for key, value in states.get(name, {}).items():
                optimizer.state[parameter][key] = value if key == "step" else value.to(parameter)
    return opened.step


def save(
    directory: str | os.PathLike[str],
    step: int,
    model: torch.nn.Module | Mapping[str, torch.Tensor],
    optimizer: torch.optim.Optimizer | None = None,
    *,
    notes: Mapping[str, str] | None = None,
    keep: int | None = None,
) -> str:
    """Writes the checkpoint DIRECTORY/step-N and returns its path.

    `model` is a module or a state dict. `keep` removes older checkpoints, so that this many remain.
    """
    entries = list(_model_entries(model))
    if optimizer is not None:
        if not isinstance(model, torch.nn.Module):
            raise UsageError("the states of an optimizer need the names of a module's parameters", hint="pass the module")
        entries.extend(_optimizer_entries(model, optimizer))
    return str(_torch.save_checkpoint(os.fspath(directory), step, entries, dict(notes or {}), keep))


_Entry = tuple[str, str, str, torch.Tensor]


def _model_entries(model: torch.nn.Module | Mapping[str, torch.Tensor]) -> Iterator[_Entry]:
    if not isinstance(model, torch.nn.Module):
        for name, tensor in model.items():
            yield name, "parameter", "", tensor
        return
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        yield name, "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer", "", tensor


def _optimizer_entries(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[_Entry]:
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                yield name, "optimizer", key, value
