"""The step of a pipeline on 2 processes: tiny layers (overhead per microbatch) and a GPT (step rate, bound, memory)."""
from harness import above, at_least, at_most

SINGLE = ("1F1B", "GPipe")
SCHEDULES = SINGLE + ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
OWN = ("ZB1P", "ZB2P", "V-Half", "V-Min", "Auto")  # the reference does not have these
ZERO_BUBBLE = ("InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV", *OWN)


def overhead(bench, schedule):
    work = ("linear", schedule, 256, 4 if bench.quick else 6)
    ours = bench.program("runtime_bench", *work)
    results = bench.alternate({"shm": (ours, {"PENSTOCK_BACKEND": "shm"}), "gloo": (ours, {"PENSTOCK_BACKEND": "gloo"}),
                               "reference": bench.reference(*work)})
    microseconds = lambda who: [1e6 * run["median_s"] / 256 for run in results[who]]
    goal = at_least(10 if schedule in SINGLE else 5)
    bench.compare(f"overhead per microbatch, {schedule}", microseconds("shm"), microseconds("reference"), "us", goal)
    bench.compare(f"overhead per microbatch, {schedule}, over gloo", microseconds("gloo"), microseconds("reference"), "us")


def gpt(bench, schedule):
    work = ("gpt", schedule, 16, 2)
    programs = {"ours": bench.program("runtime_bench", *work)}
    if schedule not in OWN:
        programs["reference"] = bench.reference(*work)
    results = bench.alternate(programs)
    seconds = lambda who: [1e3 * run["median_s"] for run in results[who]]
    if schedule in OWN:
        bench.value(f"GPT step, {schedule}", seconds("ours"), "ms")
    else:
        bench.compare(f"GPT step, {schedule}", seconds("ours"), seconds("reference"), "ms", at_least(1.1))
    figures = lambda key: [run[key] for run in results["ours"]]
    bench.value(f"GPT step / bound of the stage times, {schedule}", figures("over_bound"), "", at_most(1 / 0.97))
    error = [abs(run["predicted_s"] / run["median_s"] - 1) for run in results["ours"]]
    bench.value(f"GPT step, error of the prediction, {schedule}", error, "", at_most(0.05))
    if schedule in ZERO_BUBBLE:
        points = [100 * abs(sum(run["bubble"]) / len(run["bubble"]) - run["predicted_bubble"]) for run in results["ours"]]
        bench.value(f"GPT bubble, difference to the prediction, {schedule}", points, "points", at_most(2))
    fullest = [max(ranks) for ranks in figures("memory_over_kept")]
    bench.value(f"GPT peak memory / kept, {schedule}", fullest, "", at_most(1.05))
    peak = [max(ranks) / 2**20 for ranks in figures("peak_bytes")]
    if schedule in OWN:
        bench.value(f"GPT peak memory, {schedule}", peak, "MiB")
        return
    reference = bench.run(bench.reference("gpt", schedule, 16, 1, "memory"))["peak_bytes"]
    bench.compare(f"GPT peak memory, {schedule}", peak, [max(reference) / 2**20] * len(fullest), "MiB", above(1))


def thread_ranks(bench, schedule):
    runs = bench.alternate({"ours": bench.program("runtime_bench", "gpt", schedule, 16, 2, "threads")}, rounds=2)["ours"]
    error = [abs(run["predicted_s"] / run["median_s"] - 1) for run in runs]
    bench.value(f"GPT step, error of the prediction, {schedule}, 2 thread ranks", error, "", at_most(0.1))


def measure(bench):
    for schedule in SCHEDULES:
        overhead(bench, schedule)
    for schedule in SCHEDULES + OWN:
        gpt(bench, schedule)
    for schedule in SCHEDULES + OWN:
        thread_ranks(bench, schedule)
    for what in ("messages", "autograd", "timeline", "overlap"):  # lower bounds, for context
        bench.log(f"  floor, {what}: {bench.run(bench.program('floor_bench', what))}")
