"""Exports a small transformer with separate query, key and value layers, with a tied head and a dynamic batch size.

Usage: python3 make_archive.py FOLDER. Writes transformer.pt2, and transformer.safetensors with tokens and targets for `penstock train`.
"""
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train"))
from make_archives import save_file, save_program

VOCABULARY, WIDTH, HEADS, LENGTH = 17, 16, 4, 6


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.k = nn.Linear(WIDTH, WIDTH, bias=False)  # which softmax would take away, and AdamW make large

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (layer(x).view(batch, time, HEADS, width // HEADS).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, time, width))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = Attention(), FeedForward()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens):
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return {"logits": self.head(self.norm(x))}


def main():
    torch.manual_seed(0)
    folder, model = sys.argv[1], Transformer()
    with torch.no_grad():
        model.token.weight.mul_(0.3)
    tokens = torch.randint(0, VOCABULARY, (16, LENGTH))
    batch = torch.export.Dim("batch", min=1, max=64)
    save_program(torch.export.export(model, (tokens[:4],), dynamic_shapes=({0: batch},)), f"{folder}/transformer.pt2")
    save_file({"tokens": tokens, "target": (tokens * 3 + 1) % VOCABULARY}, f"{folder}/transformer.safetensors")


if __name__ == "__main__":
    main()
