"""Exports a small residual network with batch norm and trains it in Python, for batch_norm_test.cpp.

Usage: python3 make_batch_norm.py FOLDER. Writes residual.pt2, its data residual.safetensors, and batch_norm.txt: recipe, step, loss, and
validation loss over all rows. A recipe is a number of replicas, accumulated parts and microbatches. Every microbatch is normalized by
itself. As with DistributedDataParallel, the running statistics are those of the first replica. Also writes batch_norm.safetensors: the
running statistics after the last step, as RECIPE/NAME.
"""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from make_archives import save_file, save_program

STEPS, BATCH, ROWS, CLASSES = 8, 8, 20, 3
RECIPES = [(1, 1, 1), (1, 1, 2), (1, 1, 3), (2, 1, 2), (1, 2, 2)]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width, momentum=0.3), nn.BatchNorm2d(width, momentum=0.3)

    def forward(self, x):
        return F.relu(x + self.norm2(self.second(F.relu(self.norm1(self.first(x))))))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4, momentum=0.3)
        self.blocks = nn.ModuleList(Block(4) for _ in range(2))
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, CLASSES)

    def forward(self, input):
        x = F.relu(self.norm(self.stem(input)))
        for block in self.blocks:
            x = block(x)
        return self.down(F.relu(self.up(x.mean([2, 3]))))


def buffers_of(model):
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def train(state, data, replicas, accumulate, microbatches, out):
    model = Residual()
    model.load_state_dict(state)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
    name = f"dp{replicas}_a{accumulate}_m{microbatches}"
    for step in range(1, STEPS + 1):
        rows = torch.arange((step - 1) * BATCH, step * BATCH) % ROWS
        optimizer.zero_grad()
        total, first = 0.0, None
        for share in rows.tensor_split(replicas):
            for part in share.tensor_split(accumulate):
                for some in part.tensor_split(microbatches):
                    loss = F.cross_entropy(model(data["input"][some]), data["target"][some]) * (len(some) / BATCH)
                    loss.backward()
                    total += loss.item()
            first = first or buffers_of(model)
        model.load_state_dict(first, strict=False)
        optimizer.step()
        model.eval()
        with torch.no_grad():
            validation = F.cross_entropy(model(data["input"]), data["target"])
        model.train()
        out.write(f"{name} {step} {total:.9g} {validation.item():.9g}\n")
    return {f"{name}/{key}": buffer for key, buffer in buffers_of(model).items()}


def main():
    folder = sys.argv[1]
    torch.manual_seed(0)
    model = Residual()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    target = torch.randint(0, CLASSES, (ROWS,))
    # The rows differ in mean and scale, so that the statistics of the replicas do.
    data = {"input": torch.randn(ROWS, 1, 4, 4) * (1 + torch.arange(ROWS) % 8).view(-1, 1, 1, 1) + target.view(-1, 1, 1, 1), "target": target}
    save_file(data, f"{folder}/residual.safetensors")
    batch = torch.export.Dim("batch", min=1, max=64)
    save_program(torch.export.export(model, (data["input"][:4],), dynamic_shapes=({0: batch},)), f"{folder}/residual.pt2")
    final = {}
    with open(f"{folder}/batch_norm.txt", "w") as out:
        for recipe in RECIPES:
            final |= train(state, data, *recipe, out)
    save_file(final, f"{folder}/batch_norm.safetensors")


if __name__ == "__main__":
    main()
