"""Exports small language models that can tell packed documents apart, and trains them in Python on one document after the other, for
tests/tools/train/documents_test.cpp.

Usage: python3 make_packed.py FOLDER. Writes packed.pt2 (position_ids, and attention_mask as bool [batch, 1, length, length]),
packed_additive.pt2 (attention_mask as float [batch, length, length]) and padding_mask.pt2 (attention_mask as int64 [batch, length]), and
NAME_losses.txt of the first two: the loss of each step. The tokens come from a formula that the test repeats; the order of the sequences is
that of docs/training.md. packed_additive is trained without targets that cross a boundary.
"""
import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from make_archives import save_program
from shuffled_order import permutation

VOCABULARY, WIDTH, SEPARATOR = 11, 8, 4
COUNT, LENGTH, BATCH, STEPS, SEED = 300, 9, 8, 10, 5
TOKENS = [(i * i + i // 5) % VOCABULARY for i in range(COUNT)]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x, mask):
        y = self.norm(x)
        scores = self.query(y) @ self.key(y).transpose(1, 2) / math.sqrt(WIDTH)
        scores = scores.masked_fill(~mask.squeeze(1), -1e9) if mask.dtype == torch.bool else scores + mask
        return x + scores.softmax(-1) @ self.value(y)


class Packed(nn.Module):
    def __init__(self, has_positions):
        super().__init__()
        torch.manual_seed(3)
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH) if has_positions else None
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def run(self, x, mask):
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


class WithPositions(Packed):
    def forward(self, input_ids, attention_mask, position_ids):
        return self.run(self.token(input_ids) + self.position(position_ids), attention_mask)


class WithMask(Packed):
    def forward(self, input_ids, attention_mask):
        return self.run(self.token(input_ids), attention_mask)


class WithPadding(Packed):
    def forward(self, input_ids, attention_mask):
        return self.run(self.token(input_ids) * attention_mask.unsqueeze(2), torch.zeros(1, LENGTH, LENGTH))


def inputs_of(tokens, has_positions):
    """The inputs for documents that are alone: each token attends to itself and to those before it."""
    rows, length = tokens.shape
    causal = torch.ones(rows, length, length, dtype=torch.bool).tril()
    if not has_positions:
        return tokens, torch.zeros(rows, length, length).masked_fill(~causal, -math.inf)
    return tokens, causal.unsqueeze(1), torch.arange(length).expand(rows, length).contiguous()


def documents_of(row):
    """The inputs and targets of the documents in a sequence."""
    begin, end = row * LENGTH, min((row + 1) * LENGTH, COUNT - 1)
    first = begin
    for i in range(begin, end):
        if TOKENS[i] == SEPARATOR or i + 1 == end:
            yield TOKENS[first:i + 1], TOKENS[first + 1:i + 2]
            first = i + 1


def loss_of(model, rows, has_positions, boundary_targets):
    total, count = 0, 0
    for row in rows:
        for tokens, targets in documents_of(row):
            targets = torch.tensor([t if boundary_targets or token != SEPARATOR else -100 for token, t in zip(tokens, targets)])
            logits = model(*inputs_of(torch.tensor([tokens]), has_positions))[0]
            total = total + F.cross_entropy(logits, targets, reduction="sum")
            count += int((targets != -100).sum())
    return total / count


def make(folder, name, model, has_positions, boundary_targets):
    batch = torch.export.Dim("batch", min=2, max=64)
    example = inputs_of(torch.zeros(4, LENGTH, dtype=torch.long), has_positions)
    save_program(torch.export.export(model, example, dynamic_shapes=tuple({0: batch} for _ in example)), f"{folder}/{name}.pt2")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0)
    rows = -(-(COUNT - 1) // LENGTH)
    per_epoch = -(-rows // BATCH)
    with open(f"{folder}/{name}_losses.txt", "w") as out:
        for step in range(STEPS):
            epoch, index = divmod(step, per_epoch)
            optimizer.zero_grad()
            loss = loss_of(model, permutation(rows, SEED, epoch + 1)[index * BATCH:(index + 1) * BATCH], has_positions, boundary_targets)
            loss.backward()
            optimizer.step()
            out.write(f"{loss.item():.9g}\n")


def main():
    folder = sys.argv[1]
    make(folder, "packed", WithPositions(True), True, True)
    make(folder, "packed_additive", WithMask(False), False, False)
    ones = torch.ones(4, LENGTH, dtype=torch.long)
    save_program(torch.export.export(WithPadding(False), (ones, ones)), f"{folder}/padding_mask.pt2")


if __name__ == "__main__":
    main()
