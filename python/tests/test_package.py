"""The package: imports, the version, and the command-line tool in it."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import penstock


def python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs another Python with the packages of this one."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False)


def test_the_version_is_that_of_the_project(source: Path) -> None:
    found = re.search(r"project\(penstock VERSION ([0-9.]+)", (source / "CMakeLists.txt").read_text())
    assert found is not None and penstock.__version__ == found[1]


def test_the_license_is_that_of_the_project(source: Path) -> None:
    assert (source / "python" / "LICENSE").read_text() == (source / "LICENSE").read_text()


def test_torch_is_not_imported() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"  # an import of torch would raise ImportError
        "import penstock, penstock.schedule, penstock.plan, penstock.view\n"
        "print(penstock.plan.simulate(penstock.schedule.generate('GPipe', ranks=2, microbatches=3)).step_time)"
    )
    result = python("-c", script)
    assert (result.returncode, result.stdout) == (0, "12.0\n"), result.stderr


def test_the_module_runs_the_tool(tool: object) -> None:
    arguments = ("-m", "penstock", "schedule", "1F1B", "--ranks", "2", "--microbatches", "2")
    result = python(*arguments)
    expected = penstock.schedule.generate("1F1B", ranks=2, microbatches=2).to_csv()
    assert (result.returncode, result.stdout, result.stderr) == (0, expected, "")
    failed = python("-m", "penstock", "schedule", "1F1X", "--ranks", "2", "--microbatches", "2")
    assert failed.returncode == 2 and failed.stderr.startswith("penstock: error: unknown schedule '1F1X'")


def test_a_package_without_the_tool_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from penstock import __main__ as entry

    monkeypatch.setattr(entry, "_tool", lambda: Path("does/not/exist"))
    assert entry.main() == 1
    assert "built without the command-line tool" in capsys.readouterr().err


def test_the_tool_uses_the_torch_of_this_python(tool: object, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('torch was imported')")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    result = python("-m", "penstock", "doctor", PYTHONPATH=path, PENSTOCK_TORCH="")
    # The stand-in has no libtorch. The message names its directory, unless this is a build without libtorch.
    if "cannot be started" not in result.stderr:
        assert f"PENSTOCK_TORCH is '{tmp_path / 'torch'}'" in result.stderr
    assert result.returncode == 1 and "torch was imported" not in result.stderr


def _undocumented(module: ModuleType) -> list[str]:
    """The public functions, classes, methods and properties of a module without a docstring."""
    found = [] if module.__doc__ else [module.__name__]
    for name in module.__all__:
        item = getattr(module, name)
        if name.startswith("_") or not callable(item) or not getattr(item, "__module__", "").startswith("penstock"):
            continue
        members = {f".{m}": value for m, value in vars(item).items() if not m.startswith("_")} if isinstance(item, type) else {}
        for suffix, value in {"": item, **members}.items():
            value = getattr(value, "__func__", value)  # a static method
            if (callable(value) or isinstance(value, property)) and not _is_documented(item, suffix[1:], value):
                found.append(f"{module.__name__}.{name}{suffix}")
    return found


def _is_documented(owner: object, member: str, value: object) -> bool:
    """Whether it has a docstring, or is a method of PyTorch's class that is derived from, which has one."""
    bases = owner.__mro__[1:] if isinstance(owner, type) and member else ()
    return any(getattr(each, "__doc__", None) for each in (value, *(vars(base).get(member) for base in bases if member in vars(base))))


def test_docstrings_exist_on_everything_public() -> None:
    for module in (penstock.schedule, penstock.plan, penstock.view, penstock.errors):
        assert _undocumented(module) == []


def test_docstrings_exist_on_the_part_on_torch() -> None:
    pytest.importorskip("penstock._torch")
    for name in ("pipelining", "pipelining.schedules", "pipelining.stage", "pipelining._IR", "pipelining.microbatch", "checkpoint", "train"):
        assert _undocumented(importlib.import_module(f"penstock.{name}")) == []


def test_examples_in_docstrings_run() -> None:
    import doctest

    for module in (penstock.schedule, penstock.plan, penstock.view):
        results = doctest.testmod(module)
        assert results.attempted > 0 and results.failed == 0
