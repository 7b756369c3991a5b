"""Starts and observes runs of `penstock train`.

    run = penstock.train.start("model.pt2", data="data.safetensors", ranks=2, steps=200, batch=32)
    for step in run.steps():
        print(step["step"], step["loss"])
    run.wait()

The run is a separate process, without Python, so it does not share memory or the GIL with this program.
"""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from penstock.errors import RunError, UsageError

__all__ = ["Run", "RunError", "start"]

_KEPT_LINES = 200


class Run:
    """A run that was started. Leaving a `with` block stops it."""

    def __init__(self, arguments: list[str]) -> None:
        command = [sys.executable, "-m", "penstock", "train", *arguments, "--json"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._errors: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors.append(line)

    @property
    def running(self) -> bool:
        """Whether the run has not ended yet."""
        return self._process.poll() is None

    def events(self) -> Iterator[dict[str, Any]]:
        """Everything that the run prints, as it happens: steps, validations, and the summary at the end."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                yield json.loads(line)

    def steps(self) -> Iterator[dict[str, Any]]:
        """The logged steps: `step`, `loss`, `grad_norm`, `lr`, `seconds`, …"""
        for event in self.events():
            if "step" in event and "loss" in event:
                yield event

    def wait(self) -> None:
        """Waits for the end of the run. Raises RunError with the messages of the run if it failed."""
        for _ in self.events():  # a full pipe would stop the run
            pass
        code = self._process.wait()
        self._reader.join()
        if code != 0:
            raise RunError(f"the run ended with exit code {code}:\n{''.join(self._errors).rstrip()}")

    def stop(self, timeout: float = 60) -> None:
        """Asks the run to end, as Ctrl-C does, and kills it after the timeout."""
        if not self.running:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()


def start(model: str | os.PathLike[str] | None = None, /, **options: Any) -> Run:
    """Starts `penstock train` with these options: `checkpoint_every=50` is `--checkpoint-every 50`, `resume=True` is
    `--resume`. Without a model, it trains the built-in GPT. Paths may be `os.PathLike`.
    """
    arguments = [] if model is None else [os.fspath(model)]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            if value:
                arguments.append(flag)
        elif isinstance(value, (str, int, float, os.PathLike)):
            arguments += [flag, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
        else:
            raise UsageError(f"the option {name} is a {type(value).__name__}", hint="use a string, a number, a path or True")
    return Run(arguments)
