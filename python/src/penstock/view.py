"""Pictures of schedules, programs, simulations and timelines. Does not need torch.

>>> from penstock import schedule, view
>>> print(view.grid(schedule.generate("1F1B", ranks=2, microbatches=2)))  # doctest: +SKIP

A schedule is drawn as `penstock schedule` draws it: simulated with equal costs, or slot by slot if it is not valid. A
notebook shows these objects without a call.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Union

from penstock import _plan
from penstock._plan import Program, Schedule, Simulation, Timeline
from penstock.errors import UsageError
from penstock.plan import TimeUnit

Drawable = Union[Schedule, Program, Simulation, Timeline, Sequence[Timeline]]
"""What can be drawn. Several timelines of the same program, such as predicted and measured, share a time axis."""


def grid(subject: Drawable, *, color: bool = False, width: int | None = None, unit: TimeUnit = "seconds") -> str:
    """Rows of cells for a terminal, with ANSI colors or a letter in each cell.

    Steps that are longer than `width` columns are scaled down. `unit` is the unit of timelines.
    """
    return _plan.grid(subject, unit, color, width)


def svg(subject: Drawable, *, unit: TimeUnit = "seconds") -> str:
    """A self-contained figure. `unit` is the unit of timelines."""
    return _plan.svg(subject, unit)


def html(subject: Drawable, *, unit: TimeUnit = "seconds") -> str:
    """A self-contained page with zoom, times on hover, and memory. `unit` is the unit of timelines."""
    return _plan.html(subject, unit)


def trace(subject: Drawable, *, unit: TimeUnit = "seconds") -> str:
    """JSON in the trace format of Chrome, which Perfetto also reads. `unit` is the unit of timelines."""
    return _plan.trace(subject, unit)


def save(subject: Drawable, path: str | os.PathLike[str], *, unit: TimeUnit = "seconds") -> None:
    """Writes a picture to a file: .svg, .html, .json (a trace) or .txt (a grid)."""
    formats = {".svg": svg, ".html": html, ".json": trace, ".txt": grid}
    draw = formats.get(Path(path).suffix.lower())
    if draw is None:
        raise UsageError(
            f"the format of {os.fspath(path)!r} is unknown", hint="use a name that ends in " + ", ".join(formats)
        )
    Path(path).write_text(draw(subject, unit=unit), encoding="utf-8")


def _notebook() -> ModuleType | None:
    """`IPython.display` if the program runs in IPython."""
    try:
        ipython = importlib.import_module("IPython")  # not by name: its types differ between versions
    except ImportError:
        return None
    return importlib.import_module("IPython.display") if ipython.get_ipython() is not None else None


def show(subject: Drawable, *, unit: TimeUnit = "seconds") -> None:
    """Shows a picture: in a notebook as output of the cell, else as a page in the browser."""
    notebook = _notebook()
    if notebook is not None:
        notebook.display(notebook.HTML(svg(subject, unit=unit)))
        return
    with tempfile.NamedTemporaryFile("w", prefix="penstock-", suffix=".html", delete=False, encoding="utf-8") as file:
        file.write(html(subject, unit=unit))
    if not webbrowser.open(Path(file.name).as_uri()):
        print(f"there is no browser to open {file.name}")


__all__ = ["Drawable", "grid", "html", "save", "show", "svg", "trace"]
