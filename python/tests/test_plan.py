"""penstock.plan: the simulator, the partitioner and the planner. The oracles are the tool and formulas."""

from __future__ import annotations

import dataclasses
import itertools
import math
import pickle
from array import array
from pathlib import Path
from typing import Any

import pytest

import penstock
from conftest import ToolJson
from penstock import plan, schedule
from penstock.plan import Costs, Layer, Link, StageCosts

COST_FILE = """
overlap = 0.25
[link]
latency = 0.001
bandwidth = 1e9
[[links]]
from = 0
to = 1
latency = 0.002
[[skips]]
from = 0
to = 2
bytes = 5000
"""


def stage(index: int) -> StageCosts:
    return StageCosts(
        forward=0.010 + 0.001 * index,
        input=0.012,
        weight=0.009,
        backward=0.020 if index == 1 else None,
        unshard=0.001,
        reshard=0.0005,
        reduce_grad=0.003,
        activation_bytes=1000 * (index + 1),
        weight_bytes=300,
        output_bytes=64_000,
        input_bytes=10,
        parameter_bytes=5000,
        gradient_bytes=2500,
        optimizer_bytes=700,
        unsharded_bytes=90,
        recompute=index == 2,
    )


def toml(kind: str, items: list[StageCosts], names: list[str] | None = None) -> str:
    """Tables of a cost file."""
    text = ""
    for index, item in enumerate(items):
        text += f"[[{kind}]]\n" + (f'name = "{names[index]}"\n' if names else "")
        for key, value in vars(item).items():
            if value is not None:
                text += f"{key} = {str(value).lower()}\n"
    return text


@pytest.fixture
def costs() -> Costs:
    return Costs(
        stages=tuple(stage(index) for index in range(4)),
        link=Link(0.001, 1e9),
        links={(0, 1): Link(0.002, 1e9)},
        skip_bytes={(0, 2): 5000},
        overlap=0.25,
    )


@pytest.fixture
def cost_file(tmp_path: Path, costs: Costs) -> Path:
    """The file with the same costs."""
    path = tmp_path / "costs.toml"
    path.write_text(COST_FILE + toml("stages", list(costs.stages)))
    return path


def as_json(simulation: plan.Simulation, program: schedule.Program) -> dict[str, Any]:
    """The layout of the tool's JSON."""
    return {
        "name": program.name,
        "ranks": program.ranks,
        "stages": program.stages,
        "microbatches": program.microbatches,
        "send_mode": program.send_mode,
        "step_time": simulation.step_time,
        "lower_bound": simulation.lower_bound,
        "bubble": simulation.bubble,
        "own_bubble": simulation.own_bubble,
        "peak_memory": simulation.peak_memory,
        "per_rank": [
            {key: getattr(rank, key) for key in ("busy", "bubble", "own_bubble", "peak_memory", "peak_at")}
            for rank in simulation.ranks
        ],
        "critical_path": [
            {"rank": one.rank, "action": str(one.action), "start": one.start, "end": one.end}
            for one in simulation.critical_path
        ],
    }


@pytest.mark.parametrize("name", ["1F1B", "GPipe", "ZB1P", "ZBVZeroBubble", "DualPipeV", "ForwardOnly"])
def test_simulation_without_costs_matches_the_tool(tool_json: ToolJson, name: str) -> None:
    made = schedule.generate(name, ranks=3, microbatches=7)
    simulation = plan.simulate(made)
    assert simulation.unit == "units"
    (oracle,) = tool_json("simulate", name, "--ranks", 3, "--microbatches", 7)
    assert as_json(simulation, made.lower()) == oracle


@pytest.mark.parametrize("send_mode", ["buffered", "ordered", "blocking"])
@pytest.mark.parametrize(("name", "ranks", "per_rank"), [("1F1B", 4, 1), ("Interleaved1F1B", 2, 2), ("DualPipeV", 2, 2)])
def test_simulation_with_costs_matches_the_tool(
    tool_json: ToolJson,
    costs: Costs,
    cost_file: Path,
    send_mode: schedule.SendMode,
    name: str,
    ranks: int,
    per_rank: int,
) -> None:
    made = schedule.generate(name, ranks=ranks, microbatches=6, stages_per_rank=per_rank)
    program = made.lower(send_mode=send_mode, skips=[(0, 2)])
    simulation = plan.simulate(program, costs)
    assert simulation.unit == "seconds"
    shape = ["--ranks", ranks, "--stages-per-rank", per_rank, "--microbatches", 6, "--send-mode", send_mode]
    (oracle,) = tool_json("simulate", name, *shape, "--costs", cost_file)
    assert as_json(simulation, program) == oracle
    assert as_json(plan.simulate(made, costs, send_mode=send_mode), program) == oracle


