"""The step of a pipeline that is written in Python, on 2 processes: penstock.pipelining next to torch.distributed.pipelining.

Both run the same program, bench/runtime/reference.py."""
import os

from harness import ROOT, at_least

SINGLE = ("1F1B", "GPipe")
SCHEDULES = SINGLE + ("Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")


def ours(command, backend):
    modules = os.pathsep.join([str(ROOT / "build/release/python"), str(ROOT / "build/python")])
    return command, {"PENSTOCK_PIPELINING": "penstock.pipelining", "PENSTOCK_BACKEND": backend, "PYTHONPATH": modules}


def measure(bench):
    program = str(ROOT / "bench/runtime/reference.py")
    python = os.environ.get("PENSTOCK_PYTHON", "python3")
    for schedule in SCHEDULES:
        command = [python, "-W", "ignore", program, "linear", schedule, "256", "4" if bench.quick else "6"]
        results = bench.alternate({"shm": ours(command, "shm"), "gloo": ours(command, "gloo"), "reference": command}, rounds=2)
        # The step without the time in which the modules and the loss compute, which is the same in both. A difference below
        # 1 us is noise.
        microseconds = lambda who: [max(1e6 * (run["median_s"] / 256 - run["compute_s"]), 1) for run in results[who]]
        bench.compare(f"overhead per microbatch, {schedule}", microseconds("shm"), microseconds("reference"), "us",
                      at_least(5))
        bench.compare(f"overhead per microbatch, {schedule}, over gloo", microseconds("gloo"), microseconds("reference"),
                      "us", at_least(3))
        step = lambda who: [1e3 * run["median_s"] for run in results[who]]
        bench.compare(f"step of tiny layers, {schedule}", step("shm"), step("reference"), "ms")
    for schedule in SINGLE:
        command = [python, "-W", "ignore", program, "gpt", schedule, "16", "2"]
        results = bench.alternate({"shm": ours(command, "shm"), "reference": command}, rounds=2)
        milliseconds = lambda who: [1e3 * run["median_s"] for run in results[who]]
        bench.compare(f"GPT step, {schedule}", milliseconds("shm"), milliseconds("reference"), "ms")
