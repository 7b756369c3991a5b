"""The notebook-style example runs, and says what it should."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

TOUR = pathlib.Path(__file__).resolve().parent.parent / "examples" / "tour.py"


def test_the_tour() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", str(TOUR)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    bubbles = {name: float(share) for name, share in re.findall(r"(\S+) +step time.*bubble ([\d.]+)%", done.stdout)}
    assert bubbles["ZB1P"] < bubbles["1F1B"] <= bubbles["GPipe"], done.stdout
    assert "1RECV_F0" in done.stdout or "SEND_F" in done.stdout, done.stdout
    first, last = re.findall(r"loss ([\d.]+) -> ([\d.]+)", done.stdout)[0]
    assert float(last) < 0.5 * float(first), done.stdout
