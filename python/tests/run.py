"""Runs one test file with pytest, for ctest: exits with 77 (skipped) if pytest is missing or if a test was skipped."""

from __future__ import annotations

import sys

SKIPPED = 77

try:
    import pytest
except ImportError:
    print(f"skipped: {sys.executable} has no pytest")
    sys.exit(SKIPPED)


class Skips:
    """Counts the skipped tests and files."""

    def __init__(self) -> None:
        self.count = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.count += report.skipped and not hasattr(report, "wasxfail")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.count += report.skipped


if __name__ == "__main__":
    skips = Skips()
    code = pytest.main(["-ra", "-q", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[skips])
    sys.exit(SKIPPED if skips.count and code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else int(code))
