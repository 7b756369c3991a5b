// The options of `penstock train` that divide a model: its stages, their schedule, and the sharding of
// layers.
#include "base/option_ranges.h"
#include "base/text.h"
#include "config/train_settings.h"
#include "train/preflight/model_checks.h"

#include <penstock/base/error.h>
#include <penstock/schedule/csv.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>

#include <charconv>
#include <filesystem>

namespace penstock::tool {

void TrainSettings::read_table() {
  const schedule::ScheduleFile file =
      as_usage([&] { return schedule::read_csv(std::filesystem::path(schedule)); });
  if (file.level == schedule::ProgramLevel::Lowered)
    throw UsageError("--schedule: " + quote(schedule, 200) + " contains communication", {},
                     "use the form with computations only, as penstock schedule without --lowered prints it");
  schedule::Schedule table = file.schedule();
  table.name = std::filesystem::path(schedule).filename().string();
  as_usage([&] { make_program(table, schedule::SendMode::Buffered); });  // throws if it is not valid
  if (!microbatches) microbatches = table.microbatches;
  if (!stages && !stages_per_rank) stages = table.num_stages();
  run.parallel.table = std::move(table);
}

void TrainSettings::resolve_stages() {
  train::ParallelOptions& parallel = run.parallel;
  if (to_lower(schedule).ends_with(".csv")) {
    read_table();
  } else {
    parallel.schedule = train::parse_schedule_choice(schedule);
    schedule = is_auto(parallel.schedule) ? "auto" : to_string(parallel.schedule);
  }
  const auto* const kind = std::get_if<schedule::ScheduleKind>(&parallel.schedule);
  if (stages && *stages % parallel.pp != 0)
    throw UsageError(
        str_cat(*stages, " stages cannot be divided evenly among ", parallel.pp, " pipeline ranks"), {},
        str_cat("make --stages a multiple of ", parallel.pp));
  if (stages && stages_per_rank && *stages != *stages_per_rank * parallel.pp)
    throw UsageError(str_cat("--stages ", *stages, " is not --stages-per-rank ", *stages_per_rank, " x ",
                             parallel.pp, " pipeline ranks"),
                     {}, "give only one of the two");
  if (stages) stages_per_rank = *stages / parallel.pp;
  if (!stages_per_rank) stages_per_rank = kind ? info_of(*kind).default_stages_per_rank : 1;
  parallel.stages_per_rank = count_option(*stages_per_rank, "--stages-per-rank");
  stages = *stages_per_rank * parallel.pp;
}

void TrainSettings::resolve_sharding() {
  read_tensor_plan(tensor_plan);
  if (!tensor_plan.empty() && run.parallel.tp == 1)
    notes.emplace_back("--tp-plan has no effect with 1 tensor-parallel rank (--tp 1)");
  const bool has_replicas = run.parallel.dp > 1;
  run.parallel.sharding = has_replicas ? sharding_ : train::Sharding::None;
  if (!has_replicas && sharding_ != train::Sharding::None)
    notes.push_back(str_cat("--sharding ", to_string(sharding_), " has no effect with 1 replica (--dp 1)"));
}

parallel::ParallelPlan read_tensor_plan(const std::vector<std::string>& entries) {
  parallel::ParallelPlan plan;
  for (const std::string& entry : entries) {
    const auto equals = entry.find('=');
    const std::string path = entry.substr(0, equals),
                      style = equals == std::string::npos ? "" : entry.substr(equals + 1);
    if (!path.empty() && style == "colwise") {
      plan.emplace_back(path, parallel::ColwiseParallel());
    } else if (!path.empty() && style == "rowwise") {
      plan.emplace_back(path, parallel::RowwiseParallel());
    } else if (!path.empty() && style == "sequence") {
      plan.emplace_back(path, parallel::SequenceParallel());
    } else {
      throw UsageError("--tp-plan " + quote(entry) +
                           " is not of the form MODULE=colwise, MODULE=rowwise or MODULE=sequence",
                       {}, "for example --tp-plan 'blocks.*.up=colwise,blocks.*.down=rowwise'");
    }
  }
  return plan;
}

graph::SplitPositions read_split_positions(const std::vector<std::string>& texts) {
  graph::SplitPositions positions;
  for (const std::string& text : texts) {
    std::size_t position = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), position);
    if (error != std::errc() || end != text.data() + text.size())
      throw UsageError("--cuts " + quote(text) + " is not a valid operator index");
    positions.push_back(position);
  }
  return positions;
}

pipe::SplitPoints read_split_points(const std::vector<std::string>& entries) {
  pipe::SplitPoints points;
  for (const std::string& entry : entries) {
    const auto equals = entry.find('=');
    const std::string side = equals == std::string::npos ? "" : entry.substr(equals + 1);
    if (equals == 0 || (side != "beginning" && side != "end"))
      throw UsageError("--split " + quote(entry) + " is not of the form MODULE=beginning or MODULE=end", {},
                       "for example --split layers.2=beginning");
    points[entry.substr(0, equals)] = side == "end" ? graph::SplitPoint::End : graph::SplitPoint::Beginning;
  }
  return points;
}

}  // namespace penstock::tool