@pytest.mark.parametrize(("ranks", "microbatches"), list(itertools.product((1, 2, 5), (1, 4, 12))))
def test_step_time_and_bubble_of_1f1b_follow_the_formulas(ranks: int, microbatches: int) -> None:
    forward, backward = 2.0, 5.0
    costs = Costs.uniform(ranks, forward=forward, backward=backward)
    simulation = plan.simulate(schedule.generate("1F1B", ranks=ranks, microbatches=microbatches), costs)
    assert simulation.step_time == (microbatches + ranks - 1) * (forward + backward)
    assert simulation.bubble == pytest.approx((ranks - 1) / (microbatches + ranks - 1))
    assert [rank.peak_memory for rank in simulation.ranks] == [min(microbatches, ranks - r) for r in range(ranks)]


def test_timeline_is_a_table_of_columns(tool_json: ToolJson, tool: Any) -> None:
    simulation = plan.simulate(schedule.generate("ZB1P", ranks=2, microbatches=3))
    timeline = simulation.timeline
    assert (timeline.name, timeline.source, timeline.ranks, timeline.stages) == ("ZB1P", "predicted", 2, 2)
    assert (timeline.microbatches, timeline.stage_to_rank, timeline.makespan) == (3, (0, 1), simulation.step_time)
    oracle = [line.split(",") for line in tool("simulate", "ZB1P", "--ranks", 2, "--microbatches", 3, "--as", "csv").split()]
    columns = zip(timeline.rank, map(str, timeline.action), timeline.start, timeline.end, strict=True)
    expected = [(int(rank), action, float(start), float(end)) for rank, action, start, end in oracle[1:]]
    assert list(columns) == expected
    assert timeline.report() == simulation.ranks


def test_columns_have_the_buffer_protocol() -> None:
    timeline = plan.simulate(schedule.generate("1F1B", ranks=2, microbatches=3)).timeline
    assert isinstance(timeline.start, array)
    assert (timeline.rank.typecode, timeline.start.typecode, timeline.end.typecode) == ("i", "d", "d")
    assert memoryview(timeline.end).shape == (len(timeline.action),)
    time, used = timeline.memory(0)
    assert list(time) == sorted(time) and max(used) == 2
    numpy = pytest.importorskip("numpy")
    assert numpy.asarray(timeline.end).dtype == numpy.float64
    assert float(numpy.asarray(timeline.end).max()) == timeline.makespan
    with pytest.raises(IndexError):
        timeline.memory(2)


def test_samples_and_critical_path_are_optional() -> None:
    made = schedule.generate("1F1B", ranks=2, microbatches=3)
    full = plan.simulate(made)
    assert full.critical_path[0].start == 0 and full.critical_path[-1].end == full.step_time
    assert all(a.end <= b.end for a, b in itertools.pairwise(full.critical_path))
    bare = plan.simulate(made, memory_samples=False, critical_path=False)
    assert bare.critical_path == () and list(bare.timeline.memory(0)[0]) == []
    assert bare.peak_memory == full.peak_memory == 2


@pytest.mark.parametrize(
    ("costs", "error", "message"),
    [
        (Costs.uniform(3), penstock.UsageError, "stages"),
        (Costs.uniform(2, forward=-1), penstock.UsageError, "forward|negative"),
        (Costs.uniform(2, forward=math.nan), penstock.UsageError, "finite|number|negative"),
        (Costs.uniform(2, activation_bytes=-1), penstock.UsageError, "activation_bytes must be a non-negative integer"),
        (Costs.uniform(2, activation_bytes=1.5), TypeError, "StageCosts.activation_bytes must be .* not 1.5"),
        (Costs.uniform(2, forward="1"), TypeError, "StageCosts.forward must be a number, not '1'"),
        (Costs(stages=(StageCosts(), 1)), TypeError, "expected a StageCosts, not int"),  # type: ignore[arg-type]
        (Costs(stages=(StageCosts(),) * 2, link=Link(0, 0)), penstock.UsageError, "bandwidth"),
        (Costs(stages=(StageCosts(),) * 2, links={1: Link()}), TypeError, "pair of integers, not 1"),  # type: ignore[dict-item]
        (Costs(stages=(StageCosts(),) * 2, overlap=2), penstock.UsageError, "overlap"),
        (Costs(stages=(StageCosts(),) * 2, unit="hours"), penstock.UsageError, "unknown unit"),  # type: ignore[arg-type]
        ("cheap", TypeError, "expected a Costs, not str"),
    ],
)
def test_bad_costs_are_errors(costs: Any, error: type[Exception], message: str) -> None:
    program = schedule.generate("1F1B", ranks=2, microbatches=2).lower()
    with pytest.raises(error, match=message):
        plan.simulate(program, costs)


