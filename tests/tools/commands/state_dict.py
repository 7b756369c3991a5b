"""The Python side of the conversion test.

`make FILE MODEL.pt2 DATA` writes a model's state_dict, the exported model and data to train it on; `check FILE TRAINED` checks that
FILE is that state_dict, and TRAINED the state_dict after two steps of SGD. The model has tied weights, buffers that belong to its state
and one that does not, and an unused parameter; its values depend on a seed. Exit code 77: this Python lacks torch, numpy or safetensors.
"""

import sys

try:
    import numpy  # safetensors.torch needs it
    import safetensors.torch
    import torch
except ImportError:
    sys.exit(77)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.token = torch.nn.Embedding(11, 6)
        self.body = torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 6))
        self.head = torch.nn.Linear(6, 11, bias=False)
        self.head.weight = self.token.weight
        self.unused = torch.nn.Parameter(torch.arange(3.0))
        self.register_buffer("mask", torch.tensor([1.0, 0.5, 1.0, 1.0, 2.0, 1.0]), persistent=False)

    def forward(self, tokens):
        return self.head(self.body(self.token(tokens) * self.mask))


def model():
    torch.manual_seed(12)
    made = Model()
    made(torch.arange(11))  # batch norm has seen something
    return made.eval()


def data():
    tokens = torch.arange(16).remainder(11)
    return {"tokens": tokens, "target": (tokens * 3 + 1).remainder(11)}


def trained():
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.5)
    for step in range(2):
        rows = slice(step * 8, step * 8 + 8)
        loss = torch.nn.functional.cross_entropy(made(data()["tokens"][rows]), data()["target"][rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return made


def check(path, expected, exact):
    loaded = safetensors.torch.load_file(path)
    assert set(loaded) == set(expected), set(loaded) ^ set(expected)
    for name, tensor in expected.items():
        same = torch.equal(loaded[name], tensor) if exact else torch.allclose(loaded[name], tensor, 1e-5, 1e-6)
        assert loaded[name].dtype == tensor.dtype and same, name
    Model().load_state_dict(loaded, strict=True)


def main():
    mode, path, *more = sys.argv[1:]
    if mode == "make":
        # The format has no shared memory: each name gets its own elements.
        safetensors.torch.save_file({name: tensor.clone() for name, tensor in model().state_dict().items()}, path)
        batch = {"tokens": {0: torch.export.Dim("batch", min=1, max=64)}}
        torch.export.save(torch.export.export(model(), (torch.arange(4),), dynamic_shapes=batch), more[0])
        safetensors.torch.save_file(data(), more[1])
        return
    check(path, model().state_dict(), exact=True)
    check(more[0], trained().state_dict(), exact=False)
    print("agrees")


main()
