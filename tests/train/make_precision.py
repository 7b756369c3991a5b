"""Trains the language model in Python with the precisions of precision_test.cpp.

Usage: python3 make_precision.py FOLDER. Reads language.pt2 and its data from FOLDER and writes precision.txt there: recipe, step, loss,
loss scale of a step, and whether the step was skipped.
"""
import sys

import torch
import torch.nn.functional as F
from make_archives import Language
from make_recipes import BATCH, load_file

STEPS = 12


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.01)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


# Name: dtype of autocast, optimizer, initial loss scale, updates until it grows.
AUTOCAST = {
    "bf16_sgd": (torch.bfloat16, sgd, None, 0),
    "bf16_adamw": (torch.bfloat16, adamw, None, 0),
    "fp16_sgd": (torch.float16, sgd, 1024.0, 3),
    "fp16_adamw": (torch.float16, adamw, 1024.0, 5),
    "fp16_overflow": (torch.float16, sgd, 2.0**23, 2000),
}


def batches(folder):
    data = load_file(f"{folder}/language.safetensors")
    for step in range(1, STEPS + 1):
        rows = torch.arange((step - 1) * BATCH, step * BATCH) % len(data["target"])
        yield step, {key: tensor[rows] for key, tensor in data.items()}


def language(folder):
    model = Language()
    model.load_state_dict(torch.export.load(f"{folder}/language.pt2").state_dict)
    return model


def cross_entropy(logits, target):
    return F.cross_entropy(logits.float().flatten(0, 1), target.flatten())


def autocast(folder, name, dtype, make, initial, interval, out):
    model = language(folder)
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=initial or 1.0, growth_interval=interval or 1, enabled=initial is not None)
    for step, batch in batches(folder):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            logits = model(batch["tokens"], weight=batch["weight"])["logits"]
        loss = cross_entropy(logits, batch["target"])
        scale = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        out.write(f"{name} {step} {loss.item():.9g} {scale:.9g} {int(scaler.get_scale() < scale)}\n")


def master_weights(folder, name, make, parts, out):
    """Computes with bfloat16 copies of the parameters, in parts of the batch whose gradients are added in float32, and updates the
    float32 originals."""
    master, model = language(folder), language(folder)
    for p in model.parameters():
        p.data = p.data.bfloat16()
    optimizer = make(master.parameters())
    for step, batch in batches(folder):
        with torch.no_grad():
            for p, original in zip(model.parameters(), master.parameters(), strict=True):
                p.copy_(original)
                original.grad = torch.zeros_like(original)
        total = 0.0
        for rows in torch.arange(BATCH).tensor_split(parts):
            part = {key: tensor[rows] for key, tensor in batch.items()}
            model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(part["tokens"], weight=part["weight"].bfloat16())["logits"]
            loss = cross_entropy(logits, part["target"]) * (len(rows) / BATCH)
            loss.backward()
            total += loss.item()
            for p, original in zip(model.parameters(), master.parameters(), strict=True):
                original.grad += p.grad
        optimizer.step()
        out.write(f"{name}_{parts} {step} {total:.9g} 1 0\n")


def main():
    folder = sys.argv[1]
    with open(f"{folder}/precision.txt", "w") as out:
        for name, recipe in AUTOCAST.items():
            autocast(folder, name, *recipe, out)
        for parts in range(1, 5):
            master_weights(folder, "master_sgd", sgd, parts, out)
            master_weights(folder, "master_adamw", adamw, parts, out)


if __name__ == "__main__":
    main()
