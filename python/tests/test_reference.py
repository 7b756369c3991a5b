"""Schedules next to those of torch.distributed.pipelining: tables, lowered rows, CSV files."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock import schedule
from penstock.schedule import Program, Schedule

torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules", reason="needs torch")

SHAPES = [(1, 1, 1), (2, 1, 4), (2, 2, 4), (3, 2, 6), (4, 1, 8), (4, 2, 8), (4, 3, 12)]
STYLES = {"ZBVZeroBubble": "v", "DualPipeV": "v"}


@pytest.fixture(scope="module")
def reference(source: Path) -> ModuleType:
    """The script that computes the tables of the reference."""
    spec = importlib.util.spec_from_file_location("make_golden", source / "tests/schedule/golden/make_golden.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table_of(reference: ModuleType, name: str, ranks: int, per_rank: int, microbatches: int) -> Any:
    if name == "1F1B":
        return reference.one_f_one_b(ranks, microbatches)
    return reference.compute(name, ranks, per_rank, microbatches)


def rows(table: Any) -> list[list[str]]:
    """Texts of the actions without idle slots at the ends of rows."""
    lists = [["" if action is None else str(action) for action in row] for row in table]
    for row in lists:
        while row and not row[-1]:
            row.pop()
    return lists


@pytest.mark.parametrize(
    "name",
    ["GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"],
)
def test_tables_equal_those_of_the_reference(reference: ModuleType, name: str) -> None:
    only = next(info for info in schedule.infos() if info.name == name).only_stages_per_rank
    compared = 0
    for ranks, per_rank, microbatches in SHAPES:
        if only not in (None, per_rank):
            continue
        oracle = table_of(reference, name, ranks, per_rank, microbatches)
        if oracle is None:
            continue
        made = schedule.generate(name, ranks=ranks, microbatches=microbatches, stages_per_rank=per_rank)
        assert rows(made.table) == rows(oracle[rank] for rank in range(ranks))
        mapping = torch_schedules.generate_stage_to_rank_mapping(ranks, ranks * per_rank, STYLES.get(name, "loop"))
        assert dict(enumerate(made.stage_to_rank)) == mapping
        lowered = reference.lower(oracle, ranks * per_rank, mapping, microbatches)
        assert rows(made.lower().table) == rows(lowered[rank] for rank in range(ranks))
        compared += 1
    assert compared >= 3


@pytest.mark.parametrize("name", ["Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"])
def test_files_are_interchangeable(reference: ModuleType, tmp_path: Path, name: str) -> None:
    oracle = table_of(reference, name, 2, 2, 4)
    with open(tmp_path / "reference.csv", "w", newline="") as file:
        csv.writer(file).writerows(oracle[rank] for rank in range(2))
    read = schedule.read_csv(tmp_path / "reference.csv")
    assert isinstance(read, Schedule)
    assert rows(read.table) == rows(oracle[rank] for rank in range(2))

    schedule.generate(name, ranks=2, microbatches=4, stages_per_rank=2).lower().write_csv(tmp_path / "penstock.csv")
    with open(tmp_path / "penstock.csv", newline="") as file:
        parsed = [[torch_schedules._Action.from_str(field) for field in row] for row in csv.reader(file)]
    again = schedule.read_csv(tmp_path / "penstock.csv")
    assert isinstance(again, Program)
    assert rows(parsed) == rows(again.table)
