#!/usr/bin/env python3
"""Mutation testing of the torch-free half: changes one token of a source file at a time and expects a test to fail.

The tests are built once, against a shared library of the torch-free modules. For each mutant one file is compiled and
that library linked; then the module's test programs run, those of its module first, until one fails. Mutants that do not
compile are not counted. Survivors are listed, except those in equivalent.txt, which gives the reason why no test can
distinguish them from the original.
"""
import argparse
import json
import os
import random
import re
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "mutate"
EQUIVALENT = Path(__file__).with_name("equivalent.txt")

# The test programs of each module, and those of the modules above it that use it.
OWN = {
    "base": ["base_test"],
    "schedule": ["schedule_action_test", "schedule_csv_test", "schedule_validate_test", "schedule_golden_test",
                 "schedule_lower_test", "schedule_generate_test", "schedule_mutated_drafts_test", "schedule_beyond_reference_test",
                 "fuzz_plan_test"],
    "plan": ["plan_costs_test", "plan_report_test", "plan_numbers_test", "plan_partition_test", "plan_order_test", "plan_simulate_test",
             "plan_auto_test", "plan_planner_test", "plan_partition_search_test"],
    "view": ["view_render_test", "view_svg_test", "view_drawing_test"],
}
ALSO = {
    "base": ["schedule_csv_test", "schedule_validate_test", "tools_plan_commands_test"],
    "schedule": ["plan_simulate_test", "view_render_test", "tools_plan_commands_test"],
    "plan": ["view_render_test"],
    "view": ["tools_plan_commands_test", "view_page_test"],
}
# Long, and rarely the first test to fail.
LEFT_OUT = {"tools_plan_commands_test": "ToolPlanCommand.*", "schedule_generate_test": "*IsValidForAllLegalCounts*",
            "plan_partition_search_test": "*StopsAtItsBudget*:*LocalSearch"}

RELATIONAL = {" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == "}
ARITHMETIC = {" + ": " - ", " - ": " + ", " * ": " / ", " / ": " * ", " % ": " * ", " += ": " -= ", " -= ": " += "}
LOGICAL = {" && ": " || ", " || ": " && "}
WORDS = {"true": "false", "false": "true", "std::min": "std::max", "std::max": "std::min"}
STATEMENT = re.compile(r"\s*[\w.>\[\]():*,+ -]+(\(.*\)| [-+|&]?= .*|\+\+|--);|\s*(\+\+|--)[\w.\[\]()>-]+;|\s*(continue|break|return);")

DECLARATION = re.compile(r"\s*(const|constexpr|static|auto|int|double|bool|char|std::[\w:]+(<.*>)?|[A-Z]\w+)&? [&\w]")


def hide_strings(line):
    """The line with strings, characters and comments blanked, keeping positions."""
    blank = lambda match: " " * len(match.group())
    line = re.sub(r'"(\\.|[^"\\])*"|(?<![0-9a-fA-F])\'(\\.|[^\'\\])+\'', blank, line)
    return re.sub(r"//.*", blank, line)


def raw_string_lines(text):
    """Numbers of the lines that a raw string literal covers: they are data."""
    lines = set()
    for match in re.finditer(r'R"(\w*)\(.*?\)\1"', text, re.S):
        first = text.count("\n", 0, match.start())
        lines.update(range(first, first + match.group().count("\n") + 1))
    return lines


def mutations_of(line):
    """Yields (operator, mutated line)."""
    code = hide_strings(line)
    if code.lstrip().startswith(("#", "static_assert", "namespace", "using ", "template")):
        return
    def replaced(match, new):
        return line[:match.start()] + new + line[match.end():]
    for name, table in (("relational", RELATIONAL), ("arithmetic", ARITHMETIC), ("logical", LOGICAL)):
        for old, new in table.items():
            for match in re.finditer(re.escape(old), code):
                if name != "arithmetic" or '"' not in (line[match.start() - 1], line[match.end():match.end() + 1]):
                    yield name, replaced(match, new)  # text is only ever joined
    for old, new in WORDS.items():
        for match in re.finditer(rf"(?<![\w:]){old}(?!\w)", code):
            yield "boolean" if old in ("true", "false") else "extremum", replaced(match, new)
    for match in re.finditer(r"(?<![\w.'])\d+(?![\w.']|'\d)", code):
        value = int(match.group())
        yield "constant", replaced(match, str(value + 1))
        if value > 0:
            yield "constant", replaced(match, str(value - 1))
    for match in re.finditer(r"(?<![\w)\]!=])!(?=[\w(])", code):
        yield "negation", replaced(match, "")
    if match := re.search(r"\b(if|while) \((.*)\) *(\{|\w.*;)? *$", code):
        inner = line[match.start(2):match.end(2)]
        if inner.count("(") == inner.count(")") and ";" not in inner:
            yield "negation", line[:match.start(2)] + "!(" + inner + ")" + line[match.end(2):]
    if (match := re.fullmatch(r"(.*\breturn )(.+);\s*", code)) and match.group(2).strip() not in ("{}", "0", "false"):
        yield "return", line[:match.end(1)] + "{};"
    if STATEMENT.fullmatch(code.rstrip()) and not DECLARATION.match(code):
        yield "removal", re.match(r"\s*", line).group() + ";"


