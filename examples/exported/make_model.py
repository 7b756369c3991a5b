"""Exports a small GPT that computes its own loss, trains it in Python for 20 steps and writes the losses.

Usage: python3 make_model.py FOLDER. Writes gpt.pt2 and losses.txt, which examples/train_exported.cpp reads.
"""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import pipe_split

VOCABULARY, LENGTH, WIDTH, HEADS, ROWS, MICROBATCHES, STEPS = 17, 8, 16, 2, 8, 4, 20


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, HEADS, width // HEADS).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(width, dim=2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.token.weight, std=0.2)

    def forward(self, tokens, targets):
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        x = self.blocks[0](x)
        pipe_split()
        x = self.blocks[1](x)
        logits = F.linear(self.norm(x), self.token.weight)  # the head is tied to the token embedding
        return {"loss": F.cross_entropy(logits.flatten(0, 1), targets.flatten()), "logits": logits}


def batch(step):
    """Rows that count up by 1, 2 or 3 from a start that depends on the row and the step."""
    rows = torch.arange(ROWS).unsqueeze(1)
    text = (rows * 5 + step * 7 + (rows % 3 + 1) * torch.arange(LENGTH + 1)) % VOCABULARY
    return text[:, :-1], text[:, 1:]


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    folder, model = sys.argv[1], GPT()
    tokens, targets = batch(1)
    rows = torch.export.Dim("rows", min=1, max=64)
    program = torch.export.export(model, (tokens[:2], targets[:2]), dynamic_shapes=({0: rows}, {0: rows}))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
        node.meta.pop("torch_fn", None)
    program.example_inputs = None
    torch.export.save(program, f"{folder}/gpt.pt2")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with open(f"{folder}/losses.txt", "w") as out:
        for step in range(1, STEPS + 1):
            total = 0.0
            for x, y in zip(*(t.tensor_split(MICROBATCHES) for t in batch(step))):
                loss = model(x, y)["loss"] / MICROBATCHES
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad()
            out.write(f"{total:.6f}\n")


main()
