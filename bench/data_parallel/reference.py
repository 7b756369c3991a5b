"""Runs DDP and FSDP of the reference with the model and thread counts of data_parallel_bench, on 2 processes over Gloo."""
import json, os, sys, time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def run(rank, mode, steps, port):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    gpt = nn.Sequential(nn.Embedding(512, 256), *(Block(256, 4) for _ in range(4)), nn.Linear(256, 512, bias=False))
    if mode == "ddp":
        model = DistributedDataParallel(gpt)
    else:
        mesh = init_device_mesh("cpu", (2,))
        for part in gpt:
            if isinstance(part, Block):
                fully_shard(part, mesh=mesh)
        model = fully_shard(gpt, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, target = torch.randint(512, (8, 128)), torch.randint(512, (8, 128))
    seconds = []
    for step in range(steps + 2):
        dist.barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(x).flatten(0, 1), target.flatten()).backward()
        optimizer.step()
        dist.barrier()
        if step >= 2:
            seconds.append(time.perf_counter() - start)
    seconds.sort()
    if rank == 0:
        print(json.dumps({"mode": mode, "best_s": seconds[0], "median_s": seconds[len(seconds) // 2]}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(run, (sys.argv[1], int(sys.argv[2]), 20000 + os.getpid() % 20000), nprocs=2)