class Mutant:
    def __init__(self, module, file, number, operator, old, new):
        self.module, self.file, self.number, self.operator, self.old, self.new = module, file, number, operator, old, new

    def key(self):
        return f"{self.file} | {self.old.strip()} | {self.new.strip()}"

    def text(self):
        return f"{self.file}:{self.number}: {self.operator}\n  - {self.old.strip()}\n  + {self.new.strip()}"


def find_mutants(module):
    mutants = []
    for path in sorted((ROOT / "src" / module).rglob("*.cpp")):
        text = path.read_text()
        data = raw_string_lines(text)
        for number, line in enumerate(text.splitlines()):
            if number in data:
                continue
            for operator, new in mutations_of(line):
                mutants.append(Mutant(module, str(path.relative_to(ROOT)), number + 1, operator, line, new))
    return mutants


def sample(mutants, count, seed):
    """The same choice for the same sources, seed and count, regardless of the order of runs."""
    chosen = random.Random(seed).sample(mutants, min(count, len(mutants)))
    return sorted(chosen, key=lambda mutant: (mutant.file, mutant.number, mutant.new))


def read_equivalent():
    """Lines `file | original line | mutated line | reason`."""
    entries = {}
    for line in EQUIVALENT.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            key, _, reason = line.rpartition(" | ")
            entries[key] = reason
    return entries


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options)


def checked(command, **options):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if result.returncode:
        sys.exit(f"mutate: {shlex.join(map(str, command))} failed:\n{result.stdout[-4000:]}")
    return result.stdout


def bound_memory():
    """Limits memory, because a mutant may allocate without bound (not for a browser, which reserves more than it uses)."""
    resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))


class Bench:
    """Programs that load the torch-free half from a shared library, which is linked again for each mutant."""

    def __init__(self, programs):
        self.programs = programs
        options = ["-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", "-DCMAKE_BUILD_TYPE=Release", "-DPENSTOCK_TORCH_SIDE=OFF", "-DPENSTOCK_UNITY=OFF",
                   "-DPENSTOCK_BENCH=OFF", "-DPENSTOCK_EXAMPLES=OFF", "-DPENSTOCK_INSTALL=OFF"]
        checked(["cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", *options])
        checked(["ninja", "-C", BUILD, "-j", os.environ.get("PENSTOCK_JOBS", "1"), "penstock_tool", *programs])
        self.commands = {str(Path(entry["file"]).relative_to(ROOT)): shlex.split(entry["command"])
                         for entry in json.loads((BUILD / "compile_commands.json").read_text())}
        self.objects = sorted((BUILD / "src/CMakeFiles/penstock_plan.dir").rglob("*.o"))
        self.library = BUILD / "mutant" / "libpenstock_mutant.so"
        self.library.parent.mkdir(exist_ok=True)
        self.link(self.objects)
        for program in programs:
            self.relink(program)
        self.relink("bin/penstock")
        self.seconds = {program: self.measure(program) for program in programs}

    def link(self, objects):
        checked(["g++", "-shared", "-o", self.library, *objects, "-lpthread"])

    def relink(self, target):
        """Ninja's link command, with the shared library instead of the archive."""
        path = target if "/" in target else self.path(target).relative_to(BUILD)
        for line in checked(["ninja", "-C", BUILD, "-t", "commands", "-s", str(path)]).splitlines():
            if "libpenstock_plan.a" in line:
                line = line.replace("src/libpenstock_plan.a", f"{self.library} -Wl,-rpath,{self.library.parent}")
                checked(["sh", "-c", line], cwd=BUILD)

    def path(self, program):
        return next((BUILD / "tests").rglob(program))

    def measure(self, program):
        start = time.monotonic()
        if self.test(program, 900):
            sys.exit(f"mutate: {program} fails without any mutation")
        return time.monotonic() - start

    def test(self, program, limit):
        """Returns '' or the reason why the program failed."""
        environment = dict(os.environ, GTEST_FAIL_FAST="1", GTEST_BRIEF="1")
        try:
            result = run([self.path(program), "--gtest_filter=-" + LEFT_OUT.get(program, "")], timeout=limit,
                         env=environment, cwd=BUILD, preexec_fn=None if program == "view_page_test" else bound_memory)
        except subprocess.TimeoutExpired:
            return "time limit"
        return "" if result.returncode == 0 else "test" if result.returncode > 0 else f"signal {-result.returncode}"

    def compile(self, mutant):
        """The mutant's object file, or None."""
        command = self.commands[mutant.file]
        command = command[next(i for i, word in enumerate(command) if word.endswith(("g++", "c++"))):]
        lines = (ROOT / mutant.file).read_text().splitlines(keepends=True)
        lines[mutant.number - 1] = mutant.new + "\n"
        source, target = self.library.parent / "mutant.cpp", self.library.parent / "mutant.o"
        source.write_text("".join(lines))
        kept = [word for word in command if not word.startswith(("-Werror", "-W")) and word != "-fpch-preprocess"]
        kept = ["-O1" if word == "-O2" else word for word in kept]
        kept = kept[:kept.index("-o")] + ["-w", "-iquote", str((ROOT / mutant.file).parent), "-o", str(target), "-c", str(source)]
        try:
            result = run(kept, cwd=BUILD, timeout=300)
        except subprocess.TimeoutExpired:
            return None
        return target if result.returncode == 0 else None

    def judge(self, mutant):
        """'does not compile', 'survived', or what killed it."""
        target = self.compile(mutant)
        if not target:
            return "does not compile"
        replaced = "CMakeFiles/penstock_plan.dir/" + mutant.file.removeprefix("src/") + ".o"
        objects = [target if str(path).endswith(replaced) else path for path in self.objects]
        assert target in objects, replaced
        self.link(objects)
        for program in dict.fromkeys(OWN[mutant.module] + ALSO[mutant.module]):
            if program in self.programs:
                if why := self.test(program, 20 + 4 * self.seconds[program]):
                    return f"{program}: {why}"
        return "survived"


