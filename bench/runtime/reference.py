"""Runs the reference with the models, schedules and thread counts of runtime_bench, on 2 processes over Gloo.

reference.py MODEL SCHEDULE MICROBATCHES STEPS [memory]: with `memory`, also the peak of the last step (slower).
PENSTOCK_PIPELINING names another package with the same interface."""
import importlib, json, os, sys, time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

pipelining = importlib.import_module(os.environ.get("PENSTOCK_PIPELINING", "torch.distributed.pipelining"))
get_schedule_class = importlib.import_module(pipelining.__name__ + ".schedules").get_schedule_class


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


LOSSES = {"linear": F.mse_loss, "gpt": lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten())}


def batch(model):
    if model == "gpt":
        return torch.randint(512, (16, 128)), torch.randint(512, (16, 128))
    return torch.randn(256, 16), torch.randn(256, 16)


def module(model, stage, stages):
    if model == "linear":
        return nn.Linear(16, 16)
    parts = [nn.Embedding(512, 256)] if stage == 0 else []
    parts += [Block(256, 4) for _ in range(4 // stages)]
    if stage == stages - 1:
        parts.append(nn.Linear(256, 512, bias=False))
    return nn.Sequential(*parts)


def stages_of(rank, schedule):
    """The stages of a rank of 2, and the number of all stages."""
    if schedule in ("1F1B", "GPipe"):
        return [rank], 2
    return ([rank, 3 - rank] if schedule in ("ZBVZeroBubble", "DualPipeV") else [rank, rank + 2]), 4


class Peak:
    """The bytes of CPU tensors that were allocated since the profiler started, at their highest after `start`."""

    def __enter__(self):
        self.profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
        self.profile.__enter__()
        return self

    def start(self):
        self.since = time.time_ns()

    def __exit__(self, *error):
        self.profile.__exit__(*error)
        events = [e for e in self.profile.profiler.kineto_results.events() if e.name() == "[memory]"]
        held = self.bytes = 0
        for event in sorted(events, key=lambda e: e.start_ns()):
            held += event.nbytes()
            if event.start_ns() >= self.since:
                self.bytes = max(self.bytes, held)


def compute_seconds(modules, stages, microbatches):
    """The time per microbatch of this rank's linear modules and the loss without a pipeline, at its best."""
    def once():
        start = time.perf_counter()
        for rows in torch.randn(microbatches, 16).split(1):
            for index, one in modules:
                output = one(rows if index == 0 else rows.clone().requires_grad_())
                loss = F.mse_loss(output, rows) if index == stages - 1 else None
                loss.backward() if loss is not None else output.backward(rows)
        return (time.perf_counter() - start) / microbatches
    return min(once() for _ in range(5))


def run(rank, model, schedule, microbatches, steps, port, memory):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    peak = Peak() if memory else None
    if peak:
        peak.__enter__()
    indices, count = stages_of(rank, schedule)
    stages = [pipelining.PipelineStage(module(model, index, count), index, count, torch.device("cpu")) for index in indices]
    pipeline = get_schedule_class(schedule)(stages if count > 2 else stages[0], microbatches, loss_fn=LOSSES[model])
    x, target = batch(model)
    args = (x,) if 0 in indices else ()
    target = target if count - 1 in indices else None
    seconds = []
    for step in range(steps + 2):
        dist.barrier()
        if peak and step == steps + 1:
            peak.start()
        start = time.perf_counter()
        pipeline.step(*args, target=target, return_outputs=False)
        dist.barrier()
        if step >= 2:
            seconds.append(time.perf_counter() - start)
    if peak:
        peak.__exit__(None, None, None)
        most = [torch.zeros(1) for _ in range(2)]
        dist.all_gather(most, torch.tensor([float(peak.bytes)]))
    seconds.sort()
    alone = torch.zeros(1)
    if model == "linear":
        alone = torch.tensor([compute_seconds([(i, s.submod) for i, s in zip(indices, stages)], count, microbatches)])
    dist.all_reduce(alone, dist.ReduceOp.MAX)
    if rank == 0:
        result = {"model": model, "schedule": schedule, "microbatches": microbatches, "best_s": seconds[0],
                  "median_s": seconds[len(seconds) // 2], "compute_s": alone.item()}
        print(json.dumps(result | ({"peak_bytes": [one.item() for one in most]} if peak else {})), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    model, schedule, microbatches, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    port = 20000 + os.getpid() % 20000
    mp.spawn(run, (model, schedule, microbatches, steps, port, sys.argv[5:] == ["memory"]), nprocs=2)
