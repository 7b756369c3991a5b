"""Shows the results of the last run in the documentation: copies the plots and writes the tables of docs/performance.md."""
import json
import re
import shutil

import harness

PAGE = harness.ROOT / "docs/performance.md"
IMAGES = harness.ROOT / "docs/images"
BLOCK = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def markdown(rows, about):
    lines = ["| case | Penstock | reference | ratio | goal |", "|---|---|---|---|---|"]
    for row in rows:
        case, ours, reference, ratio, goal, verdict = harness.cells(row)
        ratio = f"**{ratio}**" if ratio else ""
        lines.append(f"| {case} | {ours} | {reference} | {ratio} | {goal}{' (**missed**)' if verdict == 'MISSED' else ''} |")
    machine = f"Commit {about['commit']}, {about['date'][:10]}: {about['cpu']}, {about['cores']} cores, load {about['load']} before"
    return "\n".join(lines + ["", machine, f"the run, torch {about['torch']}, {about['threads']} thread per process."]) + "\n"


def fill(page, rows, about):
    """Replaces the blocks of the benchmarks that were run."""
    def block(match):
        of_benchmark = [row for row in rows if row.benchmark == match[2]]
        return match[0] if not of_benchmark else f"{match[1]}\n{markdown(of_benchmark, about)}\n{match[3]}"
    return BLOCK.sub(block, page)


def publish():
    results = harness.OUTPUT / "results.json"
    if not results.exists():
        return "no results to publish: run the benchmarks first", 1
    last = json.loads(results.read_text())
    if last["machine"]["quick"]:
        return "the last run was quick: run the benchmarks without --quick", 1
    for plot in last["plots"]:
        shutil.copy(harness.OUTPUT / plot, IMAGES / f"bench-{plot}")
    PAGE.write_text(fill(PAGE.read_text(), [harness.Row.from_json(row) for row in last["rows"]], last["machine"]))
    warning = "; the machine was loaded: run again on an idle one" if last["machine"]["loaded"] else ""
    return f"published {len(last['rows'])} rows and {len(last['plots'])} plots{warning}", 0
