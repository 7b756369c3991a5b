"""Exports small language models that compute their own loss from labels, some of which are ignored, and trains them in Python on shuffled
batches, for own_loss_test.cpp.

Usage: python3 make_own_loss.py FOLDER. Writes own_next.pt2 (each position predicts the next label, with the constant use_cache=False),
own_masked.pt2 (each position predicts its label), own_loss.safetensors with the data of both, and own_loss.txt: model, step, loss. Step 0 is
the loss of all rows before training. The order of the rows is that of docs/training.md.
"""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from make_archives import Layer, LENGTH, VOCABULARY, WIDTH, save_file, save_program
from shuffled_order import permutation

ROWS, BATCH, STEPS, SEED, IGNORED = 20, 8, 12, 3, -100


class Next(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def logits(self, input_ids):
        x = self.token(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

    def forward(self, input_ids, labels, use_cache=True):
        logits = self.logits(input_ids)
        following = F.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous()
        loss = F.cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=IGNORED)
        return {"logits": logits, "loss": loss} | ({"cache": logits} if use_cache else {})


class Masked(Next):
    """Divides by the number of valid labels itself: without any, the loss and all gradients are NaN."""

    def forward(self, input_ids, labels):
        valid = labels != IGNORED
        each = -self.logits(input_ids).log_softmax(-1).gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
        return {"loss": (each * valid).sum() / valid.sum()}


def data():
    torch.manual_seed(5)
    tokens = torch.randint(0, VOCABULARY, (ROWS, LENGTH))
    labels = (tokens * 5 + 2) % VOCABULARY
    for row in range(ROWS):
        labels[row, 1 + row % LENGTH:] = IGNORED  # rows of different lengths; with one label, none is next
        if row % 5 in (1, 3):
            labels[row] = IGNORED
    return {"input_ids": tokens, "labels": labels}


def train(model, tensors, arguments):
    yield model(**tensors, **arguments)["loss"].item()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0)
    per_epoch = -(-ROWS // BATCH)
    for step in range(STEPS):
        epoch, index = divmod(step, per_epoch)
        rows = permutation(ROWS, SEED, epoch + 1)[index * BATCH:(index + 1) * BATCH]
        optimizer.zero_grad()
        loss = model(**{name: tensor[rows] for name, tensor in tensors.items()}, **arguments)["loss"]
        assert loss.isfinite(), "choose data in which every batch has a label"
        loss.backward()
        optimizer.step()
        yield loss.item()


def main():
    folder, tensors = sys.argv[1], data()
    save_file(tensors, f"{folder}/own_loss.safetensors")
    batch = torch.export.Dim("batch", min=2, max=64)
    with open(f"{folder}/own_loss.txt", "w") as out:
        for name, model, arguments in (("own_next", Next(), {"use_cache": False}), ("own_masked", Masked(), {})):
            shapes = {key: {0: batch} for key in tensors} | {key: None for key in arguments}
            example = {key: tensor[:4] for key, tensor in tensors.items()}
            save_program(torch.export.export(model, (), example | arguments, dynamic_shapes=shapes), f"{folder}/{name}.pt2")
            for step, loss in enumerate(train(model, tensors, arguments)):
                out.write(f"{name} {step} {loss:.9g}\n")


if __name__ == "__main__":
    main()
