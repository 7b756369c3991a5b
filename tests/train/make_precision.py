"""Trains the language model in Python with the precisions of precision_test.cpp.

Usage: python3 make_precision.py FOLDER. Reads language.pt2 and its data from FOLDER. Writes language_bf16.pt2 and language_fp16.pt2 there,
the model in these dtypes, and precision.txt: recipe, step, loss, loss scale of a step, and whether the step was skipped.
"""
import sys

import torch
import torch.nn.functional as F
from make_archives import Language, save_program
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


class Copies:
    """A model that computes with copies of float32 master weights, in parts of the batch whose gradients are added in float32."""

    def __init__(self, folder, dtype, autocast=False, rounded=False):
        self.master, self.model = language(folder), language(folder)
        self.dtype, self.autocast = dtype, autocast
        for p, original in zip(self.model.parameters(), self.master.parameters(), strict=True):
            if rounded:  # the archive has only these values
                original.data = original.data.to(dtype).float()
            p.data = p.data.to(dtype)

    def backward(self, batch, parts, scale):
        with torch.no_grad():
            for p, original in zip(self.model.parameters(), self.master.parameters(), strict=True):
                p.copy_(original)
                original.grad = torch.zeros_like(original)
        total = 0.0
        for rows in torch.arange(BATCH).tensor_split(parts):
            part = {key: tensor[rows] for key, tensor in batch.items()}
            self.model.zero_grad()
            with torch.autocast("cpu", self.dtype, enabled=self.autocast):
                logits = self.model(part["tokens"], weight=part["weight"].to(self.dtype))["logits"]
            loss = cross_entropy(logits, part["target"]) * (len(rows) / BATCH)
            (loss * scale).backward()
            total += loss.item()
            for p, original in zip(self.model.parameters(), self.master.parameters(), strict=True):
                original.grad += p.grad
        return total


def master_weights(folder, name, make, parts, out, **options):
    copies = Copies(folder, torch.bfloat16, **options)
    optimizer = make(copies.master.parameters())
    for step, batch in batches(folder):
        loss = copies.backward(batch, parts, 1.0)
        optimizer.step()
        out.write(f"{name}_{parts} {step} {loss:.9g} 1 0\n")


def float16_model(folder, name, make, parts, out):
    copies = Copies(folder, torch.float16, rounded=True)
    optimizer = make(copies.master.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)
    scaler.scale(torch.zeros(()))  # creates the scale
    for step, batch in batches(folder):
        scale = scaler.get_scale()
        loss = copies.backward(batch, parts, scale)
        scaler.step(optimizer)
        scaler.update()
        out.write(f"{name}_{parts} {step} {loss:.9g} {scale:.9g} {int(scaler.get_scale() < scale)}\n")


def float32_model(folder, name, make, out):
    model = language(folder)
    for p in model.parameters():
        p.data = p.data.bfloat16().float()
    optimizer = make(model.parameters())
    for step, batch in batches(folder):
        optimizer.zero_grad()
        loss = cross_entropy(model(batch["tokens"], weight=batch["weight"])["logits"], batch["target"])
        loss.backward()
        optimizer.step()
        out.write(f"{name} {step} {loss.item():.9g} 1 0\n")


def export(folder, name, dtype):
    model = language(folder).to(dtype)
    data = load_file(f"{folder}/language.safetensors")
    batch = torch.export.Dim("batch", min=2, max=64)
    save_program(torch.export.export(model, (data["tokens"][:4],), {"weight": data["weight"][:4].to(dtype)},
                                     dynamic_shapes={"tokens": {0: batch}, "weight": {0: batch}}), f"{folder}/{name}.pt2")


def main():
    folder = sys.argv[1]
    export(folder, "language_bf16", torch.bfloat16)
    export(folder, "language_fp16", torch.float16)
    with open(f"{folder}/precision.txt", "w") as out:
        for name, recipe in AUTOCAST.items():
            autocast(folder, name, *recipe, out)
        for make in (sgd, adamw):
            for parts in range(1, 5):
                master_weights(folder, f"master_{make.__name__}", make, parts, out, autocast=True)
                master_weights(folder, f"copies_{make.__name__}", make, parts, out)
                master_weights(folder, f"archive_{make.__name__}", make, parts, out, rounded=True)
                float16_model(folder, f"float16_{make.__name__}", make, parts, out)
            float32_model(folder, f"float32_{make.__name__}", make, out)


if __name__ == "__main__":
    main()