def main():
    parser = argparse.ArgumentParser(prog="./dev mutate", description=__doc__.split("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="module", help=f"{', '.join(OWN)}; all by default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60, help="mutants per module (default: 60)")
    parser.add_argument("--all", action="store_true", help="every mutant")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    parser.add_argument("--check", action="store_true", help="only check that equivalent.txt names mutants that exist")
    parser.add_argument("--survivors", action="store_true", help="only those that survived the last run")
    arguments = parser.parse_args()
    modules = arguments.modules or list(OWN)
    for module in modules:
        if module not in OWN:
            parser.error(f"unknown module '{module}': {', '.join(OWN)}")
    if arguments.check:
        known = {mutant.key() for module in OWN for mutant in find_mutants(module)}
        stale = [key for key in read_equivalent() if key not in known]
        print("".join(f"no such mutant: {key}\n" for key in stale), end="")
        return 1 if stale else 0
    chosen = {}
    for module in modules:
        mutants = find_mutants(module)
        chosen[module] = mutants if arguments.all else sample(mutants, arguments.count, arguments.seed)
    record = ROOT / "build" / "mutate-survivors.txt"
    if arguments.survivors:
        last = set(record.read_text().splitlines())
        chosen = {module: [m for m in find_mutants(module) if m.key() in last] for module in modules}
    if arguments.list:
        for module in modules:
            print("\n".join(mutant.text() for mutant in chosen[module]))
        return 0
    names = list(dict.fromkeys(program for module in modules for program in OWN[module] + ALSO[module]))
    bench = Bench(names)
    equivalent, survivors, rows = read_equivalent(), [], []
    for module in modules:
        counts = {"killed": 0, "survived": 0, "equivalent": 0, "does not compile": 0}
        for mutant in chosen[module]:
            if mutant.key() in equivalent:
                verdict = outcome = "equivalent"
            else:
                verdict = bench.judge(mutant)
                outcome = verdict if verdict in counts else "killed"
            counts[outcome] += 1
            if outcome == "survived":
                survivors.append(mutant)
            print(f"{mutant.file}:{mutant.number}: {mutant.operator}: {verdict}", flush=True)
        rows.append((module, counts))
    record.write_text("".join(mutant.key() + "\n" for mutant in survivors))
    print()
    for mutant in survivors:
        print("survived:", mutant.text())
    print(f"\n{'module':10} {'killed':>8} {'survived':>9} {'equivalent':>11} {'no compile':>11} {'score':>7}")
    total = {}
    for module, counts in rows + [("all", total)]:
        judged = counts["killed"] + counts["survived"]
        share = f"{100 * counts['killed'] / judged:.1f}%" if judged else "-"
        print(f"{module:10} {counts['killed']:8} {counts['survived']:9} {counts['equivalent']:11} "
              f"{counts['does not compile']:11} {share:>7}")
        if counts is not total:
            for key, value in counts.items():
                total[key] = total.get(key, 0) + value
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
