// From a source to a program with costs.
#include "api/pipeline.h"

#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/schedule/csv.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>

#include <sstream>

namespace penstock::playground {
namespace {

constexpr std::int64_t kMaxForwards = 400'000;  //!< with their timeline they fit into the memory of a browser

plan::Costs costs_of(const Request& request, int ranks, int stages) {
  const Source& source = request.source;
  plan::Costs costs = source.first_layer.empty()
                          ? stage_costs(request.model, ranks, stages)
                          : partitioned_costs(request.model, ranks, source.first_layer);
  return source.recompute ? with_recomputation(std::move(costs)) : costs;
}

Pipeline from_file(const Request& request) {
  std::istringstream text(*request.source.csv);
  const schedule::ScheduleFile file = schedule::read_csv(text);
  plan::Costs costs = costs_of(request, static_cast<int>(file.ranks.size()), file.placement.num_stages());
  if (file.level == schedule::ProgramLevel::Lowered) {
    schedule::Draft draft = file.draft();
    draft.name = request.source.schedule;
    schedule::Program program = schedule::Program::validated(std::move(draft), request.send_mode);
    return {compute_only(program.draft()), std::move(program), std::move(costs), {}};
  }
  schedule::Schedule table = file.schedule();
  table.name = request.source.schedule;
  schedule::Program program = make_program(table, request.send_mode);
  return {std::move(table), std::move(program), std::move(costs), {}};
}

Pipeline from_search(const Request& request, const schedule::ScheduleShape& shape) {
  plan::Costs costs = costs_of(request, shape.ranks, shape.num_stages());
  plan::AutoResult found =
      make_auto_schedule(shape.ranks, shape.microbatches, costs,
                         {.memory_cap = request.memory_cap, .send_mode = request.send_mode});
  schedule::Program program = make_program(found.schedule, request.send_mode);
  return {found.schedule, std::move(program), std::move(costs), std::move(found)};
}

}  // namespace

Pipeline make_pipeline(const Request& request) {
  if (request.source.csv) return from_file(request);
  const schedule::ScheduleShape shape{request.ranks, request.source.stages_per_rank, request.microbatches};
  if (static_cast<std::int64_t>(shape.num_stages()) * shape.microbatches > kMaxForwards) {
    throw UsageError(str_cat(shape.num_stages(), " stages x ", shape.microbatches,
                             " microbatches are too many for this page"),
                     {}, "use penstock simulate, or fewer ranks, stages or microbatches");
  }
  if (to_lower(request.source.schedule) == "auto") return from_search(request, shape);
  schedule::Schedule table = make_schedule(request.source.schedule, shape);
  schedule::Program program = make_program(table, request.send_mode);
  return {std::move(table), std::move(program), costs_of(request, shape.ranks, shape.num_stages()), {}};
}

}  // namespace penstock::playground
