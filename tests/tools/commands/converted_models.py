"""The Python side of the tests of `penstock checkpoint convert` and `eval --checkpoint`.

`make FOLDER` writes FOLDER/model.pt2 and FOLDER/data.safetensors to train it on, and FOLDER/input.safetensors. `check FOLDER` reads what
the tool made in FOLDER: shards (the format of Hugging Face, at most 300 bytes of tensors per file), plain.safetensors (the same model as
one file), trained.pt2, and the outputs of `eval`: archive.safetensors (trained.pt2) and checkpoint.safetensors (model.pt2 with
--checkpoint). Exit code 77: this Python lacks torch, numpy or safetensors.
"""

import json
import os
import sys
import zipfile

try:
    import numpy  # safetensors.torch needs it
    import safetensors
    import safetensors.torch
    import torch
except ImportError:
    sys.exit(77)


class Model(torch.nn.Module):
    """Tied weights, a parameter with transposed strides, batch norm, an unused parameter, and a buffer outside of the state."""

    def __init__(self):
        super().__init__()
        self.token = torch.nn.Embedding(11, 6)
        self.body = torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.BatchNorm1d(7), torch.nn.Tanh(), torch.nn.Linear(7, 6))
        self.mix = torch.nn.Parameter(torch.randn(6, 6).t())
        self.head = torch.nn.Linear(6, 11, bias=False)
        self.head.weight = self.token.weight
        self.unused = torch.nn.Parameter(torch.arange(3.0))
        self.register_buffer("mask", torch.tensor([1.0, 0.5, 1.0, 1.0, 2.0, 1.0]), persistent=False)

    def forward(self, tokens):
        return self.head(self.body(self.token(tokens) * self.mask) @ self.mix)


def make(folder):
    torch.manual_seed(3)
    model = Model().eval()
    batch = {"tokens": {0: torch.export.Dim("batch", min=1, max=64)}}
    torch.export.save(torch.export.export(model, (torch.arange(4),), dynamic_shapes=batch), os.path.join(folder, "model.pt2"))
    tokens = torch.arange(16).remainder(11)
    data = {"tokens": tokens, "target": (tokens * 3 + 1).remainder(11)}
    safetensors.torch.save_file(data, os.path.join(folder, "data.safetensors"))
    safetensors.torch.save_file({"tokens": torch.arange(11)}, os.path.join(folder, "input.safetensors"))


def same(one, other):
    return set(one) == set(other) and all(one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one)


def check_shards(folder, plain):
    with open(os.path.join(folder, "model.safetensors.index.json")) as file:
        index = json.load(file)
    files = sorted(set(index["weight_map"].values()))
    count = len(files)
    assert count > 2 and files == [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)], files
    assert sorted(os.listdir(folder)) == files + ["model.safetensors.index.json"], os.listdir(folder)
    read = {}
    for name in files:
        tensors = safetensors.torch.load_file(os.path.join(folder, name))
        assert all(index["weight_map"][key] == name for key in tensors)
        assert len(tensors) == 1 or sum(tensor.nbytes for tensor in tensors.values()) <= 300, name
        read |= tensors
        with safetensors.safe_open(os.path.join(folder, name), "pt") as file:
            assert file.metadata()["format"] == "pt"
    assert same(read, plain) and index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in read.values())


def check_members(before, after):
    with zipfile.ZipFile(before) as old, zipfile.ZipFile(after) as new:
        assert new.testzip() is None
        assert [item.filename for item in old.infolist()] == [item.filename for item in new.infolist()]
        changed = [name for name in old.namelist() if old.read(name) != new.read(name)]
    assert changed and all("/data/weights/" in name and not name.endswith(".json") for name in changed), changed


def check(folder):
    torch.set_num_threads(1)
    path = lambda name: os.path.join(folder, name)
    plain = safetensors.torch.load_file(path("plain.safetensors"))
    check_shards(path("shards"), plain)
    check_members(path("model.pt2"), path("trained.pt2"))
    program = torch.export.load(path("trained.pt2"))
    assert same(program.state_dict, plain)
    assert not same(torch.export.load(path("model.pt2")).state_dict, plain)
    with torch.no_grad():
        expected = program.module()(torch.arange(11))
    for name in ("archive.safetensors", "checkpoint.safetensors"):
        assert torch.equal(safetensors.torch.load_file(path(name))["output"], expected), name
    print("agrees")


{"make": make, "check": check}[sys.argv[1]](sys.argv[2])
