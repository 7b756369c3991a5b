// The commonly used names that do not depend on torch: schedules, the validator, the simulator, the planner
// and drawings. Link with penstock::plan.
#pragma once

#include <penstock/base/error.h>
#include <penstock/base/ids.h>
#include <penstock/plan/auto_schedule.h>
#include <penstock/plan/costs.h>
#include <penstock/plan/partition.h>
#include <penstock/plan/planner.h>
#include <penstock/plan/schedule_choice.h>
#include <penstock/plan/simulate.h>
#include <penstock/schedule/csv.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>
#include <penstock/schedule/program.h>
#include <penstock/schedule/schedule.h>
#include <penstock/schedule/timeline.h>
#include <penstock/schedule/validate.h>
#include <penstock/version.h>
#include <penstock/view/drawing.h>
#include <penstock/view/render.h>

namespace penstock {

using schedule::Action;
using schedule::ActionKind;
using schedule::ActionList;
using schedule::LowerOptions;
using schedule::make_program;
using schedule::make_schedule;
using schedule::parse_schedule_kind;
using schedule::Program;
using schedule::read_csv;
using schedule::Schedule;
using schedule::schedule_names;
using schedule::ScheduleKind;
using schedule::ScheduleShape;
using schedule::SendMode;
using schedule::TimedAction;
using schedule::Timeline;
using schedule::to_csv;
using schedule::validate;
using schedule::ValidateOptions;
using schedule::Verdict;
using schedule::write_csv;

using plan::AutoOptions;
using plan::AutoResult;
using plan::AutoSchedule;
using plan::Costs;
using plan::Layer;
using plan::Link;
using plan::make_auto_schedule;
using plan::Partition;
using plan::partition_layers;
using plan::PartitionOptions;
using plan::Plan;
using plan::plan_layers;
using plan::plan_stages;
using plan::PlanOptions;
using plan::PlanResult;
using plan::ScheduleChoice;
using plan::simulate;
using plan::SimulateOptions;
using plan::Simulation;
using plan::StageCosts;

using view::draw;
using view::Drawing;
using view::GridOptions;
using view::to_grid;
using view::to_html;
using view::to_svg;
using view::to_trace;

}  // namespace penstock
