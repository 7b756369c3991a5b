"""Measures messages and collectives of torch.distributed over Gloo between 2 processes, as transport_bench does."""
import json, os, time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def median(runs, body):
    seconds = []
    for run in range(-(runs // 4), runs):
        start = time.perf_counter()
        body()
        if run >= 0:
            seconds.append(time.perf_counter() - start)
    return sorted(seconds)[runs // 2]


def message(rank, size, runs):
    """Seconds of one message: half of a round trip."""
    sent, got = torch.ones(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)

    def round_trip():
        if rank == 0:
            pending = dist.isend(sent, 1)
            dist.recv(got, 1)
        else:
            dist.recv(got, 0)
            pending = dist.isend(sent, 0)
        pending.wait()

    return median(runs, round_trip) / 2


def all_reduce(size, runs):
    tensor = torch.ones(size // 4)
    return median(runs, lambda: dist.all_reduce(tensor))


def run(rank, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    results = {"message_1k_s": message(rank, 1 << 10, 2000), "message_64k_s": message(rank, 64 << 10, 400),
               "message_16m_s": message(rank, 16 << 20, 30), "all_reduce_1k_s": all_reduce(1 << 10, 1000),
               "all_reduce_16m_s": all_reduce(16 << 20, 30)}
    dist.barrier()
    if rank == 0:
        print(json.dumps({"backend": "gloo"} | results), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(run, (20000 + os.getpid() % 20000,), nprocs=2)
