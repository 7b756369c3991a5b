"""How costs grow with microbatches, stages, ranks, parameters and the size of the world, and a plan for 4,096 ranks."""
import subprocess
import time

from harness import BenchError, at_most

# kind, largest size, largest size of a quick run, title, label of the sizes
KINDS = [("ranks", 64, 16, "Cost over ranks", "ranks"), ("stages", 32, 8, "Cost over stages per rank", "stages per rank"),
         ("microbatches", 1024, 64, "Cost over microbatches", "microbatches"),
         ("parameters", 10000, 100, "Cost over parameters", "parameter tensors"),
         ("setup", 256, 32, "Set-up over ranks", "ranks")]
FLAT = at_most(0.2)  # the exponent of a cost that should not grow
# The exponent of costs that other limits apply to; none: reported only.
GOALS = {"gloo group, store messages per rank": at_most(1.1), "gloo group, ms": None, "join, ms": None,
         "join with shared memory, ms": None, "1F1B pipeline set-up, CPU us per rank": at_most(1.1),
         "GPipe pipeline set-up, CPU us per rank": at_most(1.1), "step without replicas, CPU us per tensor": None}


def grow(bench, kind, largest, title, label):
    series = bench.run(bench.program("growth_bench", kind, largest, 1 if bench.quick else 3))
    bench.raw.setdefault(bench.name, []).append({kind: series})
    units = {}
    for name, points in series.items():
        units.setdefault(name.split(", ", 1)[1], {})[name] = points
    for unit, part in units.items():
        names = {name.split(", ", 1)[0]: name for name in part}
        plot = title if len(units) == 1 else f"{title}, {unit}"
        bench.plot(plot, label, unit, {short: part[name] for short, name in names.items()})
        for short, name in names.items():
            bench.exponent(f"{title}: {name}", part[name], GOALS.get(name, FLAT))


def plan(bench):
    """Every schedule with 1 to 4 stages per rank, with and without recomputation."""
    command = bench.tool("plan", "--ranks", 4096, "--microbatches", 8)
    seconds = []
    for _ in range(min(3, bench.rounds)):
        start = time.perf_counter()
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode != 0:
            raise BenchError(" ".join(command))
        seconds.append(time.perf_counter() - start)
    bench.value("plan for 4,096 ranks, all schedules", seconds, "s", at_most(10))


def measure(bench):
    for kind, largest, quick, title, label in KINDS:
        grow(bench, kind, quick if bench.quick else largest, title, label)
    plan(bench)
