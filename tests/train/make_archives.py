"""Exports a small language model, generates data for it and for an MLP, and trains both in Python, for archive_test.cpp.

Usage: python3 make_archives.py FOLDER. Writes language.pt2 and mlp.pt2 (dynamic batch), fixed.pt2 (a batch of 4), norm.pt2 (an MLP with
batch norm, from 1 row), uneven.pt2 (parameters and work in different layers), NAME.safetensors with the data, and losses.txt: model,
optimizer, step, loss of a Python training loop over full batches.
"""
import json
import struct
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

DTYPES = {torch.float32: "F32", torch.int64: "I64"}

VOCABULARY, WIDTH, LENGTH = 17, 16, 6


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        before = torch.cumsum(x, 1) / torch.arange(1, x.shape[1] + 1).reshape(1, -1, 1)
        return x + self.down(F.gelu(self.up(self.norm(before))))


class Language(nn.Module):
    """A tied head, a keyword argument that every layer reads, outputs in a dict."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens, *, weight):
        x = self.token(tokens)
        for layer in self.layers:
            x = layer(x) * weight.unsqueeze(1).unsqueeze(2)
        return {"features": x, "logits": self.head(x)}


def save_file(tensors, path):
    header, blobs, place = {}, [], 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (DTYPES[item[1].dtype], item[0])):
        blob = tensor.contiguous().numpy().tobytes()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [place, place + len(blob)]}
        blobs.append(blob)
        place += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def save_program(program, path):
    for node in program.graph.nodes:  # paths of the machine that exported it
        node.meta.pop("stack_trace", None)
        node.meta.pop("torch_fn", None)
    program.example_inputs = None
    torch.export.save(program, path)


def mlp():
    return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))


class Uneven(nn.Module):
    """The head has most parameters, the layers before it do most of the work, once per position."""

    def __init__(self):
        super().__init__()
        self.spread = nn.Linear(1, 8)
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
        self.head = nn.Linear(384, 3)

    def forward(self, input):
        return self.head(self.layers(self.spread(input.repeat(1, 8).unsqueeze(2))).flatten(1))


def batches(data, step, size):
    count = len(data["target"])
    rows = torch.arange((step - 1) * size, step * size) % count
    return {name: tensor[rows] for name, tensor in data.items()}


def train(name, model, data, loss_of, out):
    first = {k: v.clone() for k, v in model.state_dict().items()}
    for kind in ("adamw", "sgd"):
        model.load_state_dict(first)
        optimizer = {"adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.02),
                     "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5)}[kind](model.parameters())
        for step in range(1, 21):
            batch = batches(data, step, 8)
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.7)
            optimizer.step()
            out.write(f"{name} {kind} {step} {loss.item():.9g}\n")
    model.load_state_dict(first)


def main():
    folder = sys.argv[1]
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=2, max=64)
    with open(f"{folder}/losses.txt", "w") as out:
        model = Language()
        tokens = torch.randint(0, VOCABULARY, (20, LENGTH))
        data = {"tokens": tokens, "weight": 0.9 + 0.1 * torch.rand(20), "target": (tokens * 3 + 1) % VOCABULARY}
        save_file(data, f"{folder}/language.safetensors")
        for name, shapes in (("language", {"tokens": {0: batch}, "weight": {0: batch}}), ("fixed", None)):
            program = torch.export.export(model, (tokens[:4],), {"weight": data["weight"][:4]}, dynamic_shapes=shapes)
            save_program(program, f"{folder}/{name}.pt2")
        train("language", model, data,
              lambda m, b: F.cross_entropy(m(b["tokens"], weight=b["weight"])["logits"].flatten(0, 1), b["target"].flatten()), out)
        model = mlp()
        x = torch.randn(20, 6)
        data = {"input": x, "target": torch.stack([x.sum(1), x[:, 0] * x[:, 1], x[:, 2].sin()], 1)}
        save_file(data, f"{folder}/mlp.safetensors")
        save_program(torch.export.export(model, (x[:4],), dynamic_shapes=({0: batch},)), f"{folder}/mlp.pt2")
        train("mlp", model, data, lambda m, b: F.mse_loss(m(b["input"]), b["target"]), out)
    norm = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    rows = torch.export.Dim("batch", min=1, max=64)
    save_program(torch.export.export(norm, (x[:4],), dynamic_shapes=({0: rows},)), f"{folder}/norm.pt2")
    save_program(torch.export.export(Uneven(), (x[:4],), dynamic_shapes=({0: batch},)), f"{folder}/uneven.pt2")


if __name__ == "__main__":
    main()
