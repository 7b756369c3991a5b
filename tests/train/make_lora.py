"""Trains low-rank adapters of exported models in Python, for lora_test.cpp and lora_embedding_test.cpp.

Usage: python3 make_lora.py FOLDER. Reads language.pt2 and its data from FOLDER. Writes embeddings.pt2 there, a model for the same data
with embeddings that are not tied, and for each of these models lora.txt and lora_embeddings.txt: recipe, step, loss of a training loop
over full batches of 8 rows; and lora.safetensors and lora_embeddings.safetensors: the adapters after the last step, as RECIPE/NAME.
"""
import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from make_archives import LENGTH, VOCABULARY, WIDTH, Language, Layer, save_file, save_program
from make_recipes import BATCH, STEPS, load_file

SEED, RANK, ALPHA = 7, 4, 6.0
LAYERS = {"lora": ["layers.0.up", "layers.1.up", "layers.1.down", "layers.2.up", "layers.3.up"],
          "lora_embeddings": ["token", "position", "layers.1.up"]}


class Embeddings(nn.Module):
    """A table with a padding index that is read twice, and one that is read at constant positions."""

    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH, padding_idx=3), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens, *, weight):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1])) + 0.5 * self.token(tokens.flip(1))
        for layer in self.layers:
            x = layer(x) * weight.unsqueeze(1).unsqueeze(2)
        return {"logits": self.head(x)}


def name_seed(seed, name):
    """FNV-1a of the seed and the name, mixed: the generator of the initial values of a parameter."""
    mask, key = (1 << 64) - 1, 14695981039346656037
    for byte in seed.to_bytes(8, "little") + name.encode():
        key = ((key ^ byte) * 1099511628211) & mask
    key ^= key >> 33
    key = (key * 0xFF51AFD7ED558CCD) & mask
    return key ^ (key >> 33)


class AdaptedEmbedding(nn.Module):
    """The arithmetic and the initialization of PEFT: A is 0, B has the standard normal distribution."""

    def __init__(self, table, name):
        super().__init__()
        self.table = table
        generator = torch.Generator().manual_seed(name_seed(SEED, name + ".lora_embedding_B.weight"))
        self.a = nn.Parameter(torch.zeros(RANK, table.num_embeddings))
        self.b = nn.Parameter(torch.empty(table.embedding_dim, RANK).normal_(generator=generator))

    def forward(self, x):
        after_a = F.embedding(x, self.a.T, padding_idx=self.table.padding_idx)
        return self.table(x) + (after_a @ self.b.T) * (ALPHA / RANK)


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


def train(folder, files, archive, make_model, data):
    adapters = {}
    with open(f"{folder}/{files}.txt", "w") as out:
        for recipe, make in RECIPES.items():
            model = make_model()
            model.load_state_dict(torch.export.load(f"{folder}/{archive}.pt2").state_dict)
            for parameter in model.parameters():
                parameter.requires_grad_(False)
            added = {}
            for name in LAYERS[files]:
                layer = model.get_submodule(name)
                added[name] = (AdaptedEmbedding if isinstance(layer, nn.Embedding) else Adapted)(layer, name)
                setattr(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], added[name])
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
                kind = "lora_embedding" if isinstance(layer, AdaptedEmbedding) else "lora"
                adapters[f"{recipe}/{name}.{kind}_A.weight"] = layer.a.detach()
                adapters[f"{recipe}/{name}.{kind}_B.weight"] = layer.b.detach()
    save_file(adapters, f"{folder}/{files}.safetensors")


def main():
    folder = sys.argv[1]
    torch.set_num_threads(1)
    data = load_file(f"{folder}/language.safetensors")
    train(folder, "lora", "language", Language, data)
    torch.manual_seed(1)
    batch = {0: torch.export.Dim("batch", min=2, max=64)}
    program = torch.export.export(Embeddings(), (data["tokens"][:4],), {"weight": data["weight"][:4]},
                                  dynamic_shapes={"tokens": batch, "weight": batch})
    save_program(program, f"{folder}/embeddings.pt2")
    train(folder, "lora_embeddings", "embeddings", Embeddings, data)


if __name__ == "__main__":
    main()
