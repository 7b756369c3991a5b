"""penstock.schedule: generating, lowering, validating, reading and writing schedules."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

import penstock
from conftest import ToolJson
from penstock import schedule
from penstock.schedule import Action, Program, Schedule

CROSSED = [["0F0", "0RECV_B0", "0B0", "0SEND_F0"], ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]]
"""A deadlock: rank 0 waits for a gradient before it sends the activation."""


def texts(table: list[list[Action | None]]) -> list[list[str]]:
    return [["" if action is None else str(action) for action in row] for row in table]


def test_action_has_the_fields_of_its_text() -> None:
    action = Action("1SEND_B3")
    assert (action.kind, action.stage, action.microbatch, action.peer) == ("SEND_B", 1, 3, 0)
    assert action.is_transfer and not action.is_compute
    assert (str(action), repr(action)) == ("1SEND_B3", "Action('1SEND_B3')")
    skip = Action("4RECV_F3<1")
    assert (skip.kind, skip.stage, skip.peer) == ("RECV_F", 4, 1)
    unshard = Action("4UNSHARD")
    assert (unshard.kind, unshard.stage, unshard.microbatch, unshard.peer) == ("UNSHARD", 4, None, None)
    assert unshard.parts == (unshard,)
    overlap = Action("(0F4;7B2)OVERLAP_F_B")
    assert overlap.is_compute and overlap.parts == (Action("0F4"), Action("7B2"))


def test_actions_compare_by_value() -> None:
    assert Action("2F0") == Action("2F0") != Action("2F1")
    assert len({Action("2F0"), Action("2F0"), Action("2B0")}) == 2
    assert Action("2F0") != "2F0"
    assert pickle.loads(pickle.dumps(Action("2F0"))) == copy.copy(Action("2F0")) == Action("2F0")
    with pytest.raises(AttributeError):
        Action("2F0").stage = 3  # type: ignore[misc]


@pytest.mark.parametrize("text", ["", "2X0", "F0", "2F", "99999F0"])
def test_text_that_is_not_an_action_is_a_parse_error(text: str) -> None:
    with pytest.raises(penstock.ParseError, match="action|stage"):
        Action(text)


def test_infos_match_the_tool(tool_json: ToolJson) -> None:
    assert [vars(info) for info in schedule.infos()] == tool_json("schedule", "--list")


@pytest.mark.parametrize("info", schedule.infos(), ids=lambda info: info.name)
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 1), (2, 4), (3, 9), (4, 8)])
def test_tables_match_the_tool(tool_json: ToolJson, info: schedule.ScheduleInfo, ranks: int, microbatches: int) -> None:
    stages_per_rank = info.only_stages_per_rank or 2
    if info.name == "DualPipeV" and microbatches < 2 * ranks:
        with pytest.raises(penstock.UsageError, match="microbatches"):
            schedule.generate(info.name, ranks=ranks, microbatches=microbatches)
        return
    made = schedule.generate(
        info.name.lower(), ranks=ranks, microbatches=microbatches, stages_per_rank=stages_per_rank
    )
    shape = ["--ranks", ranks, "--microbatches", microbatches, "--stages-per-rank", stages_per_rank]
    for lowered in (False, True):
        oracle = tool_json("schedule", info.name, *shape, *(["--lowered"] if lowered else []))
        subject = made.lower() if lowered else made
        assert texts(subject.table) == oracle["rows"]
        assert (subject.name, subject.ranks, subject.stages, subject.microbatches) == (
            oracle["name"],
            oracle["ranks"],
            oracle["stages"],
            oracle["microbatches"],
        )
        assert list(subject.stage_to_rank) == oracle["rank_of_stage"]
    for rank in range(ranks):
        row = schedule.generate_rank(
            info.name, rank, ranks=ranks, microbatches=microbatches, stages_per_rank=stages_per_rank
        )
        assert row == made.table[rank]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "1F1X"}, "unknown schedule"),
        ({"name": "auto"}, "Auto needs the costs"),
        ({"ranks": 0}, "ranks must be between 1 and"),
        ({"ranks": -(2**60)}, "ranks must be between 1 and"),
        ({"microbatches": 2**40}, "microbatches must be between 1 and"),
        ({"stages_per_rank": 2}, "1F1B"),
    ],
)
def test_bad_arguments_are_value_errors(arguments: dict[str, object], message: str) -> None:
    good: dict[str, object] = {"name": "1F1B", "ranks": 2, "microbatches": 4}
    with pytest.raises(ValueError, match=message) as caught:
        schedule.generate(**(good | arguments))  # type: ignore[arg-type]
    assert isinstance(caught.value, penstock.UsageError)
    assert caught.value.hint


def test_arguments_of_another_type_are_type_errors() -> None:
    with pytest.raises(TypeError):
        schedule.generate("1F1B", ranks="2", microbatches=4)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="row 1 of the table is not a sequence"):
        Schedule(["0F0"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="row 1, column 2: expected an Action, a text or None, not int"):
        Schedule([["0F0", 3]])  # type: ignore[list-item]


def test_schedule_from_rows_places_stages_and_counts_microbatches() -> None:
    table = [["0F0", Action("0F1"), None, "0B0", "0B1"], ["", "1F0", "1B0", "1F1", "1B1", None]]
    made = Schedule(table, name="mine")
    assert (made.name, made.ranks, made.stages, made.microbatches) == ("mine", 2, 2, 2)
    assert made.stage_to_rank == (0, 1)
    assert texts(made.table) == [["0F0", "0F1", "", "0B0", "0B1"], ["", "1F0", "1B0", "1F1", "1B1", ""]]
    other = Schedule(table, microbatches=5, stage_to_rank=[1, 0])
    assert (other.microbatches, other.stage_to_rank) == (5, (1, 0))
    assert not schedule.validate(other).valid


def test_fields_that_are_not_actions_are_located() -> None:
    with pytest.raises(penstock.ParseError, match=r"row 2, column 3: '1F' is not a valid action"):
        Schedule([["0F0"], ["1F0", None, "1F"]])
    with pytest.raises(penstock.ParseError, match="row 1, column 1: '0F0,0B0' is not"):
        Schedule([["0F0,0B0"]])
    with pytest.raises(penstock.UsageError, match="contains transfers") as caught:
        Schedule(CROSSED)
    assert "Program" in caught.value.hint


def test_program_from_rows_is_validated_for_its_send_mode() -> None:
    lowered = schedule.generate("1F1B", ranks=2, microbatches=3).lower(shard=False, reduce_grad=False)
    made = Program(lowered.table, name=lowered.name, send_mode="blocking")
    assert made.table == lowered.table
    assert (made.send_mode, lowered.send_mode) == ("blocking", "buffered")
    assert made != lowered
    assert made.compute_only() == schedule.generate("1F1B", ranks=2, microbatches=3)
    assert made.peak_in_flight == (2, 1)  # formula of 1F1B: min(m, p - r)
    with pytest.raises(penstock.ScheduleError, match="deadlock: rank 0, step 2, 0B0"):
        Program(CROSSED)


def test_lowering_options_select_the_passes() -> None:
    made = schedule.generate("ZB1P", ranks=2, microbatches=4)

    def kinds(**options: object) -> set[str]:
        program = made.lower(**options)  # type: ignore[arg-type]
        return {action.kind for row in program.table for action in row if action is not None}

    computations = {"F", "I", "W"}
    transfers = {"SEND_F", "RECV_F", "SEND_B", "RECV_B"}
    assert kinds(shard=False, reduce_grad=False) == computations | transfers
    assert kinds() == computations | transfers | {"UNSHARD", "RESHARD", "REDUCE_GRAD"}
    assert "B" in kinds(merge_backward=True)
    assert made.lower(send_mode="ordered").send_mode == "ordered"
    with pytest.raises(penstock.UsageError, match="unknown send mode 'eager'"):
        made.lower(send_mode="eager")  # type: ignore[arg-type]
    with pytest.raises(penstock.UsageError, match="max_active_stages must be between"):
        made.lower(max_active_stages=0)


def test_skips_add_transfers_between_stages_that_are_not_adjacent() -> None:
    made = schedule.generate("GPipe", ranks=3, microbatches=1)
    program = made.lower(skips=[(0, 2)], shard=False, reduce_grad=False)
    rows = [" ".join(row) for row in texts(program.table)]
    assert "0SEND_F0>2" in rows[0] and "2RECV_F0<0" in rows[2] and "2SEND_B0>0" in rows[2]
    assert program.skips == [(0, 2)]
    with pytest.raises(penstock.UsageError, match="skip"):
        made.lower(skips=[(2, 0)])


def test_idle_slots_show_where_ranks_wait() -> None:
    made = schedule.generate("GPipe", ranks=2, microbatches=2).with_idle_slots()
    assert texts(made.table) == [["0F0", "0F1", "", "", "0B0", "0B1"], ["", "1F0", "1F1", "1B0", "1B1"]]


def test_validation_of_a_valid_schedule() -> None:
    verdict = schedule.validate(schedule.generate("1F1B", ranks=4, microbatches=8))
    assert verdict.valid and all(verdict.safe(mode) for mode in ("buffered", "ordered", "blocking"))  # type: ignore[arg-type]
    assert verdict.findings == () and str(verdict) == "no problems"
    assert verdict.peak_in_flight == verdict.peak_in_flight_of_rank == (4, 3, 2, 1)


def test_validation_reports_every_problem() -> None:
    made = schedule.generate("GPipe", ranks=2, microbatches=2)
    assert not schedule.validate(made, max_in_flight=1).valid
    table = made.table
    table[0].append(Action("0F1"))
    del table[1][-1]
    verdict = schedule.validate(Schedule(table))
    assert not verdict.valid
    assert [str(one) for one in verdict.findings] == [
        "error: rank 0, step 4: 0F1 appears twice",
        "error: rank 1: stage 1 has no B or I for microbatch 1",
        "error: rank 1: stage 1 has no B or W for microbatch 1",
    ]
    assert str(verdict).splitlines() == [str(one) for one in verdict.findings]


def test_validation_of_lowered_rows_finds_deadlocks() -> None:
    verdict = schedule.validate(CROSSED)
    assert not verdict.safe("buffered")
    ring = [["0F0", "0SEND_F0", "0RECV_B0", "0B0"], ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]]
    only = schedule.validate(ring, send_mode="ordered")
    assert only.safe("ordered") and list(only.by_mode) == ["ordered"]
    with pytest.raises(KeyError):
        only.safe("buffered")
    with pytest.raises(TypeError, match="expected a Schedule"):
        schedule.validate(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["1F1B", "DualPipeV", "ZBVZeroBubble"])
def test_csv_files_round_trip(tmp_path: Path, name: str) -> None:
    made = schedule.generate(name, ranks=2, microbatches=4)
    made.write_csv(tmp_path / f"{name}.csv")
    assert (tmp_path / f"{name}.csv").read_text() == made.to_csv()
    read = schedule.read_csv(tmp_path / f"{name}.csv")
    assert isinstance(read, Schedule) and read == made
    program = made.lower(send_mode="ordered")
    program.write_csv(tmp_path / "lowered.csv")
    lowered = schedule.read_csv(str(tmp_path / "lowered.csv"), send_mode="ordered")
    assert isinstance(lowered, Program)
    assert (lowered.table, lowered.send_mode, lowered.name) == (program.table, "ordered", "lowered")


def test_errors_of_files(tmp_path: Path) -> None:
    with pytest.raises(OSError) as missing:
        schedule.read_csv(tmp_path / "none.csv")
    assert isinstance(missing.value, penstock.StorageError) and missing.value.errno == 2
    with pytest.raises(penstock.StorageError) as refused:
        schedule.generate("1F1B", ranks=1, microbatches=1).write_csv(tmp_path)
    assert refused.value.errno == 21
    (tmp_path / "bad.csv").write_text("0F0,0B\n")
    with pytest.raises(penstock.ParseError, match="row 1, column 2"):
        schedule.read_csv(tmp_path / "bad.csv")
    (tmp_path / "deadlock.csv").write_text("\n".join(",".join(row) for row in CROSSED) + "\n")
    with pytest.raises(penstock.ScheduleError):
        schedule.read_csv(tmp_path / "deadlock.csv")


def test_schedules_and_programs_survive_pickling() -> None:
    made = schedule.generate("ZBVZeroBubble", ranks=2, microbatches=4)
    program = made.lower(send_mode="ordered", skips=[(0, 3)])
    for subject in (made, program):
        again = pickle.loads(pickle.dumps(subject))
        assert type(again) is type(subject) and again == subject
        assert copy.deepcopy(subject) == subject
    assert made != program
    assert repr(made) == "Schedule('ZBVZeroBubble', ranks=2, stages=4, microbatches=4)"
    assert repr(program) == "Program('ZBVZeroBubble', ranks=2, stages=4, microbatches=4)"


def test_changing_a_table_does_not_change_the_schedule() -> None:
    made = schedule.generate("1F1B", ranks=2, microbatches=2)
    made.table[0].clear()
    assert len(made.table[0]) == 4
