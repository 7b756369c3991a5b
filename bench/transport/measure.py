"""Messages and collectives between 2 processes: shared memory next to Gloo, and the reference's Gloo for context."""
from harness import at_least

# case, field, factor to the unit, unit, goal
CASES = [("message of 1 KiB, one way", "message_1k_s", 1e6, "us", at_least(10)),
         ("message of 64 KiB, one way", "message_64k_s", 1e6, "us", None),
         ("message of 16 MiB, one way", "message_16m_s", 1e3, "ms", at_least(2)),
         ("all_reduce of 1 KiB", "all_reduce_1k_s", 1e6, "us", None),
         ("all_reduce of 16 MiB", "all_reduce_16m_s", 1e3, "ms", at_least(2))]


def measure(bench):
    results = bench.alternate({"shm": bench.program("transport_bench", "shm"),
                               "gloo": bench.program("transport_bench", "gloo"), "reference": bench.reference()})
    figures = lambda who, field, factor: [factor * run[field] for run in results[who]]
    for case, field, factor, unit, goal in CASES:
        shm, gloo = figures("shm", field, factor), figures("gloo", field, factor)
        bench.compare(f"{case}: shm next to Penstock's gloo", shm, gloo, unit, goal)
        bench.compare(f"{case}: shm next to torch.distributed's gloo", shm, figures("reference", field, factor), unit)
