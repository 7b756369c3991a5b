"""penstock.view: pictures are those of the tool, and notebooks show them."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import penstock
from conftest import Tool
from penstock import plan, schedule, view

SHAPE = ["--ranks", 3, "--microbatches", 5]


@pytest.fixture
def made() -> schedule.Schedule:
    return schedule.generate("1F1B", ranks=3, microbatches=5)


@pytest.mark.parametrize("picture", ["grid", "svg", "html", "trace"])
def test_pictures_equal_those_of_the_tool(tool: Tool, made: schedule.Schedule, picture: str) -> None:
    draw = getattr(view, picture)
    assert draw(made) == tool("schedule", "1F1B", *SHAPE, "--as", picture)
    assert draw(made.lower()) == tool("schedule", "1F1B", *SHAPE, "--lowered", "--as", picture)
    assert draw(plan.simulate(made)) == tool("simulate", "1F1B", *SHAPE, "--as", picture)


def test_grid_fits_its_width(made: schedule.Schedule) -> None:
    assert max(map(len, view.grid(made).splitlines())) > 40
    narrow = view.grid(made, width=40).splitlines()
    assert 20 < max(map(len, narrow)) <= 40
    assert "\x1b[" in view.grid(made, color=True) and "\x1b[" not in view.grid(made)
    with pytest.raises(penstock.UsageError, match="width"):
        view.grid(made, width=0)


def test_an_invalid_table_is_drawn_slot_by_slot() -> None:
    table = schedule.Schedule([["0B0", None, "0F0"]])
    assert not schedule.validate(table).valid
    titles = re.findall(r"<title>(.*?)</title>", view.svg(table))
    assert [title.split()[0] for title in titles] == ["0B0", "0F0"]


def test_timelines_share_a_picture(made: schedule.Schedule) -> None:
    fast = plan.simulate(made).timeline
    slow = plan.simulate(made, plan.Costs.uniform(3, forward=3.0)).timeline
    both = view.svg([fast, slow], unit="units")
    assert both.count("<title>0F0") == 2 and view.svg(fast, unit="units").count("<title>0F0") == 1
    assert " s</text>" in view.svg(fast) or " ms</text>" in view.svg(fast)
    for subject in (7, "1F1B", [], [fast, made]):
        with pytest.raises(TypeError, match="expected a Schedule"):
            view.svg(subject)  # type: ignore[arg-type]
    with pytest.raises(penstock.UsageError, match="unknown unit"):
        view.svg(fast, unit="hours")  # type: ignore[arg-type]


def test_files_have_the_format_of_their_names(made: schedule.Schedule, tmp_path: Path) -> None:
    for name, draw in (("a.svg", view.svg), ("a.html", view.html), ("a.json", view.trace), ("a.txt", view.grid)):
        view.save(made, tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8") == draw(made)
    assert json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    with pytest.raises(penstock.UsageError, match=r"format of .*a\.png' is unknown"):
        view.save(made, tmp_path / "a.png")


def test_notebooks_show_pictures(made: schedule.Schedule) -> None:
    subjects: list[Any] = [made, made.lower(), plan.simulate(made), plan.simulate(made).timeline]
    for subject in subjects:
        html = subject._repr_html_()
        found = re.fullmatch(r'<img style="max-width:100%" alt="(.*)" src="data:image/svg\+xml;base64,(.*)">', html)
        assert found is not None and "1F1B" in found[1]
        picture = base64.b64decode(found[2]).decode()
        assert ElementTree.fromstring(picture).tag.endswith("svg") and picture.count("<title>0F") == 5
        assert picture == view.svg(subject, unit="units")


def test_notebooks_do_not_show_huge_pictures() -> None:
    assert schedule.generate("GPipe", ranks=2, microbatches=5000)._repr_html_() is not None
    assert schedule.generate("GPipe", ranks=2, microbatches=5001)._repr_html_() is None
