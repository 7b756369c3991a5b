"""Trains low-rank adapters of the archives in Python, for lora_test.cpp.

Usage: python3 make_lora.py FOLDER. Reads language.pt2 and its data from FOLDER. Writes lora.txt there: recipe, step, loss of a training
loop over full batches of 8 rows; and lora.safetensors: the adapters after the last step, as RECIPE/NAME.
"""
import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from make_archives import Language, save_file
from make_recipes import BATCH, STEPS, load_file

SEED, RANK, ALPHA = 7, 4, 6.0
LAYERS = ["layers.0.up", "layers.1.up", "layers.1.down", "layers.2.up", "layers.3.up"]


def name_seed(seed, name):
    """FNV-1a of the seed and the name, mixed: the generator of the initial values of a parameter."""
    mask, key = (1 << 64) - 1, 14695981039346656037
    for byte in seed.to_bytes(8, "little") + name.encode():
        key = ((key ^ byte) * 1099511628211) & mask
    key ^= key >> 33
    key = (key * 0xFF51AFD7ED558CCD) & mask
    return key ^ (key >> 33)


class Adapted(nn.Module):
    def __init__(self, layer, name):
        super().__init__()
        self.layer = layer
        generator = torch.Generator().manual_seed(name_seed(SEED, name + ".lora_A.weight"))
        bound = 1 / math.sqrt(layer.in_features)
        self.a = nn.Parameter(torch.empty(RANK, layer.in_features).uniform_(-bound, bound, generator=generator))
        self.b = nn.Parameter(torch.zeros(layer.out_features, RANK))

    def forward(self, x):
        return self.layer(x) + F.linear(F.linear(x, self.a), self.b) * (ALPHA / RANK)


RECIPES = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1),
}


def main():
    folder = sys.argv[1]
    torch.set_num_threads(1)
    data, adapters = load_file(f"{folder}/language.safetensors"), {}
    with open(f"{folder}/lora.txt", "w") as out:
        for recipe, make in RECIPES.items():
            model = Language()
            model.load_state_dict(torch.export.load(f"{folder}/language.pt2").state_dict)
            for parameter in model.parameters():
                parameter.requires_grad_(False)
            added = {name: Adapted(model.get_submodule(name), name) for name in LAYERS}
            for name, layer in added.items():
                setattr(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], layer)
            optimizer = make([p for layer in added.values() for p in (layer.a, layer.b)])
            for step in range(1, STEPS + 1):
                rows = torch.arange((step - 1) * BATCH, step * BATCH) % len(data["target"])
                batch = {key: tensor[rows] for key, tensor in data.items()}
                optimizer.zero_grad()
                logits = model(batch["tokens"], weight=batch["weight"])["logits"]
                loss = F.cross_entropy(logits.flatten(0, 1), batch["target"].flatten())
                loss.backward()
                optimizer.step()
                out.write(f"{recipe} {step} {loss.item():.9g}\n")
            for name, layer in added.items():
                adapters[f"{recipe}/{name}.lora_A.weight"] = layer.a.detach()
                adapters[f"{recipe}/{name}.lora_B.weight"] = layer.b.detach()
    save_file(adapters, f"{folder}/lora.safetensors")


if __name__ == "__main__":
    main()
