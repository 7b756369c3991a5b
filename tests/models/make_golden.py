"""Losses, logits and gradients of a Python GPT with the architecture of penstock/models/gpt.h, for gpt_test.cpp.

Usage: python3 make_golden.py > golden.txt. Each line: variant, what, number. Parameters are filled by a formula of
their names, so that no weights need to be stored: element i of a parameter is 0.3 sin(i + sum of the name's bytes),
of norms 1 more.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY, CONTEXT, LAYERS, HEADS, WIDTH = 11, 8, 2, 2, 8


def rotate(x):
    half = x.shape[-1] // 2
    speed = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.outer(torch.arange(x.shape[2], dtype=torch.float64), speed)
    a, b = x[..., :half], x[..., half:]
    cos, sin = angle.cos().float(), angle.sin().float()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    def __init__(self, rotary, bias):
        super().__init__()
        self.rotary = rotary
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=bias) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        if self.rotary:
            q, k = rotate(q), rotate(k)
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, swiglu, bias):
        super().__init__()
        hidden = 24 if swiglu else 32
        self.gate = nn.Linear(WIDTH, hidden, bias=bias) if swiglu else None
        self.up, self.down = nn.Linear(WIDTH, hidden, bias=bias), nn.Linear(hidden, WIDTH, bias=bias)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x) if self.gate else F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, swiglu, rotary, bias):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = Attention(rotary, bias), FeedForward(swiglu, bias)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, swiglu, rotary, tied, bias):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = None if rotary else nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(swiglu, rotary, bias) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.token.weight

    def forward(self, tokens):
        x = self.token(tokens)
        if self.position:
            x = x + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    for variant in range(16):
        swiglu, rotary, tied, bias = (bool(variant & bit) for bit in (1, 2, 4, 8))
        model = GPT(swiglu, rotary, tied, bias)
        with torch.no_grad():
            for name, p in model.named_parameters():
                i = torch.arange(p.numel(), dtype=torch.float64) + sum(name.encode())
                p.copy_((0.3 * i.sin() + ("norm" in name)).reshape(p.shape))
        tokens = torch.arange(12).reshape(2, 6) * 7 % VOCABULARY
        targets = torch.arange(12).reshape(2, 6) * 5 % VOCABULARY
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        print(variant, "loss", f"{loss.item():.8g}")
        for i, value in enumerate(logits.flatten()[:: 13].tolist()):
            print(variant, f"logit.{13 * i}", f"{value:.8g}")
        for name, p in model.named_parameters():
            print(variant, name, f"{p.grad.norm().item():.8g}")


main()
