"""Runs the reference with the models, schedules and thread counts of runtime_bench, on 2 processes over Gloo."""
import json, os, sys, time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe


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


def linear(rank):
    return nn.Linear(16, 16), torch.randn(256, 16), torch.randn(256, 16), F.mse_loss


def gpt(rank):
    parts = [nn.Embedding(512, 256)] if rank == 0 else []
    parts += [Block(256, 4), Block(256, 4)]
    if rank == 1:
        parts.append(nn.Linear(256, 512, bias=False))
    loss = lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten())
    return nn.Sequential(*parts), torch.randint(512, (16, 128)), torch.randint(512, (16, 128)), loss


def run(rank, model, schedule, microbatches, steps, port):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    module, x, target, loss = (gpt if model == "gpt" else linear)(rank)
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    kind = {"1F1B": Schedule1F1B, "GPipe": ScheduleGPipe}[schedule]
    pipeline = kind(stage, microbatches, loss_fn=loss)
    seconds = []
    for step in range(steps + 2):
        dist.barrier()
        start = time.perf_counter()
        if rank == 0:
            pipeline.step(x)
        else:
            pipeline.step(target=target, return_outputs=False)
        dist.barrier()
        if step >= 2:
            seconds.append(time.perf_counter() - start)
    seconds.sort()
    if rank == 0:
        print(json.dumps({"model": model, "schedule": schedule, "microbatches": microbatches, "best_s": seconds[0],
                          "median_s": seconds[len(seconds) // 2]}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    model, schedule, microbatches, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    port = 20000 + os.getpid() % 20000
    mp.spawn(run, (model, schedule, microbatches, steps, port), nprocs=2)
