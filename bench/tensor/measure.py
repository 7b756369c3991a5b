"""The cost that distribution adds to an add of 16x16 tensors."""
from harness import at_most


def measure(bench):
    results = bench.alternate({"ours": bench.program("tensor_bench"), "reference": bench.reference()})
    added = lambda runs, mode: [run[mode]["dtensor_us"] - run[mode]["plain_us"] for run in runs]
    for mode, name in (("no_grad", "without gradients"), ("grad", "with gradients")):
        ours = added(results["ours"], mode)
        bench.compare(f"added cost of an add, {name}", ours, added(results["reference"], mode), "us")
        bench.value(f"added cost of an add, {name}: limit", ours, "us", at_most(0.3))