def test_costs_are_checked_on_request() -> None:
    Costs.uniform(4).check(4, microbatches=8)
    with pytest.raises(penstock.UsageError, match="stages"):
        Costs.uniform(4).check(3)


def test_send_mode_of_a_program_cannot_be_changed() -> None:
    program = schedule.generate("1F1B", ranks=2, microbatches=2).lower()
    assert plan.simulate(program, send_mode="buffered").step_time == plan.simulate(program).step_time
    with pytest.raises(penstock.UsageError, match="validated for buffered sends, not for ordered"):
        plan.simulate(program, send_mode="ordered")


def test_costs_are_immutable_values() -> None:
    costs = Costs.uniform(2, forward=3.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        costs.stages[0].forward = 4.0  # type: ignore[misc]
    slower = dataclasses.replace(costs, stages=[dataclasses.replace(one, forward=4.0) for one in costs.stages])
    assert slower.stages == (StageCosts(forward=4.0),) * 2 and costs.stages[0].forward == 3.0
    assert pickle.loads(pickle.dumps(slower)) == slower != costs


def test_auto_is_at_least_as_fast_as_every_schedule() -> None:
    costs = Costs(stages=tuple(StageCosts(forward=1 + s % 2, input=1, weight=1) for s in range(3)))
    found = plan.auto(ranks=3, microbatches=6, costs=costs)
    assert schedule.validate(found.schedule).valid
    assert plan.simulate(found.schedule, costs).step_time == pytest.approx(found.step_time)
    named = [schedule.generate(name, ranks=3, microbatches=6) for name in ("GPipe", "1F1B", "ZB1P", "ZB2P")]
    best = min(plan.simulate(one, costs).step_time for one in named)
    assert found.best_named in schedule.names() and found.best_named_time is not None
    assert found.lower_bound <= found.step_time <= found.best_named_time <= best
    with pytest.raises(penstock.ScheduleError, match="memory"):
        plan.auto(ranks=3, microbatches=6, costs=costs, memory_cap=0)
    with pytest.raises(penstock.UsageError, match="effort"):
        plan.auto(ranks=3, microbatches=6, costs=costs, effort=-1)


def layers(times: list[float]) -> list[Layer]:
    return [
        Layer(f"layer.{i}", StageCosts(forward=time, input=time, weight=time, activation_bytes=10, parameter_bytes=7))
        for i, time in enumerate(times)
    ]


def test_partition_is_the_best_of_all() -> None:
    model = layers([5, 1, 1, 4, 2, 2, 6])
    best = plan.partition(model, stage_to_rank=[0, 1, 2])
    assert best is not None and best.exact
    slowest = min(
        max(
            3 * sum(layer.costs.forward for layer in model[begin:end])
            for begin, end in itertools.pairwise((0, a, b, len(model)))
        )
        for a, b in itertools.combinations(range(1, len(model)), 2)
    )
    assert best.slowest == slowest
    assert best.first_layer[0] == 0 and best.first_layer[-1] == len(model) and len(best.stages) == 3
    begin, end = best.first_layer[:2]
    assert best.stages[0] == plan.merge_layers(model[begin:end])
    assert best.fullest == max(best.rank_memory)
    assert plan.partition(model, stage_to_rank=[0, 1, 2], memory_cap=1) is None
    with pytest.raises(penstock.UsageError, match="layers"):
        plan.partition(model[:2], stage_to_rank=[0, 1, 2])


def plans_as_json(result: plan.PlanResult) -> list[dict[str, Any]]:
    """The layout of the tool's JSON."""
    entries = []
    for one in result.plans:
        entry: dict[str, Any] = {
            key: getattr(one, key) for key in ("schedule", "stages_per_rank", "microbatches", "recompute", "verdict", "why")
        }
        entry["recompute_modules"] = list(one.recompute_modules)
        entry["first_layer"] = list(one.first_layer)
        if one.verdict != "impossible":
            entry |= {key: getattr(one, key) for key in ("step_time", "bubble", "peak_memory")}
            entry["time"] = vars(one.shares)
        entries.append(entry)
    return entries


def test_plans_of_layers_match_the_tool(tool_json: ToolJson, tmp_path: Path) -> None:
    model = layers([1, 2, 1, 3, 1, 2])
    path = tmp_path / "layers.toml"
    path.write_text(toml("layers", [one.costs for one in model], [one.name for one in model]))
    result = plan.plan_layers(model, ranks=2, microbatches=[4, 8], stages_per_rank=[1, 2], memory_cap=90)
    options = ["--ranks", 2, "--microbatches", "4,8", "--stages-per-rank", "1,2", "--memory-cap", 90, "--costs", path]
    assert plans_as_json(result) == tool_json("plan", *options)
    assert result.best == result.plans[0] and result.schedule is not None
    assert {one.verdict for one in result.plans} >= {"best", "slower", "does not fit"}


def test_plans_of_stages_match_the_tool(tool_json: ToolJson, costs: Costs, cost_file: Path) -> None:
    result = plan.plan_stages(costs, ranks=2, microbatches=8, schedules=["Interleaved1F1B", "Auto"], send_mode="ordered")
    options = ["--ranks", 2, "--microbatches", 8, "--schedules", "Interleaved1F1B,Auto", "--send-mode", "ordered"]
    assert plans_as_json(result) == tool_json("plan", *options, "--costs", cost_file)


def test_a_plan_that_does_not_fit_is_not_the_best() -> None:
    result = plan.plan_stages(Costs.uniform(2), ranks=2, microbatches=4, schedules="1F1B", memory_cap=0)
    assert result.best is None and result.schedule is None
    assert {one.verdict for one in result.plans} <= {"does not fit", "impossible"}
    with pytest.raises(penstock.UsageError, match="unknown schedule"):
        plan.plan_stages(Costs.uniform(2), ranks=2, microbatches=4, schedules=["2F2B"])
    with pytest.raises(penstock.UsageError, match="microbatches"):
        plan.plan_stages(Costs.uniform(2), ranks=2, microbatches=0)


def test_cost_files_match_the_tool(tool_json: ToolJson, source: Path, costs: Costs, cost_file: Path) -> None:
    read = plan.read_costs(cost_file)
    assert read.costs((0, 1, 2, 3)) == costs and read.layers == ()
    example = plan.read_costs(source / "examples/costs.toml")
    assert [layer.name for layer in example.layers][:3] == ["embedding", "block.0", "block.1"]
    made = schedule.generate("ZB1P", ranks=4, microbatches=8)
    shape = ["--ranks", 4, "--microbatches", 8, "--costs", source / "examples/costs.toml"]
    (oracle,) = tool_json("simulate", "ZB1P", *shape)
    assert as_json(plan.simulate(made, example.costs(made.stage_to_rank)), made.lower()) == oracle
    result = plan.plan_layers(
        example.layers, links=example.shared, ranks=4, microbatches=8, stages_per_rank=[1], schedules=["1F1B", "ZB2P"]
    )
    options = ["--stages-per-rank", 1, "--schedules", "1F1B,ZB2P"]
    assert plans_as_json(result) == tool_json("plan", *shape, *options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("forward = 1", "the file has no key 'forward'"),
        ("[each]\nforwrad = 1", r"\[each\] has no key 'forwrad'\nhint: did you mean forward"),
        ("[each]\nforward = -1", "forward must be a non-negative number, not -1"),
        ("[each]\nforward = inf", "forward must be a non-negative number"),
        ("[each]\nactivation_bytes = '4 parsecs'", "activation_bytes must be a number of bytes"),
        ("[each]\nrecompute = 1", "recompute must be true or false"),
        ("[stages]\nforward = 1", "stages must be an array of tables"),
        ("[[links]]\nfrom = 0", r"\[\[links\]\] needs to"),
        ("[[stages]]\ncount = 99999", "at most 65535 entries"),
        ("[[stages]]\n[[layers]]\n", "either stages or layers"),
        ("each = 3", r"\[each\] must be a table"),
        ("overlap = ", "Invalid value"),
    ],
)
def test_bad_cost_files_are_parse_errors(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(penstock.ParseError, match=message) as caught:
        plan.read_costs(path)
    assert str(path) in str(caught.value)


def test_sizes_in_cost_files_have_units(tmp_path: Path) -> None:
    path = tmp_path / "costs.toml"
    path.write_text("[[stages]]\nactivation_bytes = '1.5KiB'\nweight_bytes = '2 MB'\noutput_bytes = '7'\ncount = 2\n")
    first, second = plan.read_costs(path).stages
    assert first == second == StageCosts(activation_bytes=1536, weight_bytes=2_000_000, output_bytes=7)
    with pytest.raises(OSError):
        plan.read_costs(tmp_path / "none.toml")
