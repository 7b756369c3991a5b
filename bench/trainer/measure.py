"""The trainer's own work per step, the pause for a checkpoint of 100 M parameters, and checkpoints next to dd."""
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import tempfile

from harness import OUTPUT, THREADS, BenchError, at_least, at_most

MEBIBYTES = 1024  # of the checkpoint, and of the file that dd writes


def bytes_per_second(*arguments):
    """What dd reports."""
    got = subprocess.run(["dd", *arguments], capture_output=True, text=True, env={"LC_ALL": "C"})
    found = re.search(r"(\d+) bytes .* copied, ([\d.e+-]+) s", got.stderr)
    if got.returncode != 0 or not found:
        raise BenchError(f"dd {' '.join(arguments)}: {got.stderr}")
    return int(found[1]) / float(found[2])


def dd(directory):
    """Writes a file to disk, drops it from the page cache, and reads it."""
    file = directory / "dd"
    written = bytes_per_second("if=/dev/zero", f"of={file}", "bs=1M", f"count={MEBIBYTES}", "conv=fsync")
    subprocess.run(["dd", f"if={file}", "iflag=nocache", "count=0"], capture_output=True)
    read = bytes_per_second(f"if={file}", "of=/dev/null", "bs=1M")
    file.unlink()
    return {"write_bytes_per_s": written, "read_bytes_per_s": read}


def storage(bench, directory):
    rounds = {"ours": [], "dd": []}
    for index in range(bench.rounds):
        runs = [("dd", lambda: dd(directory)),
                ("ours", lambda: bench.run(bench.program("trainer_bench", "storage", directory / "run")))]
        for who, run in runs if index % 2 == 0 else reversed(runs):
            rounds[who].append(run())
            shutil.rmtree(directory / "run", ignore_errors=True)
    for what in ("write", "read"):
        rate = lambda who: [run[f"{what}_bytes_per_s"] / 2**20 for run in rounds[who]]
        bench.compare(f"{what} a checkpoint of 1 GiB, next to dd", rate("ours"), rate("dd"), "MiB/s", at_least(0.7),
                      higher_is_better=True)


def forecast(bench, directory):
    """The step of the default run that a dry run predicts, relative to the measured one."""
    ratios, log = [], directory / "log.jsonl"
    for _ in range(bench.rounds):
        predicted = bench.run(bench.tool("train", "--ranks", 2, "--dry-run", "--json"))["prediction"]["step_time"]
        command = bench.tool("train", "--ranks", 2, "--steps", 10 if bench.quick else 40, "--log-json", log)
        got = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": str(THREADS)})
        if got.returncode != 0:
            raise BenchError(f"{' '.join(command)}: {got.stderr}")
        steps = [json.loads(line)["seconds"] for line in log.read_text().splitlines()]
        ratios.append(predicted / statistics.median(steps[5:]))
        log.unlink()
    bench.value("default run, step time predicted by --dry-run / measured", ratios, "")


def measure(bench):
    steps = bench.alternate({"ours": bench.program("trainer_bench", "step", 20 if bench.quick else 60)})["ours"]
    bench.value("default run, work outside the pipeline step", [100 * run["outside_s"] / run["step_s"] for run in steps],
                "%", at_most(2))
    OUTPUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=OUTPUT) as name:
        directory = pathlib.Path(name)
        forecast(bench, directory)
        run = bench.run(bench.program("trainer_bench", "pause", directory / "pause"))
        shutil.rmtree(directory / "pause")
        bench.value("pause to save 100 M parameters and their states / step", [100 * run["pause_s"] / run["step_s"]], "%",
                    at_most(5))
        bench.value("the same, first save of a run", [100 * run["first_pause_s"] / run["step_s"]], "%")
        bench.value("step while the checkpoint is written / step", [run["next_step_s"] / run["step_s"]], "")
        storage(bench, directory)
