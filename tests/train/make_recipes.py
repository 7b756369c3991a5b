"""Trains the archives in Python with many recipes, for recipe_test.cpp.

Usage: python3 make_recipes.py FOLDER. Reads language.pt2, mlp.pt2 and their data from FOLDER and writes recipes.txt there: recipe, step,
loss of a training loop over full batches of 8 rows. The data of a loss may have other targets.
"""
import json
import struct
import sys

import torch
import torch.nn.functional as F
from make_archives import Language, mlp

STEPS, BATCH, CLASSES = 12, 8, 17
DTYPES = {"F32": torch.float32, "I64": torch.int64}


def load_file(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header, blob = json.loads(file.read(length)), bytearray(file.read())
    header.pop("__metadata__", None)
    tensors = {}
    for name, info in header.items():
        begin, end = info["data_offsets"]
        tensors[name] = torch.frombuffer(blob[begin:end], dtype=DTYPES[info["dtype"]]).reshape(info["shape"])
    return tensors


def cross_entropy(**options):
    return lambda logits, target: F.cross_entropy(logits.flatten(0, 1), target.flatten(), **options)


def masked(target):
    """Labels of which every third one is ignored."""
    flat = target.flatten().clone()
    flat[::3] = -100
    return flat.view(target.shape)


def soft(target):
    return 0.7 * F.one_hot(target, CLASSES).float() + 0.3 / CLASSES


CLASS_WEIGHTS = 0.5 + torch.arange(CLASSES) / 8.0


def groups(parameters, frozen=lambda name: False, decays=lambda name, p: True, scale=lambda name: 1.0, lr=0.0, decay=0.0):
    for name, p in parameters:
        if frozen(name):
            p.requires_grad_(False)
        else:
            yield {"params": [p], "lr": lr * scale(name), "weight_decay": decay if decays(name, p) else 0.0}


def is_bias(name):
    return "bias" in name.split(".")[-1]


# Optimizers of the language model, with cross entropy.
OPTIMIZERS = {
    "sgd_nesterov": lambda p: torch.optim.SGD([q for _, q in p], lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.01),
    "sgd_dampening": lambda p: torch.optim.SGD([q for _, q in p], lr=0.1, momentum=0.8, dampening=0.3),
    "adam": lambda p: torch.optim.Adam([q for _, q in p], lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
    "adamw_amsgrad": lambda p: torch.optim.AdamW([q for _, q in p], lr=0.01, amsgrad=True, weight_decay=0.1),
    "adagrad": lambda p: torch.optim.Adagrad([q for _, q in p], lr=0.05, lr_decay=0.1, initial_accumulator_value=0.1, weight_decay=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop([q for _, q in p], lr=0.005, alpha=0.9, weight_decay=0.01),
    "rmsprop_centered": lambda p: torch.optim.RMSprop([q for _, q in p], lr=0.005, momentum=0.5, centered=True),
    "no_decay": lambda p: torch.optim.AdamW(groups(p, lr=0.01, decay=0.5, decays=lambda name, q: q.dim() > 1 and not is_bias(name))),
    "lr_scale": lambda p: torch.optim.AdamW(
        groups(p, lr=0.01, scale=lambda name: 0.1 if name == "layers.1.up.weight" else 3.0 if name.startswith("layers.1.") else 1.0)),
    "freeze": lambda p: torch.optim.AdamW(
        groups(p, lr=0.01, decay=0.1, frozen=lambda name: name.startswith(("token.", "head.", "layers.0.")) or ".norm." in name)),
}

# Losses, with SGD: model, loss, change of the target.
LOSSES = {
    "label_smoothing": ("language", cross_entropy(label_smoothing=0.2), masked),
    "class_weights": ("language", cross_entropy(weight=CLASS_WEIGHTS), masked),
    "weights_and_smoothing": ("language", cross_entropy(weight=CLASS_WEIGHTS, label_smoothing=0.2), masked),
    "soft_targets": ("language", lambda x, t: F.cross_entropy(x.flatten(0, 1), t.flatten(0, 1)), soft),
    "soft_weights_smoothing": (
        "language", lambda x, t: F.cross_entropy(x.flatten(0, 1), t.flatten(0, 1), weight=CLASS_WEIGHTS, label_smoothing=0.2), soft),
    "bce": ("language", F.binary_cross_entropy_with_logits, soft),
    "bce_weights": ("language", lambda x, t: F.binary_cross_entropy_with_logits(x, t, weight=CLASS_WEIGHTS), soft),
    "l1": ("mlp", F.l1_loss, lambda t: t),
}


def train(folder, name, model_name, loss_of, change, make, out):
    model = Language() if model_name == "language" else mlp()  # an exported module does not tie its parameters
    model.load_state_dict(torch.export.load(f"{folder}/{model_name}.pt2").state_dict)
    data = load_file(f"{folder}/{model_name}.safetensors")
    data["target"] = change(data["target"])
    optimizer = make(list(model.named_parameters()))
    for step in range(1, STEPS + 1):
        rows = torch.arange((step - 1) * BATCH, step * BATCH) % len(data["target"])
        batch = {key: tensor[rows] for key, tensor in data.items()}
        optimizer.zero_grad()
        if model_name == "language":
            output = model(batch["tokens"], weight=batch["weight"])["logits"]
        else:
            output = model(batch["input"])
        loss = loss_of(output, batch["target"])
        loss.backward()
        optimizer.step()
        out.write(f"{name} {step} {loss.item():.9g}\n")


def main():
    folder = sys.argv[1]
    with open(f"{folder}/recipes.txt", "w") as out:
        for name, make in OPTIMIZERS.items():
            train(folder, name, "language", cross_entropy(), lambda t: t, make, out)
        for name, (model, loss, change) in LOSSES.items():
            train(folder, name, model, loss, change, lambda p: torch.optim.SGD([q for _, q in p], lr=0.2), out)


if __name__ == "__main__":
    main()
