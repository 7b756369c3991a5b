"""Checkpoints between Python and the tool."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import models
import pytest
import torch
from penstock import checkpoint


def _tool(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "penstock", *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model: torch.nn.Module = torch.nn.Sequential(models.block(0), torch.nn.BatchNorm1d(models.WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(3):
        x, target = models.batch(8, step)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), target).backward()
        optimizer.step()
    return model, optimizer


def test_a_saved_model_and_optimizer_return(tmp_path: pathlib.Path) -> None:
    model, optimizer = _trained()
    path = checkpoint.save(tmp_path / "run", 3, model, optimizer, notes={"origin": "a test"})
    assert pathlib.Path(path).name == "step-00000003"
    opened = checkpoint.Checkpoint(tmp_path / "run")
    assert (opened.step, opened.notes["origin"], opened.verify()) == (3, "a test", [])
    fresh = torch.nn.Sequential(models.block(1), torch.nn.BatchNorm1d(models.WIDTH))
    fresh_optimizer = torch.optim.AdamW(fresh.parameters(), lr=0.1)
    assert checkpoint.load_into(path, fresh, fresh_optimizer) == 3
    for name, tensor in model.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], tensor), name
    x, target = models.batch(8, 9)
    for one, other in ((model, optimizer), (fresh, fresh_optimizer)):  # the next step is the same
        other.zero_grad()
        torch.nn.functional.mse_loss(one(x), target).backward()
        other.step()
    for name, tensor in model.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], tensor), name


def test_the_tool_reads_what_python_wrote(tmp_path: pathlib.Path) -> None:
    model, optimizer = _trained()
    checkpoint.save(tmp_path, 3, model, optimizer)
    seen: Any = json.loads(_tool("checkpoint", "inspect", str(tmp_path), "--json"))
    names = json.dumps(seen)
    for name in model.state_dict():
        assert name in names


def test_python_reads_what_the_tool_wrote(tmp_path: pathlib.Path) -> None:
    run, file = tmp_path / "run", tmp_path / "weights.safetensors"
    _tool("train", "--ranks", "2", "--steps", "2", "--checkpoint", str(run), "--checkpoint-every", "2", "--quiet")
    _tool("checkpoint", "convert", str(run), str(file))
    import safetensors.torch

    expected = safetensors.torch.load_file(str(file))
    found = checkpoint.load(run)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    assert "exp_avg" in next(iter(checkpoint.Checkpoint(run).optimizer_states().values()))


def test_damage_and_absence_are_errors(tmp_path: pathlib.Path) -> None:
    with pytest.raises(checkpoint.CheckpointError):
        checkpoint.load(tmp_path)
    model, _ = _trained()
    path = pathlib.Path(checkpoint.save(tmp_path, 1, model))
    with pytest.raises(checkpoint.CheckpointError, match="weigth"):
        checkpoint.Checkpoint(path).read("weigth")
    shard = next(file for file in path.iterdir() if file.suffix == ".safetensors")
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(bytes(data))
    assert checkpoint.Checkpoint(path).verify()
    with pytest.raises(checkpoint.CheckpointError):
        checkpoint.load(path)
