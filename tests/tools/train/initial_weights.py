"""The Python side of the test of `penstock train --init`.

`make FOLDER` writes FOLDER/model.pt2, an exported model with tied weights, FOLDER/hf, other weights for it in the format of Hugging Face
(bfloat16, two files and an index, every name below `model.`, tied weights under one name), and FOLDER/data.safetensors. `check FOLDER
LOG…` compares the losses of each log with a dense training loop from those weights. Exit code 77: this Python lacks torch, numpy or
safetensors.
"""

import json
import os
import sys

try:
    import numpy  # safetensors.torch needs it
    import safetensors.torch
    import torch
except ImportError:
    sys.exit(77)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Model(torch.nn.Module):
    def __init__(self, seed):
        torch.manual_seed(seed)
        super().__init__()
        self.token = torch.nn.Embedding(11, 8)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
        self.head = torch.nn.Linear(8, 11, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens):
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def data():
    tokens = torch.arange(96).reshape(16, 6).remainder(11)
    return {"tokens": tokens, "target": (tokens * 3 + 1).remainder(11)}


def weights():
    """In the names of the model, without the second name of the tied weight."""
    return {name: tensor.to(torch.bfloat16) for name, tensor in Model(2).state_dict().items() if name != "head.weight"}


def make(folder):
    batch = {"tokens": {0: torch.export.Dim("batch", min=1, max=64)}}
    program = torch.export.export(Model(1), (data()["tokens"][:4],), dynamic_shapes=batch)
    torch.export.save(program, os.path.join(folder, "model.pt2"))
    safetensors.torch.save_file(data(), os.path.join(folder, "data.safetensors"))
    os.mkdir(os.path.join(folder, "hf"))
    stored = {"model." + name.replace("blocks.", "layers."): tensor for name, tensor in weights().items()}
    weight_map = {}
    for part in range(2):
        names = sorted(stored)[part::2]
        file = f"model-0000{part + 1}-of-00002.safetensors"
        safetensors.torch.save_file({name: stored[name] for name in names}, os.path.join(folder, "hf", file), {"format": "pt"})
        weight_map |= {name: file for name in names}
    with open(os.path.join(folder, "hf", "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {}, "weight_map": weight_map}, file)


def dense_losses():
    model = Model(3)
    model.load_state_dict({name: tensor.float() for name, tensor in weights().items()}, strict=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    losses = []
    for step in range(4):
        rows = slice(step % 2 * 8, step % 2 * 8 + 8)
        loss = torch.nn.functional.cross_entropy(model(data()["tokens"][rows]).flatten(0, 1), data()["target"][rows].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    mode, folder, *logs = sys.argv[1:]
    if mode == "make":
        return make(folder)
    expected = dense_losses()
    for log in logs:
        with open(log) as file:
            losses = [json.loads(line)["loss"] for line in file]
        assert len(losses) == len(expected) and all(abs(a - b) < 1e-5 * b for a, b in zip(losses, expected)), (log, losses, expected)
    print("agrees")


main()
