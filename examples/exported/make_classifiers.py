"""Exports two classifiers, a small ResNet and a small BERT, with data to fine-tune them.

Usage: ./dev python make_classifiers.py FOLDER. Writes resnet.pt2 and bert.pt2, and resnet.safetensors and bert.safetensors with a tensor for each
argument of the model's forward and the classes `target`. examples/fine_tune.cpp trains them. Needs torch, numpy and safetensors.
"""
import sys
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS, LENGTH, VOCABULARY, CLASSES = 64, 6, 19, 4


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.down = None if inputs == outputs else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + (x if self.down is None else self.down(x)))


class ResNet(nn.Module):
    """Classifies images."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.layers = nn.Sequential(Residual(8, 8, 1), Residual(8, 16, 2))
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.fc(F.adaptive_avg_pool2d(self.layers(self.stem(x)), 1).flatten(1))


class Layer(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm1, self.norm2, self.dropout = nn.LayerNorm(width), nn.LayerNorm(width), nn.Dropout(dropout)

    def forward(self, x, mask):
        batch, time, width = x.shape
        q, k, v = (f(x).view(batch, time, self.heads, width // self.heads).transpose(1, 2) for f in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :], dropout_p=self.dropout.p if self.training else 0.0)
        x = self.norm1(x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, time, width))))
        return self.norm2(x + self.dropout(self.down(F.gelu(self.up(x)))))


class Bert(nn.Module):
    """An encoder that classifies each token, with a head that is tied to the embedding or not."""

    def __init__(self, tied=False, dropout=0.0, width=16):
        super().__init__()
        self.token, self.position, self.norm = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width), nn.LayerNorm(width)
        self.layers = nn.ModuleList(Layer(width, 4, dropout) for _ in range(2))
        self.pooler, self.head = nn.Linear(width, width), nn.Linear(width, VOCABULARY)
        self.register_buffer("positions", torch.arange(LENGTH), persistent=False)
        if tied:
            self.head.weight = self.token.weight

    def forward(self, tokens, mask):
        x = self.norm(self.token(tokens) + self.position(self.positions))
        for layer in self.layers:
            x = layer(x, mask)
        return {"logits": self.head(x), "pooled": torch.tanh(self.pooler(x[:, 0]))}


def export(model, args):
    """Exports in training mode, for batches of any size."""
    batch = torch.export.Dim("batch", min=2, max=1024)
    return torch.export.export(model.train(), args, dynamic_shapes=tuple({0: batch} for _ in args))


def image_data():
    """Images of a pattern per class, with noise."""
    target = torch.arange(ROWS) % CLASSES
    return {"x": torch.randn(CLASSES, 3, 12, 12)[target] + torch.randn(ROWS, 3, 12, 12), "target": target}


def text_data():
    """Tokens of texts of different lengths; the class of a token follows from the token."""
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH))
    mask = torch.arange(LENGTH) < torch.randint(1, LENGTH + 1, (ROWS, 1))
    return {"tokens": tokens, "mask": mask, "target": (tokens * 3 + 1) % VOCABULARY}


def main():
    from safetensors.torch import save_file

    torch.manual_seed(1)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, model, data in (("resnet", ResNet(), image_data()), ("bert", Bert(dropout=0.1), text_data())):
        args = tuple(tensor[:8] for key, tensor in data.items() if key != "target")
        torch.export.save(export(model, args), f"{folder}/{name}.pt2")
        save_file(data, f"{folder}/{name}.safetensors")


if __name__ == "__main__":
    main()
