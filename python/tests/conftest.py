"""Fixtures of the tests of the Python package."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock

Tool = Callable[..., str]
ToolJson = Callable[..., Any]


@pytest.fixture(scope="session")
def tool() -> Tool:
    """Runs the command-line tool and returns its output: the oracle for bindings of what the tool does too."""
    program = Path(penstock.__file__).parent / "bin" / "penstock"
    if not program.exists():
        pytest.skip("the command-line tool was not built")

    def run(*arguments: object) -> str:
        line = [str(program), *map(str, arguments)]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout

    return run


@pytest.fixture(scope="session")
def tool_json(tool: Tool) -> ToolJson:
    """Runs a command of the tool with --json."""
    return lambda *arguments: json.loads(tool(*arguments, "--json"))


@pytest.fixture(scope="session")
def source() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parents[2]
