// The operations of the playground, in terms of the library.
#include "api/operations.h"

#include "api/boxes.h"
#include "api/pipeline.h"
#include "base/json.h"
#include "report/results_json.h"
#include "view/palette.h"

#include <penstock/base/error.h>
#include <penstock/plan/planner.h>
#include <penstock/schedule/csv.h>
#include <penstock/version.h>
#include <penstock/view/render.h>

#include <cmath>
#include <limits>
#include <sstream>

namespace penstock::playground {
namespace {

void write_kinds(JsonWriter& out) {
  out.begin_array();
  for (const schedule::ActionKind kind : view::kActionKinds) {
    const view::KindStyle& style = view::style_of(kind);
    out.begin_object().field("name", to_string(kind)).field("meaning", style.meaning);
    out.field("light", style.light).field("dark", style.dark).end_object();
  }
  out.end_array();
}

void write_search(JsonWriter& out, const plan::AutoResult& found) {
  double time = std::numeric_limits<double>::infinity();  // null if none fits
  if (found.best_named) time = found.best_named->step_time;
  out.begin_object().field("best_named", found.best_named ? found.best_named->name : "");
  out.field("best_named_time", time);
  out.field("csv", to_csv(found.schedule)).end_object();
}

view::Drawing drawing_of(const Pipeline& pipeline) {
  return view::draw(simulate(pipeline.program, pipeline.costs), view::TimeUnit::Seconds);
}

struct ExportedFile {
  std::string_view extension;
  std::string_view type;
  std::string text;
};

ExportedFile export_as(const std::string& format, const Pipeline& pipeline) {
  if (format == "csv") return {".csv", "text/csv", to_csv(pipeline.table)};
  if (format == "lowered") return {".lowered.csv", "text/csv", to_csv(pipeline.program.draft())};
  if (format == "svg") return {".svg", "image/svg+xml", to_svg(drawing_of(pipeline))};
  if (format == "trace") return {".trace.json", "application/json", to_trace(drawing_of(pipeline))};
  if (format == "costs") return {".costs.toml", "application/toml", to_toml(pipeline.costs)};
  throw UsageError("unknown format " + format, {}, "use csv, lowered, svg, trace or costs");
}

}  // namespace

Answer list_schedules(const Request& /*request*/) {
  JsonWriter out;
  out.begin_object().field("version", version()).key("schedules");
  tool::write_schedule_list(out);
  out.key("kinds");
  write_kinds(out);
  return {out.end_object().text(), {}};
}

Answer simulate_source(const Request& request) {
  const Pipeline pipeline = make_pipeline(request);
  const schedule::Program& program = pipeline.program;
  const plan::Simulation simulation = simulate(program, pipeline.costs);
  const double bound =
      lower_bound(program.placement(), program.microbatches(), pipeline.costs, program.has_backward());
  Answer answer;
  JsonWriter out;
  out.begin_object().key("simulation");
  tool::write_simulation(out, program, simulation, bound);
  out.key("layout");
  write_boxes(out, view::draw(simulation, view::TimeUnit::Seconds), answer.boxes);
  if (pipeline.found) {
    out.key("auto");
    write_search(out, *pipeline.found);
  }
  answer.text = out.end_object().text();
  return answer;
}

Answer validate_file(const Request& request) {
  std::istringstream text(request.source.csv.value_or(""));
  Diagnostics problems;
  const schedule::ScheduleFile file = schedule::read_csv(text, problems);
  JsonWriter out;
  if (has_errors(problems)) {
    tool::write_validation(out, file, problems, nullptr, false);
  } else {
    const schedule::Verdict verdict = file.validate();
    tool::write_validation(out, file, problems, &verdict, verdict.safe(request.send_mode));
  }
  return {out.text(), {}};
}

Answer find_plans(const Request& request) {
  plan::PlanOptions options;
  options.ranks = request.ranks;
  options.microbatches = {request.microbatches};
  if (!request.stages_per_rank.empty()) options.stages_per_rank = request.stages_per_rank;
  options.memory_cap = request.memory_cap;
  options.recomputation = request.recomputation;
  options.send_mode = request.send_mode;
  const std::vector<plan::Layer> layers = layers_of(request.model, request.ranks);
  plan::Costs shared;
  shared.link = request.model.link;
  shared.overlap = request.model.overlap;
  JsonWriter out;
  out.begin_object().field("layers", static_cast<std::int64_t>(layers.size())).key("plans");
  tool::write_plans(out, plan_layers(layers, shared, options).plans);
  return {out.end_object().text(), {}};
}

Answer export_source(const Request& request) {
  const Pipeline pipeline = make_pipeline(request);
  const ExportedFile file = export_as(request.format, pipeline);
  std::string name = pipeline.program.name();
  if (name.ends_with(".csv")) name.resize(name.size() - 4);
  JsonWriter out;
  out.begin_object().field("name", name + std::string(file.extension)).field("type", file.type);
  return {out.field("text", file.text).end_object().text(), {}};
}

}  // namespace penstock::playground
