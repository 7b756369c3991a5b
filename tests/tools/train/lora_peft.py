"""Trains adapters of embeddings and linear layers with Penstock and with PEFT, from the same initial values, and compares them.

Usage: python3 lora_peft.py PENSTOCK TESTS FOLDER. TESTS is the folder of make_lora.py and of the exported model. Everything goes through
files: the initial adapters, of a run that changes nothing, are loaded by PEFT.
"""
import json
import subprocess
import sys

import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

STEPS, BATCH, MODULES = 12, 8, ["token", "position", "layers.1.up", "layers.2.down"]


def base_model(archive):
    from make_lora import Embeddings

    model = Embeddings()
    model.load_state_dict(torch.export.load(archive).state_dict)
    return model


def check_initial_values(model, adapters):
    """Those of PEFT: which factor is 0, and the spread of the other one."""
    config = LoraConfig(r=4, lora_alpha=6, target_modules=MODULES)
    for name, theirs in get_peft_model(model, config).named_parameters():
        if not theirs.requires_grad:
            continue
        ours = adapters[name.replace(".default", "")]
        assert ours.shape == theirs.shape, name
        assert bool(ours.any()) == bool(theirs.any()), name
        if "lora_embedding_B" in name:
            assert 0.7 < ours.std() < 1.3 and 0.7 < theirs.std() < 1.3, (name, ours.std(), theirs.std())


def train_with_peft(model, data):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.5)
    losses = []
    for step in range(STEPS):
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % len(data["target"])
        optimizer.zero_grad()
        logits = model(data["tokens"][rows], weight=data["weight"][rows])["logits"]
        loss = F.cross_entropy(logits.flatten(0, 1), data["target"][rows].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    penstock, tests, folder = sys.argv[1:]
    sys.path.insert(0, tests)
    archive, file = f"{tests}/archives/embeddings.pt2", f"{tests}/archives/language.safetensors"
    data = load_file(file)

    def run(*words):
        subprocess.run([penstock, *words], check=True, stdout=subprocess.DEVNULL)

    def train(name, *words):
        run("train", archive, "--data", file, "--no-shuffle", "--batch", str(BATCH), "--optimizer", "sgd", "--lora", ",".join(MODULES),
            "--lora-rank", "4", "--lora-alpha", "6", "--checkpoint", f"{folder}/{name}", *words)
        run("checkpoint", "convert", f"{folder}/{name}", f"{folder}/{name}_adapters")
        return load_file(f"{folder}/{name}_adapters/adapter_model.safetensors")

    first = train("start", "--lr", "0", "--steps", "1", "--ranks", "1")
    last = train("run", "--lr", "0.05", "--momentum", "0.5", "--steps", str(STEPS), "--pp", "2", "--tp", "2", "--microbatches", "2",
                 "--tp-plan", "token=rowwise,position=colwise,layers.*.up=colwise,layers.*.down=rowwise",
                 "--log-json", f"{folder}/log.jsonl")
    check_initial_values(base_model(archive), first)

    # The same training by PEFT.
    model = PeftModel.from_pretrained(base_model(archive), f"{folder}/start_adapters", is_trainable=True)
    losses = train_with_peft(model, data)
    with open(f"{folder}/log.jsonl") as log:
        logged = [json.loads(line)["loss"] for line in log]
    assert len(logged) == STEPS and all(abs(a - b) < 1e-4 * b for a, b in zip(logged, losses)), (logged, losses)
    trained = {name.replace(".default", ""): p.detach() for name, p in model.named_parameters() if p.requires_grad}
    assert set(trained) == set(last) and len(last) == 2 * len(MODULES), set(trained) ^ set(last)
    for name, value in trained.items():
        torch.testing.assert_close(last[name], value, rtol=1e-3, atol=1e-4)
        assert (value - first[name]).abs().max() > 1e-3, name

    # PEFT merges like the commands do.
    run("checkpoint", "convert", f"{folder}/run", f"{folder}/merged.safetensors", "--merged", "--model", archive)
    run("checkpoint", "convert", f"{folder}/run", f"{folder}/merged.pt2", "--model", archive)
    model = PeftModel.from_pretrained(base_model(archive), f"{folder}/run_adapters").eval()
    exported = torch.export.load(f"{folder}/merged.pt2").module()
    with torch.no_grad():
        outputs = model(data["tokens"], weight=data["weight"])["logits"]
        torch.testing.assert_close(exported(data["tokens"], weight=data["weight"])["logits"], outputs, rtol=1e-4, atol=1e-4)
    merged = load_file(f"{folder}/merged.safetensors")
    for name, value in model.merge_and_unload().state_dict().items():
        torch.testing.assert_close(merged[name], value, rtol=1e-5, atol=1e-5)
    print(f"PEFT trains and merges the same adapters; losses {losses[0]:.4f} to {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
