# Measures the split backward pass of the reference on the same blocks, in the same way. Prints JSON.
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch.distributed.pipelining._backward import stage_backward, stage_backward_input, stage_backward_weight

torch.set_num_threads(1)


def make_blocks(d, count):
    def matrix(rows, columns):
        return torch.nn.Parameter(torch.randn(rows, columns) * 0.02)

    def vector(length):
        return torch.nn.Parameter(torch.ones(length))

    return [
        dict(norm1=vector(d), shift1=vector(d), qkv=matrix(3 * d, d), qkv_bias=vector(3 * d), out=matrix(d, d),
             out_bias=vector(d), norm2=vector(d), shift2=vector(d), up=matrix(4 * d, d), up_bias=vector(4 * d),
             down=matrix(d, 4 * d), down_bias=vector(d))
        for _ in range(count)
    ]


def forward(blocks, x, heads):
    rows, time_steps, d = x.shape
    for b in blocks:
        q, k, v = (
            F.linear(F.layer_norm(x, (d,), b["norm1"], b["shift1"]), b["qkv"], b["qkv_bias"])
            .view(rows, time_steps, 3, heads, d // heads).permute(2, 0, 3, 1, 4).unbind(0)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.linear(mixed.transpose(1, 2).reshape(rows, time_steps, d), b["out"], b["out_bias"])
        hidden = F.gelu(F.linear(F.layer_norm(x, (d,), b["norm2"], b["shift2"]), b["up"], b["up_bias"]))
        x = x + F.linear(hidden, b["down"], b["down_bias"])
    return x


def measure(d, rows, time_steps, heads, count, rounds):
    torch.manual_seed(1)
    blocks = make_blocks(d, count)
    params = [p for b in blocks for p in b.values()]
    whole, first, second, both = [], [], [], []
    for i in range(rounds + rounds // 5 + 1):
        grad = torch.randn(rows, time_steps, d)
        x = torch.randn(rows, time_steps, d, requires_grad=True)
        y = forward(blocks, x, heads)
        start = time.thread_time()
        stage_backward((y,), (grad,), (x,))
        whole.append(time.thread_time() - start)
        x = torch.randn(rows, time_steps, d, requires_grad=True)
        y = forward(blocks, x, heads)
        start = time.thread_time()
        _, groups = stage_backward_input([y], [grad], [x], iter(params))
        middle = time.thread_time()
        stage_backward_weight(iter(params), groups)
        end = time.thread_time()
        first.append(middle - start)
        second.append(end - middle)
        both.append(end - start)
    ratio = statistics.median(b / a for a, b in zip(whole[-rounds:], both[-rounds:]))
    whole, first, second, both = (1e3 * statistics.median(v[-rounds:]) for v in (whole, first, second, both))
    return dict(width=d, blocks=count, whole_ms=whole, input_ms=first, weight_ms=second, both_ms=both, ratio=ratio)


print(json.dumps([measure(64, 1, 32, 4, 4, 300), measure(512, 2, 64, 8, 4, 30)]))
