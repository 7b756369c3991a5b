"""The examples with both packages: only the import differs, and the losses are equal."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent / "examples"


def losses_of(program: pathlib.Path, ranks: int, *arguments: str) -> list[float]:
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--master-port=0"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", str(program), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"step \d+ loss (\S+)", done.stdout)
    assert found, done.stdout + done.stderr
    return [float(text) for text in found]


CASES = [
    ("stages.py", 2, ["InterleavedZeroBubble", "2"]),
    ("traced.py", 2, []),
    ("transformer.py", 4, ["ZBVZeroBubble"]),
]
MORE_CASES = [
    ("stages.py", 1, ["GPipe"]),
    ("stages.py", 2, ["1F1B"]),
    ("stages.py", 2, ["DualPipeV"]),
    ("stages.py", 3, ["GPipe"]),
    ("traced.py", 4, []),
    ("transformer.py", 4, ["Interleaved1F1B"]),
]


@pytest.mark.parametrize(("name", "ranks", "arguments"), MORE_CASES if os.environ.get("PENSTOCK_SLOW") else CASES)
def test_only_the_import_differs(name: str, ranks: int, arguments: list[str], tmp_path: pathlib.Path) -> None:
    ours = EXAMPLES / name
    text = ours.read_text()
    assert "from penstock.pipelining" in text
    theirs = tmp_path / name
    theirs.write_text(text.replace("penstock.pipelining", "torch.distributed.pipelining"))
    mine = losses_of(ours, ranks, *arguments)
    assert mine == pytest.approx(losses_of(theirs, ranks, *arguments), rel=2e-4)
    assert len(set(mine)) > 1  # parameters were updated


def test_penstock_run_starts_ranks_of_python() -> None:
    command = [sys.executable, "-m", "penstock", "run", "--ranks", "2", "--", sys.executable, "-W", "ignore"]
    done = subprocess.run(
        [*command, str(EXAMPLES / "stages.py"), "ZB1P"],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"step \d+ loss", done.stdout)) == 5, done.stdout + done.stderr
