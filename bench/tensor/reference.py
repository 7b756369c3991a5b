"""Measures the same adds with Python's DTensor. Prints JSON."""
import json, os, time
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533", RANK="0", WORLD_SIZE="1")
torch.set_num_threads(1)
mesh = init_device_mesh("cpu", (1,))


def us(a, b, calls=1000, rounds=20):
    best = 1e9
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            a + b
        best = min(best, (time.perf_counter() - start) / calls * 1e6)
    return best


a, b = torch.randn(16, 16), torch.randn(16, 16)
out = {}
for mode in ("no_grad", "grad"):
    a.requires_grad_(mode == "grad")
    da, db = (distribute_tensor(t, mesh, [Shard(0)]) for t in (a, b))
    out[mode] = {"plain_us": us(a, b), "dtensor_us": us(da, db)}
print(json.dumps(out))
dist.destroy_process_group()
