"""Steps of a small GPT with replicated (DDP) and sharded (FSDP) parameters on 2 processes, and the memory of sharding."""
from harness import at_least


def measure(bench):
    steps = 4 if bench.quick else 12
    for mode, name in (("ddp", "DDP"), ("fsdp", "FSDP")):
        ours = bench.program("data_parallel_bench", mode, steps)
        results = bench.alternate({"gloo": (ours, {"PENSTOCK_BACKEND": "gloo"}), "shm": (ours, {"PENSTOCK_BACKEND": "shm"}),
                                   "reference": bench.reference(mode, steps)})
        seconds = lambda who: [1e3 * run["median_s"] for run in results[who]]
        bench.compare(f"{name} step, both over gloo", seconds("gloo"), seconds("reference"), "ms", at_least(1.1))
        bench.compare(f"{name} step, shm next to the reference's gloo", seconds("shm"), seconds("reference"), "ms", at_least(1.1))
        bench.compare(f"{name} step, shm next to Penstock's gloo", seconds("shm"), seconds("gloo"), "ms", at_least(1))
    memory = bench.run(bench.program("data_parallel_bench", "memory", 2))
    # Parameters, gradients and the two states of AdamW, sharded over 2 ranks, plus the parameters of one unit.
    expected = 4 * memory["parameter_bytes"] / 2 + memory["unit_bytes"]
    bench.value("FSDP peak memory / (shards + one unit)", [memory["peak_bytes"] / expected], "")
