"""Runs Penstock and the reference alternately, compares their figures with goals and reports the result.

A benchmark is a folder with a `measure.py` whose `measure(bench)` calls `bench.alternate` to run programs and
`bench.compare`, `bench.value` or `bench.exponent` to add rows. Needs only the standard library."""
import dataclasses
import datetime
import json
import math
import os
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "build/bench"
HISTORY = ROOT / "bench/history.jsonl"
THREADS = 1  # of each process, in Penstock and in the reference


@dataclasses.dataclass
class Spread:
    """The median of the rounds, with the lowest and the highest."""
    median: float
    low: float
    high: float

    @staticmethod
    def of(values):
        return Spread(statistics.median(values), min(values), max(values))


@dataclasses.dataclass
class Goal:
    """A limit of the ratio, or of Penstock's own figure if the row has no ratio."""
    limit: float
    at_least: bool = True
    strict: bool = False  # the limit itself misses the goal

    def met(self, figure):
        if self.strict and figure == self.limit:
            return False
        return figure >= self.limit if self.at_least else figure <= self.limit

    def __str__(self):
        return f"{'>' if self.at_least else '<'}{'' if self.strict else '='} {number(self.limit)}"


def at_least(limit):
    return Goal(limit, True)


def above(limit):
    return Goal(limit, True, strict=True)


def at_most(limit):
    return Goal(limit, False)


@dataclasses.dataclass
class Row:
    benchmark: str
    case: str
    unit: str
    ours: Spread
    reference: Spread | None = None
    ratio: Spread | None = None
    goal: Goal | None = None

    @property
    def figure(self):
        """What the goal limits."""
        return self.ratio or self.ours

    @property
    def met(self):
        return None if self.goal is None else self.goal.met(self.figure.median)

    @property
    def key(self):
        return f"{self.benchmark}: {self.case}"

    def as_json(self):
        return dataclasses.asdict(self) | {"met": self.met}

    @staticmethod
    def from_json(fields):
        spread = lambda value: value and Spread(**value)
        return Row(fields["benchmark"], fields["case"], fields["unit"], Spread(**fields["ours"]),
                   spread(fields["reference"]), spread(fields["ratio"]), fields["goal"] and Goal(**fields["goal"]))


@dataclasses.dataclass
class Growth:
    """Costs over sizes, for a plot with logarithmic axes."""
    title: str
    x_label: str
    y_label: str
    series: dict  # name: list of [size, cost]


def number(value):
    """Three significant digits, without an exponent."""
    if value == 0 or not math.isfinite(value):
        return str(value)
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits > 0 and abs(value) >= 100 else text


def counted(count, noun):
    return f"{count} {noun}" + ("" if count == 1 else "s")


def exponent(points):
    """The slope of the least-squares line through log(cost) over log(size): cost ~ size^slope."""
    xs, ys = ([math.log(point[i]) for point in points] for i in (0, 1))
    x_mean, y_mean = statistics.mean(xs), statistics.mean(ys)
    return (sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys)) / sum((x - x_mean) ** 2 for x in xs))


def last_json(text):
    """The last line of the output that is a JSON object or array; launchers and libraries may print other lines."""
    for line in reversed(text.splitlines()):
        if line.startswith(("{", "[")):
            return json.loads(line)
    raise ValueError("no JSON in the output")


class BenchError(Exception):
    """A benchmark program failed, or printed no result."""


