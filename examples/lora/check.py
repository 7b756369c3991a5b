"""Loads what fine_tune.sh made: the last step, in Python.

Usage: python3 check.py FOLDER. The merged model, trained.pt2, is an exported program like any other: it runs without Penstock and can be
exported again. The directory adapters/ has the format of PEFT: for the Python model from which model.pt2 was exported,
`PeftModel.from_pretrained(model, "adapters")` loads it. This script adds the adapters to the weights itself, to compare the two.
"""
import json
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


def logits_of(program, tokens):
    with torch.no_grad():
        return program.module()(input_ids=tokens)


def main():
    folder = sys.argv[1]
    data = load_file(f"{folder}/data.safetensors")
    base, trained = (torch.export.load(f"{folder}/{name}.pt2") for name in ("model", "trained"))
    with open(f"{folder}/adapters/adapter_config.json") as file:
        config = json.load(file)
    adapters = load_file(f"{folder}/adapters/adapter_model.safetensors")
    changed = {name for name, value in base.state_dict.items() if not torch.equal(value, trained.state_dict[name])}
    assert changed == {f"{module}.weight" for module in config["target_modules"]}, changed
    for module in config["target_modules"]:
        a, b = (adapters[f"base_model.model.{module}.lora_{factor}.weight"] for factor in "AB")
        merged = base.state_dict[f"{module}.weight"] + b @ a * (config["lora_alpha"] / config["r"])
        torch.testing.assert_close(trained.state_dict[f"{module}.weight"], merged)
    before, after = (F.cross_entropy(logits_of(program, data["input_ids"]).flatten(0, 1), data["target"].flatten()).item()
                     for program in (base, trained))
    count = sum(value.numel() for value in adapters.values())
    print(f"{count} parameters in {len(config['target_modules'])} adapters; loss {before:.3f} before, {after:.3f} after")
    assert after < 0.75 * before


if __name__ == "__main__":
    main()
