"""Generating and lowering schedules of 64 ranks, 2 stages each and 256 microbatches; larger ones without the reference."""
from harness import BenchError, at_least


def measure(bench):
    results = bench.alternate({"ours": bench.program("schedules_bench", "side-by-side"),
                               "reference": bench.reference()}, rounds=2)
    for index, first in enumerate(results["ours"][0]):
        name = first["schedule"]
        if first["actions"] != results["reference"][0][index]["actions"]:
            raise BenchError(f"{name} differs from that of the reference")
        seconds = lambda who, key="generate_and_lower_s": [1e3 * run[index][key] for run in results[who]]
        bench.compare(f"generate and lower {name}", seconds("ours"), seconds("reference"), "ms", at_least(1))
        bench.value(f"validate {name}, all send modes", seconds("ours", "validate_all_modes_s"), "ms")
        bench.value(f"simulate {name}", seconds("ours", "simulate_s"), "ms")
    huge = bench.run(bench.program("schedules_bench", "huge"))
    bench.value(f"generate and lower {huge['actions']:,} actions", [huge["generate_and_lower_s"]], "s")
    ranks = bench.alternate({"rank": bench.program("schedules_bench", "rank")}, rounds=3)["rank"]
    bench.value("one rank of 4,096, slowest schedule", [1e3 * max(r["seconds"] for r in run) for run in ranks], "ms")
