"""Writes the safetensors files of the tests with Python's package: make_files.py [DIRECTORY].

With --check FILES it prints what Python reads from files written by Penstock: per file one line per tensor with dtype, shape and
the SHA-256 of its bytes, then the metadata.
"""

import hashlib
import os
import sys

import safetensors
import safetensors.torch
import torch

DTYPES = (
    "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool uint16 uint32 uint64 "
    "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu complex64"
).split()


def counted(dtype, shape):
    """A tensor whose bytes are 0, 1, 2, … (bools: 0, 1, 0, …), so that the C++ tests can predict them."""
    dtype = getattr(torch, dtype)
    count = 1
    for size in shape:
        count *= size
    raw = torch.arange(count * dtype.itemsize).remainder(2 if dtype == torch.bool else 251).to(torch.uint8)
    return raw.view(dtype).reshape(shape)


def files():
    yield "all_dtypes.safetensors", {f"a.{d}": counted(d, (2, 3)) for d in DTYPES}, {"format": 'pt, é "quoted"\n'}
    yield "shapes.safetensors", {
        "scalar": counted("float32", ()),
        "empty": counted("float32", (0, 3)),
        "deep": counted("int16", (1, 2, 1, 3, 1)),
        "byte": counted("uint8", (7,)),
        "odd name /\\ \t": counted("bool", (5,)),
    }, None
    yield "none.safetensors", {}, None


def check(path):
    with safetensors.safe_open(path, "pt") as file:
        for name in sorted(file.keys()):
            tensor = file.get_tensor(name)
            raw = bytes(tensor.contiguous().flatten().view(torch.uint8).tolist()) if tensor.numel() else b""
            print(name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), hashlib.sha256(raw).hexdigest())
        print(sorted((file.metadata() or {}).items()))


def main():
    if sys.argv[1:2] == ["--check"]:
        for path in sys.argv[2:]:
            check(path)
        return
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "files")
    os.makedirs(folder, exist_ok=True)
    for name, tensors, metadata in files():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(safetensors.torch.save(tensors, metadata))


main()