class Bench:
    def __init__(self, rounds=3, quick=False, log=print):
        self.rounds = 1 if quick else rounds
        self.quick = quick
        self.rows, self.growths, self.raw = [], [], {}
        self.name = ""
        self.log = log

    # Programs.

    def program(self, name, *arguments):
        """A program of the benchmark that is measured."""
        return [str(ROOT / f"build/release/bench/{self.name}/{name}"), *map(str, arguments)]

    def tool(self, *arguments):
        return [str(ROOT / "build/release/bin/penstock"), *map(str, arguments)]

    def reference(self, *arguments):
        """The reference's program of the benchmark that is measured."""
        python = os.environ.get("PENSTOCK_PYTHON", "python3")
        return [python, "-W", "ignore", str(ROOT / f"bench/{self.name}/reference.py"), *map(str, arguments)]

    def run(self, command, environment=None):
        """Runs a program and returns the JSON that it prints last."""
        # The reference needs NumPy, which ./dev installs there.
        modules = os.pathsep.join(filter(None, [str(ROOT / "build/python"), os.environ.get("PYTHONPATH")]))
        fixed = {"OMP_NUM_THREADS": str(THREADS), "PYTHONPATH": modules}
        got = subprocess.run(command, capture_output=True, text=True, cwd=ROOT,
                             env=os.environ | fixed | (environment or {}))
        try:
            if got.returncode != 0:
                raise ValueError(f"exit code {got.returncode}")
            return last_json(got.stdout)
        except ValueError as error:
            raise BenchError(f"{' '.join(command)}: {error}\n{got.stdout[-500:]}{got.stderr[-2000:]}") from None

    def alternate(self, commands, rounds=None):
        """Runs commands, given as {name: command or (command, environment)}, in turn. The order reverses from round to
        round. Returns {name: one result per round}."""
        results = {name: [] for name in commands}
        for index in range(min(self.rounds, rounds or self.rounds)):
            order = list(commands.items())
            for name, command in order if index % 2 == 0 else reversed(order):
                command, environment = command if isinstance(command, tuple) else (command, None)
                results[name].append(self.run(command, environment))
        self.raw.setdefault(self.name, []).append(results)
        return results

    # Rows.

    def add(self, row):
        self.rows.append(row)
        self.log(text_of(row))

    def compare(self, case, ours, reference, unit, goal=None, higher_is_better=False):
        """Adds a row of two figures. The ratio is how many times better Penstock is, from the pairs of each round."""
        pairs = [(a, b) if higher_is_better else (b, a) for a, b in zip(ours, reference)]
        self.add(Row(self.name, case, unit, Spread.of(ours), Spread.of(reference),
                     Spread.of([a / b for a, b in pairs]), goal))

    def value(self, case, values, unit, goal=None):
        """Adds a row of a figure that the reference does not have."""
        self.add(Row(self.name, case, unit, Spread.of(values), goal=goal))

    def plot(self, title, x_label, y_label, series):
        """Adds a plot of costs over sizes, {name: points}."""
        self.growths.append(Growth(title, x_label, y_label, series))

    def exponent(self, case, points, goal=None):
        """Adds a row with the exponent of a growth."""
        self.value(case, [exponent(points)], "exponent", goal)


# Reports.

HEADER = ("case", "Penstock", "reference", "ratio", "goal", "")


def cells(row):
    spread = lambda s: "" if s is None else f"{number(s.median)} [{number(s.low)}, {number(s.high)}]"
    unit = "" if row.unit == "" else f" {row.unit}"
    verdict = {None: "", True: "met", False: "MISSED"}[row.met]
    return (row.case, spread(row.ours) + unit, spread(row.reference), spread(row.ratio), str(row.goal or ""), verdict)


def text_of(row):
    case, ours, reference, ratio, goal, verdict = cells(row)
    parts = [f"  {case}: {ours}"]
    if reference:
        parts.append(f"reference {reference}, ratio {ratio}")
    if goal:
        parts.append(f"goal {goal}: {verdict}")
    return "; ".join(parts)


def table(rows):
    """All rows, aligned, by benchmark."""
    lines, name = [HEADER], None
    for row in rows:
        if row.benchmark != name:
            name = row.benchmark
            lines.append((name,) + ("",) * 5)
        lines.append(("  " + cells(row)[0],) + cells(row)[1:])
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADER))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def missed(rows):
    return [row for row in rows if row.met is False]


def verdict(rows):
    """The end of the report: what missed its goal. Returns text and exit code."""
    with_goal = [row for row in rows if row.goal is not None]
    failures = missed(rows)
    if not failures:
        return f"all {len(with_goal)} goals are met", 0
    lines = [f"MISSED {len(failures)} of {len(with_goal)} goals:"]
    lines += [f"  {row.key}: {number(row.figure.median)}, goal {row.goal}" for row in failures]
    return "\n".join(lines), 1


# Machine and history.

def first_line(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def processor():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def machine():
    """Describes the machine and the commit. Call it before the benchmarks: they raise the load."""
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    python = os.environ.get("PENSTOCK_PYTHON", "python3")
    return {"commit": first_line(["git", "rev-parse", "--short=12", "HEAD"]),
            "modified": first_line(["git", "status", "--porcelain", "--untracked-files=no"]) != "",
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
            "cpu": processor(), "cores": cores, "load": round(load, 2), "loaded": load > 0.25 * cores,
            "threads": THREADS, "torch": first_line([python, "-c", "import torch; print(torch.__version__)"])}


def history_line(about, rows):
    figures = {row.key: float(f"{row.figure.median:.4g}") for row in rows}
    return json.dumps(about | {"figures": figures, "missed": [row.key for row in missed(rows)]})
