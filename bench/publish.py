"""Shows the results of the last run in the documentation: copies the plots and writes the tables of docs/performance.md."""
import json
import re
import shutil
import textwrap

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
    machine = (f"Medians of {harness.counted(about['rounds'], 'round')} [lowest, highest]. Commit {about['commit']}, {about['date'][:10]}: {about['cpu']}, {about['cores']} cores, load {about['load']} "
               f"before the run, torch {about['torch']}, {about['threads']} thread per process.")
    return "\n".join(lines + ["", textwrap.fill(machine, 100)]) + "\n"


def fill(page, rows, about, plots=()):
    """Replaces the blocks of the benchmarks that were run."""
    def block(match):
        of_benchmark = [row for row in rows if row.benchmark == match[2]]
        if not of_benchmark:
            return match[0]
        shown = [f"![{plot[:-4]}](images/bench-{plot})\n" for plot in plots if plot.startswith((f"{match[2]}.", f"{match[2]}-"))]
        return "\n".join([match[1], markdown(of_benchmark, about), *shown, match[3]])
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
    rows = [harness.Row.from_json(row) for row in last["rows"]]
    PAGE.write_text(fill(PAGE.read_text(), rows, last["machine"], last["plots"]))
    warning = "; the machine was loaded: run again on an idle one" if last["machine"]["loaded"] else ""
    return f"published {len(last['rows'])} rows and {len(last['plots'])} plots{warning}", 0
