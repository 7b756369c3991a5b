"""Runs the command-line tool that is a part of this package: `python -m penstock`, or `penstock`."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path


def _tool() -> Path:
    return Path(__file__).parent / "bin" / "penstock"


def _torch() -> str | None:
    """The directory of the torch package of this Python, which is not imported."""
    spec = importlib.util.find_spec("torch")
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else None


def main() -> int:
    """Replaces this process with the tool. Returns an exit code only if the package has no tool."""
    tool = _tool()
    if not tool.exists():
        print(
            "penstock: error: this package was built without the command-line tool\n"
            "hint: the tool needs the headers of CLI11 and toml++ (on Debian: libcli11-dev, libtomlplusplus-dev); "
            "install them, then install the package again",
            file=sys.stderr,
        )
        return 1
    # Commands that run models start penstock-torch, which uses the libtorch of this Python.
    torch = None if os.environ.get("PENSTOCK_TORCH") else _torch()
    if torch:
        os.environ["PENSTOCK_TORCH"] = torch
    sys.stdout.flush()
    os.execv(tool, [str(tool), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
