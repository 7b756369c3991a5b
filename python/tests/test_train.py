"""Runs of the tool, started from Python."""

from __future__ import annotations

import pathlib

import pytest
from penstock import train


def test_steps_are_observed(tmp_path: pathlib.Path) -> None:
    run = train.start(ranks=2, steps=3, log_json=tmp_path / "log.json")
    steps = list(run.steps())
    run.wait()
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert all(step["loss"] > 0 for step in steps)
    assert len((tmp_path / "log.json").read_text().splitlines()) == 3


def test_a_failed_run_raises() -> None:
    run = train.start("/nonexistent.pt2", data="/nonexistent.safetensors")
    with pytest.raises(train.RunError, match="nonexistent"):
        run.wait()


def test_bad_options_are_refused() -> None:
    with pytest.raises(ValueError, match="schedule"):
        train.start(schedule=["1F1B"])


def test_leaving_the_block_stops_the_run() -> None:
    with train.start(ranks=2, steps=100000) as run:
        next(run.steps())
        assert run.running
    assert not run.running
