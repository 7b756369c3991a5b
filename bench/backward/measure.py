"""The split backward pass (I, then W) relative to the full one (B), in CPU time of one thread."""
from harness import at_least


def measure(bench):
    results = bench.alternate({"ours": bench.program("backward_bench"), "reference": bench.reference()})
    for index, width in enumerate((64, 512)):
        theirs = [rows[index]["ratio"] for rows in results["reference"]]
        for linear in ("ordinary", "deferred"):
            ours = [next(r["ratio"] for r in rows if r["width"] == width and r["linear"] == linear)
                    for rows in results["ours"]]
            bench.compare(f"(I + W) / B, width {width}, {linear} linears", ours, theirs, "", at_least(1))
