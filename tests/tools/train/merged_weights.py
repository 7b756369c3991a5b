"""Compares merged weights with base + scale * B A.

Usage: python3 merged_weights.py BASE ADAPTERS SCALE FILE SHARDS. BASE is an exported model or a safetensors file, ADAPTERS a safetensors
file with the names of PEFT. FILE and SHARDS, a directory in the format of Hugging Face, contain the merged weights. Exit code 77: this
Python lacks torch, numpy or safetensors.
"""

import json
import os
import sys

try:
    import numpy  # safetensors.torch needs it
    import safetensors.torch
    import torch
except ImportError:
    sys.exit(77)


def read_shards(folder):
    with open(os.path.join(folder, "model.safetensors.index.json")) as file:
        index = json.load(file)["weight_map"]
    files = sorted(set(index.values()))
    assert len(files) > 1, files
    read = {}
    for name in files:
        read |= safetensors.torch.load_file(os.path.join(folder, name))
    assert set(read) == set(index)
    return read


def main():
    base, adapters, scale, file, shards = sys.argv[1:]
    expected = torch.export.load(base).state_dict if base.endswith(".pt2") else safetensors.torch.load_file(base)
    adapters = safetensors.torch.load_file(adapters)
    factors = {name.removeprefix("base_model.model."): tensor for name, tensor in adapters.items()}
    layers = {name.removesuffix(".lora_A.weight") for name in factors if name.endswith(".lora_A.weight")}
    assert len(layers) > 1 and len(factors) == 2 * len(layers)
    for merged in (safetensors.torch.load_file(file), read_shards(shards)):
        assert set(merged) == set(expected), set(merged) ^ set(expected)
        for name, tensor in merged.items():
            value, layer = expected[name], name.removesuffix(".weight")
            assert tensor.dtype == value.dtype, name
            if layer not in layers or layer == name:
                assert torch.equal(tensor, value), name
                continue
            change = float(scale) * (factors[layer + ".lora_B.weight"].double() @ factors[layer + ".lora_A.weight"].double())
            torch.testing.assert_close(tensor.double(), value.double() + change, rtol=1e-6, atol=1e-6)
            assert (tensor - value).abs().max() > 1e-3, name
    print("agrees")


main()
