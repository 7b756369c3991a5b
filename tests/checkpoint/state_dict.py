"""The Python side of the conversion test: `make FILE` writes a model's state_dict, `check FILE` says whether a file is that state_dict.

The model has tied weights and buffers, and its values follow from a seed. Exit code 77: this Python lacks torch or safetensors.
"""

import sys

try:
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

    def forward(self, tokens):
        return self.head(self.body(self.token(tokens)))


def model():
    torch.manual_seed(12)
    made = Model()
    made(torch.arange(11))  # batch norm has seen something
    return made.eval()


def main():
    mode, path = sys.argv[1:]
    ours = model()
    expected = ours.state_dict()
    if mode == "make":
        # The format has no shared memory: each name gets its own elements.
        safetensors.torch.save_file({name: tensor.clone() for name, tensor in expected.items()}, path)
        return
    loaded = safetensors.torch.load_file(path)
    assert set(loaded) == set(expected), set(loaded) ^ set(expected)
    for name, tensor in expected.items():
        assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor), name
    other = Model().eval()
    other.load_state_dict(loaded, strict=True)
    assert torch.equal(other(torch.arange(11)), ours(torch.arange(11)))
    print("agrees")


main()
