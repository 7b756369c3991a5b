"""Exports language models on bytes that take positions and masks, for generate_test.cpp.

Usage: python3 generated_text.py FOLDER. Writes models with all layouts of masks to FOLDER, and prints for each one what the exported
module continues greedily: FILE:TOKENS|BYTES, the bytes in hexadecimal digits. Writes also layout.pt2 and two.pt2, whose inputs `penstock
generate` cannot supply. Exit code 77: this Python lacks torch.
"""

import os
import sys

try:
    import torch
except ImportError:
    sys.exit(77)

PROMPT, COUNT, LENGTH = list(b"To "), 12, 8


class Model(torch.nn.Module):
    """Only the mask makes its attention causal; a mask of padding leaves out tokens in addition to later ones."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        super().__init__()
        self.token, self.position = torch.nn.Embedding(256, 16), torch.nn.Embedding(40, 16)
        self.query, self.key, self.head = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16), torch.nn.Linear(16, 256)

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        x = 3 * self.token(input_ids)
        if position_ids is not None:
            x = x + 3 * self.position(position_ids)
        for _ in range(2):  # in the second round, earlier tokens have seen what their mask lets them see
            x = 3 * torch.tanh(self.attend(x, attention_mask))
        return self.head(x)

    def attend(self, x, attention_mask):
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        if attention_mask.dim() == 2:
            causal = torch.ones(scores.shape[1:], dtype=torch.bool).tril()
            scores = scores.masked_fill(~(causal & (attention_mask != 0).unsqueeze(1)), -1e9)
        elif attention_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attention_mask.squeeze(1), -1e9)
        else:
            scores = scores + (attention_mask if attention_mask.dim() == 3 else attention_mask.squeeze(1))
        return x + scores.softmax(-1) @ x


class Positions(Model):
    def forward(self, input_ids, position_ids):
        return self.head(self.token(input_ids) + self.position(position_ids))


class Two(Model):
    def forward(self, input_ids, token_types):
        return self.head(self.token(input_ids + token_types))


def inputs_of(name, length, rows=1):
    causal = torch.ones(rows, length, length, dtype=torch.bool).tril()
    positions = torch.arange(length).repeat(rows, 1)
    additive = torch.zeros(causal.shape).masked_fill(~causal, -torch.inf)
    return {
        "bool": {"attention_mask": causal.unsqueeze(1), "position_ids": positions},
        "additive": {"attention_mask": additive, "position_ids": positions},
        "padding": {"attention_mask": torch.ones(rows, length, dtype=torch.long), "position_ids": positions.int()},
        "fixed": {"attention_mask": additive.unsqueeze(1), "position_ids": positions},
    }[name]


def export(name, seed):
    """Fixed lengths have two rows."""
    fixed, time = name == "fixed", torch.export.Dim("time", min=2, max=32)
    rows = 2 if fixed else 1
    kwargs = inputs_of(name, LENGTH, rows)
    dims = {key: {dim: time for dim in range(1, tensor.dim()) if tensor.shape[dim] == LENGTH} for key, tensor in kwargs.items()}
    dims["input_ids"] = {1: time}
    tokens = torch.zeros(rows, LENGTH, dtype=torch.long)
    return torch.export.export(Model(seed), (tokens,), kwargs, dynamic_shapes=None if fixed else dims)


def continued(module, name):
    tokens = list(PROMPT)
    for _ in range(COUNT):
        window = tokens
        if name == "fixed":  # padded at the end, which is later than the token of interest
            window = (tokens + [tokens[-1]] * LENGTH)[:LENGTH] if len(tokens) < LENGTH else tokens[-LENGTH:]
        rows = 2 if name == "fixed" else 1
        with torch.no_grad():
            logits = module(torch.tensor([window] * rows), **inputs_of(name, len(window), rows))
        tokens.append(int(logits[0, min(len(tokens), len(window)) - 1].argmax()))
    return tokens


def main():
    torch.set_num_threads(1)
    folder = sys.argv[1]
    for seed, name in enumerate(("bool", "additive", "padding", "fixed")):
        program = export(name, seed)
        torch.export.save(program, os.path.join(folder, name + ".pt2"))
        tokens = continued(program.module(), name)
        assert len(set(tokens)) > 4, tokens
        print(f"{name}.pt2:{' '.join(map(str, tokens))}|{bytes(tokens).hex()}")
    tokens = torch.zeros(1, LENGTH, dtype=torch.long)
    torch.export.save(torch.export.export(Positions(1), (tokens, torch.zeros(LENGTH, dtype=torch.long))), os.path.join(folder, "layout.pt2"))
    torch.export.save(torch.export.export(Two(1), (tokens, tokens)), os.path.join(folder, "two.pt2"))


main()
