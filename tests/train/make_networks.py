"""Exports an LSTM, a small ResNet and a model whose classes are not in the last dim of its output, and trains them in Python, for
networks_test.cpp.

Usage: python3 make_networks.py FOLDER. Writes lstm.pt2, resnet.pt2 and pixels.pt2, NAME.safetensors with their data, and networks.txt: run,
step, loss. Rows are read in file order. The runs resnet_M divide each batch into M microbatches, which a batch norm sees one by one.
"""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from make_archives import save_file, save_program

ROWS, BATCH, STEPS, CLASSES = 24, 12, 12, 5


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 8, num_layers=2, batch_first=True)
        self.head = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, CLASSES))

    def forward(self, tokens):
        return self.head(self.lstm(self.token(tokens))[0][:, -1])


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(x + self.norms[1](self.second(y)))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        self.blocks = nn.ModuleList(Block(4) for _ in range(3))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, image):
        x = self.stem(image)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class Pixels(nn.Module):
    """Classes in dim 1, as in segmentation."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, CLASSES * 6)

    def forward(self, input):
        return self.down(F.gelu(self.norm(self.up(input)))).unflatten(1, (CLASSES, 2, 3))


def data(name):
    if name == "lstm":
        tokens = torch.randint(0, 11, (ROWS, 7))
        return {"tokens": tokens, "target": tokens.sum(1) % CLASSES}
    if name == "resnet":
        return {"image": torch.randn(ROWS, 3, 6, 6), "target": torch.arange(ROWS) % CLASSES}
    return {"input": torch.randn(ROWS, 6), "target": torch.randint(0, CLASSES, (ROWS, 2, 3))}


def ignored(target):
    """Labels of which every third one is ignored."""
    flat = target.flatten().clone()
    flat[::3] = -100
    return flat.view(target.shape)


def soft(target):
    return 0.8 * F.one_hot(target, CLASSES).movedim(-1, 1).float() + 0.2 / CLASSES


WEIGHTS = 0.5 + torch.arange(CLASSES) / 4.0
# Run: model, microbatches, loss, change of the target.
RUNS = {
    "lstm": ("lstm", 1, F.cross_entropy, lambda t: t),
    "resnet_1": ("resnet", 1, F.cross_entropy, lambda t: t),
    "resnet_3": ("resnet", 3, F.cross_entropy, lambda t: t),
    "pixels_plain": ("pixels", 1, F.cross_entropy, lambda t: t),
    "pixels": ("pixels", 1, F.cross_entropy, ignored),
    "pixels_weights": ("pixels", 1, lambda x, t: F.cross_entropy(x, t, weight=WEIGHTS, label_smoothing=0.1), ignored),
    "pixels_soft": ("pixels", 1, lambda x, t: F.cross_entropy(x, t, weight=WEIGHTS), soft),
    "pixels_bce": ("pixels", 1, lambda x, t: F.binary_cross_entropy_with_logits(x, t, weight=WEIGHTS[:, None, None]), soft),
}


def train(module, tensors, microbatches, loss_of):
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.1)
    module.train()
    for step in range(STEPS):
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % ROWS
        optimizer.zero_grad()
        total = 0
        for part in rows.chunk(microbatches):
            *inputs, target = (tensor[part] for tensor in tensors.values())
            loss = loss_of(module(*inputs), target) / microbatches
            loss.backward()
            total += loss.item()
        optimizer.step()
        yield total


def main():
    folder = sys.argv[1]
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=2, max=64)
    models, tensors = {"lstm": Lstm(), "resnet": ResNet(), "pixels": Pixels()}, {}
    for name, model in models.items():
        tensors[name] = data(name)
        save_file(tensors[name], f"{folder}/{name}.safetensors")
        inputs = tuple(tensor[:4] for key, tensor in tensors[name].items() if key != "target")
        save_program(torch.export.export(model, inputs, dynamic_shapes=({0: batch},)), f"{folder}/{name}.pt2")
    first = {name: {key: value.clone() for key, value in model.state_dict().items()} for name, model in models.items()}
    with open(f"{folder}/networks.txt", "w") as out:
        for run, (name, microbatches, loss_of, change) in RUNS.items():
            models[name].load_state_dict(first[name])
            changed = tensors[name] | {"target": change(tensors[name]["target"])}
            for step, loss in enumerate(train(models[name], changed, microbatches, loss_of)):
                out.write(f"{run} {step + 1} {loss:.9g}\n")


if __name__ == "__main__":
    main()
