"""Trains exported models that take positions, masks or labels in Python on the sequences of a token file, for
tests/tools/train/labels_test.cpp.

Usage: python3 make_labels.py FOLDER. Reads the archives of make_own_loss.py and make_packed.py in FOLDER and writes models that compute
their own loss: labeled.pt2 (input_ids, attention_mask as bool [batch, 1, length, length], position_ids, labels; each position predicts
the next label) and targets.pt2 (idx and targets, which are compared at the same position), shared.pt2, whose tokens are its labels, and
labels.txt: run, step, loss. The tokens come from formulas that the test repeats; the order of the sequences is that of docs/training.md.
"""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from make_archives import save_program
from make_packed import COUNT, LENGTH, SEPARATOR, TOKENS, VOCABULARY, WIDTH, Packed, inputs_of
from shuffled_order import permutation

BATCH, STEPS, SEED, IGNORED = 8, 10, 5, -100
OTHER = [(3 * i * i + i // 7) % 17 for i in range(200)]  # of own_next, with sequences of 6


class Labeled(Packed):
    def forward(self, input_ids, attention_mask, position_ids, labels):
        logits = self.run(self.token(input_ids) + self.position(position_ids), attention_mask)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        return {"logits": logits, "loss": loss}


class Targets(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(8)
        self.token, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, idx, targets):
        logits = self.head(self.token(idx).cumsum(1))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


class Shared(Targets):
    """The tokens are the labels, too."""

    def forward(self, tokens):
        logits = self.head(self.token(tokens).cumsum(1))
        return {"loss": F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())}


def rows_of(tokens, length, end):
    """The tokens before `end` in rows, with -1 for padding."""
    rows = torch.full((-(-(len(tokens) - 1) // length), length), -1)
    rows.view(-1)[:end] = torch.tensor(tokens[:end])[:rows.numel()]
    return rows


def shifted(tokens, length):
    """Inputs, and as targets the next token of each."""
    inputs, targets = rows_of(tokens, length, len(tokens) - 1), rows_of(tokens[1:] + [0], length, len(tokens) - 1)
    return inputs.clamp(min=0), targets.masked_fill(targets < 0, IGNORED), (inputs >= 0).long()


def unshifted(tokens, length):
    """As in Hugging Face's scripts: the labels are the inputs."""
    rows = rows_of(tokens, length, len(tokens))
    return rows.clamp(min=0), rows.masked_fill(rows < 0, IGNORED), (rows >= 0).long()


def packed(tokens):
    """The positions and the mask of documents that do not see each other."""
    mask = torch.zeros(len(tokens), 1, LENGTH, LENGTH, dtype=torch.bool)
    positions = torch.zeros(len(tokens), LENGTH, dtype=torch.long)
    for r, row in enumerate(tokens.tolist()):
        first = 0
        for i, token in enumerate(row):
            positions[r, i] = i - first
            mask[r, 0, i, first:i + 1] = True
            if token == SEPARATOR:
                first = i + 1
    return mask, positions


def runs(folder):
    """Name, module, and the loss of the module for some rows."""
    def load(name):
        return torch.export.load(f"{folder}/{name}.pt2").module()

    def language(module, arguments, targets, fixed=None):
        def loss(rows):
            size = fixed or len(rows)  # of the rows that the module takes, filled with copies
            filled = rows + [rows[-1]] * (-len(rows) % size)
            parts = [filled[i:i + size] for i in range(0, len(filled), size)]
            logits = torch.cat([module(*(a[part] for a in arguments)) for part in parts])[:len(rows)]
            return F.cross_entropy(logits.flatten(0, 1), targets[rows].flatten())
        return loss

    inputs, targets, padding = shifted(TOKENS, LENGTH)
    for name, positions in (("packed", True), ("packed_additive", False)):
        module, (_, *rest) = load(name), inputs_of(inputs, positions)
        yield name, module, language(module, (inputs, *rest), targets)
    module = load("padding_mask")
    yield "padding_mask", module, language(module, (inputs, padding), targets, fixed=4)
    pair = load("targets")
    yield "targets", pair, lambda rows: pair(inputs[rows], targets[rows])[1]
    other, other_labels, _ = unshifted(OTHER, 6)
    own = load("own_next")
    yield "own_next", own, lambda rows: own(input_ids=other[rows], labels=other_labels[rows], use_cache=False)["loss"]
    tokens, labels, _ = unshifted(TOKENS, LENGTH)
    _, causal, places = inputs_of(tokens, True)
    mask, positions = packed(tokens)
    inside = labels.clone()
    inside[:, 1:][tokens[:, :-1] == SEPARATOR] = IGNORED
    for name, arguments in (("labeled", (causal, places, labels)), ("labeled_documents", (mask, positions, labels)),
                            ("labeled_inside", (mask, positions, inside))):
        module = load("labeled")
        yield name, module, lambda rows, m=module, a=arguments: m(tokens[rows], *(x[rows] for x in a))["loss"]


def main():
    folder = sys.argv[1]
    batch = torch.export.Dim("batch", min=2, max=64)
    tokens, labels, _ = unshifted(TOKENS, LENGTH)
    _, mask, positions = inputs_of(tokens, True)
    example = (tokens[:4], mask[:4], positions[:4], labels[:4])
    torch.manual_seed(3)
    save_program(torch.export.export(Labeled(True), example, dynamic_shapes=({0: batch},) * 4), f"{folder}/labeled.pt2")
    save_program(torch.export.export(Targets(), (tokens[:4], labels[:4]), dynamic_shapes=({0: batch},) * 2), f"{folder}/targets.pt2")
    save_program(torch.export.export(Shared(), (tokens[:4],), dynamic_shapes=({0: batch},)), f"{folder}/shared.pt2")
    with open(f"{folder}/labels.txt", "w") as out:
        for name, module, loss_of in runs(folder):
            optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0)
            count = -(-((200 if name == "own_next" else COUNT) - 1) // (6 if name == "own_next" else LENGTH))
            per_epoch = -(-count // BATCH)
            for step in range(STEPS):
                epoch, index = divmod(step, per_epoch)
                rows = permutation(count, SEED, epoch + 1)[index * BATCH:(index + 1) * BATCH]
                optimizer.zero_grad()
                loss = loss_of(rows)
                loss.backward()
                optimizer.step()
                out.write(f"{name} {step + 1} {loss.item():.9g}\n")


if __name__ == "__main__":
    main()
