// Measures generation, lowering, validation and simulation of schedules. Prints one JSON object. Usage:
// schedules_bench side-by-side | huge | rank
#include "base/json.h"

#include <penstock/plan/simulate.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>
#include <penstock/schedule/validate.h>

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace penstock {
namespace {

template <class Work>
double seconds(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double peak_gigabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024 / 1e9;
}

void add_shape(JsonWriter& json, schedule::ScheduleKind kind, const schedule::ScheduleShape& shape) {
  json.field("schedule", to_string(kind)).field("ranks", shape.ranks);
  json.field("stages_per_rank", shape.stages_per_rank).field("microbatches", shape.microbatches);
}

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void side_by_side(JsonWriter& json) {
  json.begin_array();
  for (const schedule::ScheduleKind kind :
       {schedule::ScheduleKind::Interleaved1F1B, schedule::ScheduleKind::LoopedBFS,
        schedule::ScheduleKind::InterleavedZeroBubble, schedule::ScheduleKind::ZBVZeroBubble,
        schedule::ScheduleKind::DualPipeV}) {
    const schedule::ScheduleShape shape{64, 2, 256};
    std::vector<double> build, check, play;
    std::size_t actions = 0;
    for (int run = 0; run < 5; ++run) {
      schedule::Draft draft;
      build.push_back(seconds([&] { draft = lower(make_schedule(kind, shape)); }));
      schedule::Verdict verdict;
      check.push_back(seconds([&] { verdict = validate(draft); }));
      if (!verdict.safe(schedule::SendMode::Blocking)) std::fprintf(stderr, "not valid\n");
      actions = action_count(draft.ranks);
      const schedule::Program program =
          schedule::Program::validated(std::move(draft), schedule::SendMode::Buffered);
      const plan::Costs costs = plan::Costs::uniform(shape.num_stages());
      play.push_back(seconds([&] { static_cast<void>(simulate(program, costs)); }));
    }
    json.begin_object();
    add_shape(json, kind, shape);
    json.field("actions", static_cast<std::uint64_t>(actions)).field("generate_and_lower_s", median(build));
    json.field("validate_all_modes_s", median(check)).field("simulate_s", median(play)).end_object();
  }
  json.end_array();
}

void huge(JsonWriter& json) {
  const schedule::ScheduleShape shape{1024, 2, 2048};
  const schedule::ScheduleKind kind = schedule::ScheduleKind::Interleaved1F1B;
  schedule::Draft draft;
  const double build = seconds([&] { draft = lower(make_schedule(kind, shape)); });
  const double build_peak = peak_gigabytes();
  schedule::Verdict verdict;
  const double check =
      seconds([&] { verdict = validate(draft, {.send_mode = schedule::SendMode::Buffered}); });
  json.begin_object();
  add_shape(json, kind, shape);
  json.field("actions", static_cast<std::uint64_t>(action_count(draft.ranks)))
      .field("generate_and_lower_s", build);
  json.field("peak_gb", build_peak).field("validate_one_mode_s", check);
  json.field("valid", verdict.safe(schedule::SendMode::Buffered))
      .field("peak_with_validation_gb", peak_gigabytes());
  json.end_object();
}

void one_rank(JsonWriter& json) {
  json.begin_array();
  for (const schedule::ScheduleInfo& info : schedule::schedule_infos()) {
    if (!generates_single_rank(info.kind)) continue;
    const schedule::ScheduleShape shape{4096, info.default_stages_per_rank, 8192};
    schedule::ActionList list;
    const double time = seconds([&] { list = make_rank_schedule(info.kind, shape, Rank(1234)); });
    json.begin_object();
    add_shape(json, info.kind, shape);
    json.field("rank", 1234).field("slots", static_cast<std::uint64_t>(list.size())).field("seconds", time);
    json.end_object();
  }
  json.end_array();
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  penstock::JsonWriter json;
  if (what == "side-by-side") {
    penstock::side_by_side(json);
  } else if (what == "huge") {
    penstock::huge(json);
  } else if (what == "rank") {
    penstock::one_rank(json);
  } else {
    std::fprintf(stderr, "usage: schedules_bench side-by-side | huge | rank\n");
    return 2;
  }
  std::printf("%s\n", json.text().c_str());
  return 0;
}
