"""Exports the small models of the import tests and writes inputs for them.

Usage: python3 make_archives.py FOLDER [NAME…]. For each model, NAME.pt2 and NAME.safetensors; the latter contains, for each run
`r0`, `r1`, …: `r0.in.LEAF` (inputs in order) and `r0.seed.PATH` (gradients of outputs). Python's results depend on the
processor, including dropout masks, so python_reference.py computes them on the machine that runs the tests.
"""
import collections
import copy
import dataclasses
import json
import struct
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import SplitPoint, pipe_split
from torch.distributed.pipelining._IR import annotate_split_points
from torch.utils import _pytree as pytree


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return x


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (t.view(batch, time, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(batch, time, width))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    def __init__(self, layers=2, width=8, vocabulary=13, length=5):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 2) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens):
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        for i, block in enumerate(self.blocks):
            if i > 0:
                pipe_split()
            x = block(x)
        return {"logits": self.head(self.norm(x)), "hidden": (x,)}


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.norm2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.drop, self.fc = nn.Dropout2d(0.2), nn.Linear(16, 3)

    def forward(self, x):
        x = F.max_pool2d(torch.relu_(self.norm1(self.conv1(x))), 2)
        x = x + self.drop(self.norm2(self.conv2(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 2).flatten(1))


Pair = collections.namedtuple("Pair", "first second")
pytree._register_namedtuple(Pair, serialized_type_name="penstock.Pair")


class Mixed(nn.Module):
    """Constants, modes, scalars for tensors, in-place writes, views, lists, keyword inputs, None and numbers."""

    def __init__(self):
        super().__init__()
        self.lin, self.out = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("mask", torch.tril(torch.ones(3, 3)), persistent=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.scale = torch.tensor([1.0, 2.0, 3.0, 4.0])
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x, flag, *, other, bias=None):
        self.count.add_(x.shape[0])
        h = self.lin(x) * self.scale + 1.5
        a, b = h.chunk(2, dim=-1)
        h = torch.cat([b * 2, a], dim=-1).clone()
        h[:, 0] = 0.25
        with torch.no_grad():
            z = h.mean() + x.shape[0]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            w = self.out(h)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            w = w + self.out(h)
        t = torch.full((4,), 0.5, device=x.device) * self.frozen
        h = h + w.float() + t + (other["u"] @ self.mask).sum(-1, keepdim=True)
        if bias is not None:
            h = h + bias
        if flag:
            h = h.masked_fill(h < 0, float("-inf")).exp()
        return Pair(h.view(-1, 2), {"z": z, "list": [a.abs(), None], "n": 3})


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(3, 4, num_layers=2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        y, (h, c) = self.lstm(x)
        return self.fc(y), h, c


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    hidden: torch.Tensor


torch.export.register_dataclass(Answer, serialized_type_name="penstock.Answer")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return x + F.scaled_dot_product_attention(q, k, v, dropout_p=0.3 if self.training else 0.0)


class Marked(nn.Module):
    """Marks of annotate_split_points, a module that is called three times, attention with dropout, a dataclass."""

    def __init__(self):
        super().__init__()
        self.first, self.block, self.last = nn.Linear(4, 8), Attention(), nn.Linear(8, 2)
        self.norm = nn.InstanceNorm1d(3, track_running_stats=True)

    def forward(self, x):
        x = self.norm(self.first(x))
        for _ in range(3):
            x = self.block(x)
        return Answer(self.last(x), x)


class Overlap(nn.Module):
    """Weights that are slices of one tensor, and the transposed view of one of them."""

    def __init__(self):
        super().__init__()
        rows = torch.randn(7, 4)
        self.low, self.high = nn.Parameter(rows[:5]), nn.Parameter(rows[3:])
        self.register_buffer("middle", rows[2:6])
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        turned = self.lin.weight.t()
        x = torch.tanh(F.linear(x, self.high) + x)
        x = x @ self.low.t()[:, :4] + x @ self.middle
        return torch.relu(x @ turned)


class Gate(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))


class Branches(nn.Module):
    """Control flow, which a flat graph cannot represent."""

    def __init__(self):
        super().__init__()
        self.lin, self.gate = nn.Linear(3, 3), Gate()

    def forward(self, x):
        return self.gate(self.lin(x))


class Encoder(nn.Module):
    """A TransformerEncoder, and attention whose weights are an output."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)

    def forward(self, x, mask):
        x = self.encoder(x, src_key_padding_mask=mask)
        return self.attention(x, x, x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x):
        a = torch.relu(self.down1(x))
        b = torch.relu(self.down2(F.max_pool2d(a, 2)))
        return self.last(torch.cat([self.up(b), a], 1))


class GRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.fc = nn.GRU(3, 4, num_layers=2, dropout=0.2, bidirectional=True), nn.Linear(8, 2)

    def forward(self, x, start):
        y, state = self.gru(x, start)
        return self.fc(y), state


def save_tensors(path, tensors):
    names = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.bfloat16: "BF16", torch.bool: "BOOL"}
    header, blobs, at = {}, [], 0
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        blob = bytes(tensor.flatten().view(torch.uint8).tolist()) if tensor.numel() else b""
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def paths_of(tree, here="output"):
    if dataclasses.is_dataclass(tree):
        tree = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
    if tree is None or not isinstance(tree, (tuple, list, dict)):
        return [(here, tree)]
    if hasattr(tree, "_fields"):
        tree = tree._asdict()
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return [leaf for key, item in items for leaf in paths_of(item, f"{here}.{key}")]


def save_program(program, path):
    """Removes machine-specific data."""
    for module in program.graph_module.modules():
        for node in getattr(module, "graph", torch.fx.Graph()).nodes:
            node.meta.pop("stack_trace", None)
            node.meta.pop("torch_fn", None)
    program.example_inputs = None
    torch.export.save(program, path)


def tensor_outputs(model, args, kwargs):
    return [(path, output) for path, output in paths_of(model(*args, **kwargs)) if isinstance(output, torch.Tensor)]


def make(folder, name, model, runs, dynamic=None, points=None):
    if points:
        annotate_split_points(model, points)
    program = torch.export.export(model, *runs[0], dynamic_shapes=dynamic)
    save_program(program, f"{folder}/{name}.pt2")
    tensors = {}
    for k, (args, kwargs) in enumerate(runs):
        for i, leaf in enumerate(pytree.tree_leaves((args, kwargs))):
            if isinstance(leaf, torch.Tensor):
                tensors[f"r{k}.in.{i}"] = leaf
        generator = torch.Generator().manual_seed(100 + k)
        torch.manual_seed(k)
        for path, output in tensor_outputs(copy.deepcopy(model), args, kwargs):
            if output.requires_grad:
                tensors[f"r{k}.seed.{path}"] = torch.randn(output.shape, generator=generator).to(output.dtype)
    save_tensors(f"{folder}/{name}.safetensors", tensors)
    return tensors


MODELS = {"mlp": MLP, "gpt": GPT, "convnet": ConvNet, "mixed": Mixed, "lstm": LSTM, "marked": Marked, "overlap": Overlap,
          "encoder": Encoder, "unet": UNet, "gru": GRU}


def first_five(folder):
    torch.manual_seed(1)
    batch = torch.export.Dim("batch", min=2, max=64)
    make(folder, "mlp", MLP(), [((torch.randn(n, 6),), {}) for n in (4, 7)], ({0: batch},))
    make(folder, "gpt", GPT(), [((torch.randint(0, 13, (4, 5)),), {})], ({0: batch},))
    make(folder, "convnet", ConvNet(), [((torch.randn(2, 2, 8, 8),), {}) for _ in range(2)])
    mixed = [((torch.randn(n, 4), True), {"other": {"u": torch.randn(n, 3)}}) for n in (3, 6)]
    make(folder, "mixed", Mixed(), mixed, {"x": {0: batch}, "flag": None, "other": {"u": {0: batch}}})
    make(folder, "lstm", LSTM(), [((torch.randn(2, 5, 3),), {}) for _ in range(2)])


def marked(folder):
    torch.manual_seed(2)
    points = {"block": SplitPoint.BEGINNING, "last": SplitPoint.BEGINNING}
    runs = [((torch.randn(n, 3, 4),), {}) for n in (2, 5)]
    make(folder, "marked", Marked(), runs, ({0: torch.export.Dim("batch", min=2, max=64)},), points)


def overlap(folder):
    torch.manual_seed(3)
    make(folder, "overlap", Overlap(), [((torch.randn(3, 4),), {}) for _ in range(2)])


def more(folder):
    torch.manual_seed(5)
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[1, 3:] = True
    make(folder, "encoder", Encoder(), [((torch.randn(2, 5, 8), mask), {})])
    make(folder, "unet", UNet(), [((torch.randn(2, 1, 8, 8),), {})])
    make(folder, "gru", GRU(), [((torch.randn(5, 2, 3), torch.randn(4, 2, 4)), {})])


def branches(folder):
    torch.manual_seed(4)
    save_program(torch.export.export(Branches(), (torch.randn(2, 3),)), f"{folder}/branches.pt2")


def main():
    torch.set_num_threads(1)
    everything = {"first_five": first_five, "marked": marked, "overlap": overlap, "more": more, "branches": branches}
    for name in sys.argv[2:] or everything:
        everything[name](sys.argv[1])


if __name__ == "__main__":
    main()
