"""Runs ninja and reports progress: steps done, elapsed time and an estimate of the time left.

Usage: build_progress.py NINJA_ARGUMENT…

On a terminal the report is one line that is updated in place; elsewhere it is one line every 15 seconds. Messages of the compiler
are passed on. The exit code is ninja's.
"""

import os
import re
import subprocess
import sys
import time

# Typical seconds per build step on one core. Only their ratios matter.
WEIGHTS = [
    (re.compile(r"\.gch$|\.pch$"), 40.0),  # a precompiled header of libtorch
    (re.compile(r"^Building .*(penstock_plan|penstock_tool|base_|schedule_|plan_|view_|project_).*/Unity/"), 6.0),
    (re.compile(r"/(tests|examples|bench)/.*/Unity/"), 8.0),
    (re.compile(r"/Unity/"), 20.0),  # up to twelve sources on libtorch
    (re.compile(r"^Building .*penstock_cli"), 2.0),
    (re.compile(r"^Building "), 6.0),
]
OTHER = 0.5
STATUS = re.compile(r"^\x02(\d+)/(\d+)\x03 ?(.*)")
PAUSE = 15.0
ENVIRONMENT = {**os.environ, "NINJA_STATUS": "\x02%f/%t\x03 "}


def weight(step):
    return next((seconds for pattern, seconds in WEIGHTS if pattern.search(step)), OTHER)


def planned(arguments):
    """Returns the total weight of the steps that the build would run."""
    listing = subprocess.run(["ninja", "-n", *arguments], capture_output=True, text=True, env=ENVIRONMENT)
    return sum(weight(match.group(3)) for match in map(STATUS.match, listing.stdout.splitlines()) if match)


def as_time(seconds):
    minutes, seconds = divmod(int(seconds + 0.5), 60)
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


class Report:
    def __init__(self, total):
        self.total = total
        self.done = 0.0
        self.start = time.monotonic()
        self.last = self.start
        self.live = sys.stderr.isatty()
        self.shown = False

    def step(self, finished, steps, name):
        now = time.monotonic()
        self.done += weight(name)
        if not self.live and now - self.last < PAUSE:
            return
        self.last = now
        elapsed = now - self.start
        text = f"dev: step {finished} of {steps}, {as_time(elapsed)}"
        # The plan is too short if CMake runs again and adds steps.
        fraction = self.done / self.total if self.done < self.total else finished / steps
        if elapsed > 5 and fraction < 1:
            text += f", about {as_time(elapsed * (1 - fraction) / fraction)} left"
        self.clear()
        sys.stderr.write(text if self.live else text + "\n")
        sys.stderr.flush()
        self.shown = self.live

    def clear(self):
        if self.shown:
            sys.stderr.write("\r\033[K")
            self.shown = False

    def message(self, line):
        self.clear()
        sys.stderr.write(line)


def main(arguments):
    report = Report(planned(arguments))
    ninja = subprocess.Popen(
        ["ninja", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=ENVIRONMENT
    )
    steps = 0
    try:
        for line in ninja.stdout:
            match = STATUS.match(line)
            if match:
                steps = int(match.group(1))
                report.step(steps, int(match.group(2)), match.group(3))
            elif line.strip() and line != "ninja: no work to do.\n" and not line.startswith("ninja: Entering directory"):
                report.message(line)
        code = ninja.wait()
    except KeyboardInterrupt:
        code = ninja.wait() or 130
    report.clear()
    if code == 0 and steps:
        sys.stderr.write(f"dev: built in {as_time(time.monotonic() - report.start)}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
