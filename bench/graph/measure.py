"""Replay of a graph, capture and split of a GPT-2, and the memory of a replay."""
from harness import at_least


def measure(bench):
    results = bench.alternate({"ours": bench.program("graph_bench"), "reference": bench.reference()}, rounds=3)
    ours, theirs = results["ours"], results["reference"]
    for mode, name in (("no_grad", "without gradients"), ("grad", "with gradients")):
        figures = lambda runs, key: [run[mode][key] for run in runs]
        bench.compare(f"replay of an add next to eager C++, {name}", figures(ours, "replay_us"),
                      figures(ours, "eager_us"), "us")
        for key, what in (("module", "exported module"), ("interpreter", "fx.Interpreter")):
            bench.compare(f"replay of an add next to {what}, {name}", figures(ours, "replay_us"),
                          figures(theirs, f"{key}_us"), "us", at_least(1))
            bench.compare(f"replay until freed next to {what}, {name}", figures(ours, "replay_and_free_us"),
                          figures(theirs, f"{key}_and_free_us"), "us", at_least(1))
    figures = lambda runs, key: [run[key] for run in runs]
    pipeline = figures(theirs, "gpt2_pipeline_ms")
    bench.compare("capture and split GPT-2", figures(ours, "gpt2_pipeline_ms"), pipeline, "ms", at_least(1))
    bench.compare("capture and split GPT-2, real tensors", figures(ours, "gpt2_pipeline_with_memory_ms"), pipeline, "ms")
    bench.compare("peak memory of a replay next to eager C++", [run["replay_peak_bytes"] / 2**20 for run in ours],
                  [run["eager_peak_bytes"] / 2**20 for run in ours], "MiB")
