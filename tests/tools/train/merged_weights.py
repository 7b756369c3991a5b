"""Compares merged weights with base + scale * B A, for tables of embeddings transposed.

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
    changes = {}
    for name, a in factors.items():
        if name.endswith(".lora_A.weight"):
            layer = name.removesuffix(".lora_A.weight")
            changes[layer + ".weight"] = factors[layer + ".lora_B.weight"].double() @ a.double()
        if name.endswith(".lora_embedding_A"):
            layer = name.removesuffix(".lora_embedding_A")
            changes[layer + ".weight"] = (factors[layer + ".lora_embedding_B"].double() @ a.double()).T
    assert len(changes) > 1 and len(factors) == 2 * len(changes)
    for merged in (safetensors.torch.load_file(file), read_shards(shards)):
        assert set(merged) == set(expected), set(merged) ^ set(expected)
        for name, tensor in merged.items():
            value = expected[name]
            assert tensor.dtype == value.dtype, name
            if name not in changes:
                assert torch.equal(tensor, value), name
                continue
            torch.testing.assert_close(tensor.double(), value.double() + float(scale) * changes[name], rtol=1e-6, atol=1e-6)
            assert (tensor - value).abs().max() > 1e-3, name
    print("agrees")


main()
