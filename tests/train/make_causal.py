"""Exports a small causal language model and trains it in Python on the sequences of a token file, for tests/tools/train/tokens_test.cpp.

Usage: python3 make_causal.py FOLDER. Writes causal.pt2 and causal_losses.txt: the loss of each step. The tokens come from a formula that
the test repeats; the order of the sequences is that of docs/training.md.
"""
import os
import sys
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from make_archives import Layer, VOCABULARY, WIDTH, save_program
from shuffled_order import permutation

COUNT, LENGTH, BATCH, STEPS, SEED = 200, 6, 8, 12, 5


class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids):
        x = self.token(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def sequences(path):
    tokens = np.memmap(path, dtype=np.uint16, mode="r").astype(np.int64)
    rows = -(-(len(tokens) - 1) // LENGTH)
    inputs, targets = np.zeros((rows, LENGTH), np.int64), np.full((rows, LENGTH), -100)
    for position in range(len(tokens) - 1):
        inputs[position // LENGTH, position % LENGTH] = tokens[position]
        targets[position // LENGTH, position % LENGTH] = tokens[position + 1]
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def main():
    folder = sys.argv[1]
    torch.manual_seed(3)
    model = Causal()
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "tokens.bin")
        np.array([(3 * i * i + i // 7) % VOCABULARY for i in range(COUNT)], np.uint16).tofile(path)
        inputs, targets = sequences(path)
    batch = torch.export.Dim("batch", min=2, max=64)
    save_program(torch.export.export(model, (inputs[:4],), dynamic_shapes=({0: batch},)), f"{folder}/causal.pt2")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0)
    per_epoch = -(-len(inputs) // BATCH)
    with open(f"{folder}/causal_losses.txt", "w") as out:
        for step in range(STEPS):
            epoch, index = divmod(step, per_epoch)
            rows = permutation(len(inputs), SEED, epoch + 1)[index * BATCH:(index + 1) * BATCH]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs[rows]).flatten(0, 1), targets[rows].flatten())
            loss.backward()
            optimizer.step()
            out.write(f"{loss.item():.9g}\n")


if __name__ == "__main__":
    main()
