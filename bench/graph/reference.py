"""Measures the reference: replay of 1,000 small adds by an exported GraphModule and by fx.Interpreter, and
torch.export + pipeline() of the GPT-2 architecture. Measures thread CPU time; prints JSON."""
import json
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import SplitPoint, pipeline

torch.set_num_threads(1)


class Adds(nn.Module):
    def forward(self, x, y):
        for _ in range(1000):
            x = x + y
        return x


def per_op(run, rounds):
    """Microseconds per add: of the forward pass, and including freeing its result (with gradients, the autograd graph)."""
    times, freed = [], []
    for _ in range(rounds + 3):
        start = time.thread_time()
        out = run()
        times.append(time.thread_time() - start)
        del out
        freed.append(time.thread_time() - start)
    return 1e3 * statistics.median(times[3:]), 1e3 * statistics.median(freed[3:])


def replay(grad):
    x, y = torch.rand(8), torch.rand(8, requires_grad=grad)
    module = torch.export.export(Adds(), (x, y)).module()
    interpreter = torch.fx.Interpreter(module)
    eager = Adds()
    figures = {}
    for name, run, rounds in (("eager", eager, 30), ("module", module, 30), ("interpreter", interpreter.run, 10)):
        figures[f"{name}_us"], figures[f"{name}_and_free_us"] = per_op(lambda: run(x, y), rounds)
    return figures


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
                   for t in self.qkv(self.norm1(x)).split(width, dim=2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(50257, 768), nn.Embedding(1024, 768)
        self.blocks = nn.ModuleList(Block(768, 12) for _ in range(12))
        self.norm, self.head = nn.LayerNorm(768), nn.Linear(768, 50257, bias=False)

    def forward(self, tokens):
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


result = {"no_grad": replay(False), "grad": replay(True)}
model, tokens = GPT(), torch.randint(0, 50257, (1, 8))
spec = {f"blocks.{i}": SplitPoint.BEGINNING for i in (3, 6, 9)}
start = time.thread_time()
pipeline(model, (tokens,), split_spec=spec)
result["gpt2_pipeline_ms"] = 1e3 * (time.thread_time() - start)
print(json.dumps(result))
