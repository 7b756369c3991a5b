"""Types: mypy accepts the package in strict mode and the tests of it, and the stub describes the extension module."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

pytest.importorskip("mypy")


def mypy(module: str, *arguments: object, cache: Path) -> subprocess.CompletedProcess[str]:
    packages = Path(penstock.__file__).resolve().parent  # the links of a build directory point into the checkout
    environment = {**os.environ, "MYPYPATH": str(packages.parent), "MYPY_CACHE_DIR": str(cache)}
    line = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, env=environment, cwd=cache, check=False)


def test_the_package_is_strictly_typed(source: Path, tmp_path: Path) -> None:
    modules = [f"--module=penstock{name}" for name in ("", ".errors", ".schedule", ".plan", ".view", ".__main__", "._plan")]
    result = mypy("mypy", "--strict", "--config-file=", *modules, cache=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_part_on_torch_is_typed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    packages = [f"--{kind}=penstock.{name}" for kind, name in (("package", "pipelining"), ("module", "checkpoint"), ("module", "train"))]
    # Most of the classes of torch from which ours derive are not typed.
    result = mypy("mypy", "--strict", "--allow-untyped-calls", "--config-file=", *packages, cache=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_mistakes_of_users_are_found(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(
        "from penstock import plan, schedule, view\n"
        "made = schedule.generate('1F1B', ranks='2', microbatches=4)\n"
        "made.lower(send_mode='eager')\n"
        "made.tabel\n"
        "time: float = plan.simulate(made).step_time\n"
        "text: str = view.svg(made)\n"
        "kind: str = made.table[0][0].kind\n"
    )
    result = mypy("mypy", "--strict", "--config-file=", "user.py", cache=tmp_path)
    lines = [int(line.split(":")[1]) for line in result.stdout.splitlines() if ": error:" in line]
    assert lines == [2, 3, 4, 7], result.stdout


@pytest.mark.parametrize("name", ["_plan", "_torch"])
def test_the_stubs_describe_the_extension_modules(name: str, tmp_path: Path) -> None:
    if name == "_torch":
        pytest.importorskip("penstock._torch")
    allowed = tmp_path / "allowed.txt"
    # The metaclass of pybind11, and the methods that it adds to every class.
    allowed.write_text(
        f"penstock\\.{name}\\.[A-Z][A-Za-z]*\n"
        f"penstock\\.{name}\\..*\\.(__(getstate|setstate|new|init|module)__|_pybind11_.*)\n"
    )
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy-torch.*]\nfollow_imports = skip\n")  # it is large
    options = ["--allowlist", allowed, "--ignore-unused-allowlist", "--mypy-config-file", config]
    result = mypy("mypy.stubtest", f"penstock.{name}", *options, cache=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
