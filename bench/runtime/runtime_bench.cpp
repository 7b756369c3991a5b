// Measures the overhead of the runtime: a pipeline with one rank per process (or per thread), with nearly
// empty stages or a small GPT. PENSTOCK_BACKEND selects the transport between processes. It starts its own
// ranks. reference.py measures the same with the reference.
#include "base/json.h"
#include "bound.h"
#include "counting_allocator.h"
#include "forecast.h"
#include "models.h"

#include <penstock/comm/launcher.h>
#include <penstock/comm/thread_ranks.h>

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>

namespace ps = penstock;

namespace {

using Clock = std::chrono::steady_clock;

struct Usage {
  double cpu = 0;       // user and system seconds
  double switches = 0;  // context switches
};

Usage usage() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return {seconds(used.ru_utime) + seconds(used.ru_stime),
          static_cast<double>(used.ru_nvcsw + used.ru_nivcsw)};
}

std::size_t parameter_bytes(const ps::runtime::PipelineStage& stage) {
  std::size_t bytes = 0;
  for (const ps::value::NamedTensor& item : stage.module().parameters()) bytes += item.tensor.nbytes();
  return bytes;
}

// The bytes of one stage: of a microbatch on it, without a pipeline, and of its parameters and gradients.
struct StageBytes {
  double activations = 0;  // kept between forward and backward
  double peak = 0;         // during forward and backward
  double fixed = 0;
};

StageBytes bytes_of(const ps::bench::Work& work, const ps::runtime::PipelineStage& stage, int microbatches) {
  using Count = ps::bench::CountingAllocator;
  const std::size_t before = Count::now();
  Count::start();
  at::Tensor input = work.args[0].toTensor().chunk(microbatches)[0];
  if (!stage.is_first()) input = work.hidden(input.size(0)).requires_grad_(true);
  at::Tensor output = stage.module().forward({input}, {}).output.toTensor();
  if (stage.is_last()) output = work.loss(output, work.target.toTensor().chunk(microbatches)[0], {});
  const std::size_t kept = Count::now() - before;
  output.backward(stage.is_last() ? at::Tensor() : at::ones_like(output));
  return {static_cast<double>(kept), static_cast<double>(Count::peak() - before),
          static_cast<double>(2 * parameter_bytes(stage))};
}

// The highest total of the activations in flight on a rank.
double peak_activations(const ps::schedule::Program& program, int rank,
                        const std::vector<StageBytes>& stages) {
  double now = 0, most = 0;
  for (const ps::schedule::Action& action : program.of(ps::Rank(rank))) {
    if (!action.is_compute()) continue;
    for_each_part(action, [&](const ps::schedule::Action& part) {
      const double bytes = stages[part.stage().index()].activations;
      if (part.kind() == ps::schedule::ActionKind::Forward) now += bytes;
      most = std::max(most, now);
      if (part.kind() == ps::schedule::ActionKind::Backward ||
          part.kind() == ps::schedule::ActionKind::BackwardWeight)
        now -= bytes;
    });
  }
  return most;
}

// The peak of a step on this rank: in bytes, relative to what it keeps (parameters, gradients, batch,
// activations in flight), relative to this plus the temporaries of one backward pass; and the second for a
// dense forward and backward pass of one microbatch.
struct Memory {
  double peak = 0, over_kept = 0, over_needed = 0, alone_over_kept = 0;
};

Memory memory_of_step(ps::runtime::PipelineSchedule& pipeline, const std::vector<ps::bench::Work>& works,
                      int rank, const std::vector<StageBytes>& stages) {
  ps::bench::CountingAllocator::start();
  pipeline.step(works.front().args, works.front().target);
  Memory result{.peak = static_cast<double>(ps::bench::CountingAllocator::peak())};
  double fixed = 0, temporaries = 0, alone_peak = 0, alone_kept = 0;
  for (const ps::bench::Work& work : works)
    fixed += static_cast<double>(work.args[0].toTensor().nbytes() + work.target.toTensor().nbytes());
  for (const ps::runtime::PipelineStage& stage : pipeline.stages()) {
    const StageBytes& bytes = stages[stage.index().index()];
    fixed += bytes.fixed;
    temporaries = std::max(temporaries, bytes.peak - bytes.activations);
    alone_peak = std::max(alone_peak, bytes.peak);
    alone_kept = std::max(alone_kept, bytes.activations);
  }
  const double kept = fixed + peak_activations(pipeline.program(), rank, stages);
  result.over_kept = result.peak / kept;
  result.over_needed = result.peak / (kept + temporaries);
  result.alone_over_kept = (fixed + alone_peak) / (fixed + alone_kept);
  return result;
}

// Time of this rank in a step, in microseconds per microbatch and kind of action; `wait` is the time spent
// waiting for messages.
std::map<std::string, double> parts_of(const ps::schedule::Timeline& timeline, int rank) {
  std::map<std::string, double> parts;
  double before = 0;
  for (const ps::schedule::TimedAction& timed : timeline.ranks[static_cast<std::size_t>(rank)]) {
    parts[std::string(ps::schedule::to_string(timed.action.kind()))] += timed.end - timed.start;
    parts["wait"] += timed.start - before;
    before = timed.end;
  }
  for (auto& [name, seconds] : parts) seconds *= 1e6 / timeline.microbatches;
  return parts;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Steps {
  std::vector<double> seconds, over_bound, idle;
  ps::bench::MeanProfile profile;
  std::map<std::string, double> parts;  // of the last step
  Usage used;                           // per step
};

Steps run_steps(ps::runtime::PipelineSchedule& pipeline, const ps::bench::Work& work,
                const ps::comm::Group& group, int steps) {
  Steps result;
  Usage before;
  for (int step = 0; step < steps + 2; ++step) {
    if (step == 2) before = usage();
    group.barrier();
    const auto start = Clock::now();
    const ps::runtime::StepResult got = pipeline.step(work.args, work.target);
    group.barrier();
    if (step < 2) continue;
    result.seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    result.parts = parts_of(got.timeline, group.rank());
    result.profile.add(got.timeline);
    result.idle.push_back(ps::bench::idle_fraction(got.timeline, group.rank(), result.seconds.back()));
    result.over_bound.push_back(result.seconds.back() /
                                ps::bench::bound(pipeline.program(), group, got.timeline));
  }
  const Usage after = usage();
  result.used = {(after.cpu - before.cpu) / steps, (after.switches - before.switches) / steps};
  return result;
}

void add_per_rank(ps::JsonWriter& json, const char* name, const std::vector<at::Tensor>& ranks, int index) {
  json.key(name).begin_array();
  for (const at::Tensor& values : ranks) json.value(values[index].item<double>());
  json.end_array();
}

void run_rank(ps::comm::World& world, const std::string& model, const std::string& schedule, int microbatches,
              int steps) {
  // Auto makes a schedule from the times of the stages in ZB1P, which splits every backward pass.
  const bool automatic = schedule == "Auto";
  const ps::schedule::ScheduleInfo& info =
      info_of(ps::schedule::parse_schedule_kind(automatic ? "ZB1P" : schedule));
  const int num_stages = world.size() * info.only_stages_per_rank.value_or(2);
  const auto placement = ps::schedule::Placement::make(world.size(), num_stages, info.placement);
  std::vector<ps::bench::Work> works;
  std::vector<ps::runtime::PipelineStage> stages;
  for (const ps::StageId stage : placement.stages_of(world.rank())) {
    works.push_back(model == "gpt" ? ps::bench::gpt(stage.value, num_stages)
                                   : ps::bench::linear(stage.value, num_stages));
    stages.emplace_back(works.back().module, stage, num_stages, at::kCPU, world.group());
    if (works.size() > 1) works.back().args = works[0].args, works.back().target = works[0].target;
  }
  ps::runtime::PipelineOptions options;
  options.loss = works.back().loss;
  options.return_outputs = false;
  ps::runtime::PipelineSchedule pipeline(stages, info.kind, microbatches, options);
  if (automatic) {
    const Steps trial = run_steps(pipeline, works.front(), world.group(), steps);
    const ps::plan::Costs costs = ps::bench::measured_costs(num_stages, world.group(), trial.profile);
    pipeline = ps::runtime::PipelineSchedule(
        stages, ps::plan::make_auto_schedule(world.size(), microbatches, costs).schedule, options);
  }
  std::vector<StageBytes> bytes(static_cast<std::size_t>(num_stages));
  for (std::size_t i = 0; i < stages.size(); ++i) {
    bytes_of(works[i], stages[i], microbatches);  // allocates the gradients
    bytes[stages[i].index().index()] = bytes_of(works[i], stages[i], microbatches);
  }
  works.resize(1);  // the stages of a rank share the batch
  const Steps measured = run_steps(pipeline, works.front(), world.group(), steps);
  const Memory mine = memory_of_step(pipeline, works, world.rank().value, bytes);
  const auto memory = world.group().all_gather(
      at::tensor({mine.peak, mine.over_kept, mine.over_needed, mine.alone_over_kept, median(measured.idle)},
                 at::kDouble));
  const ps::plan::Simulation predicted =
      ps::bench::forecast(pipeline.program(), world.group(), measured.profile);
  c10::Dict<std::string, double> parts;
  for (const auto& [name, us] : measured.parts) parts.insert(name, us);
  const std::vector<c10::IValue> all_parts = world.group().all_gather_object(parts);
  if (world.rank().value != 0) return;
  ps::JsonWriter json;
  json.begin_object().field("model", model).field("schedule", schedule).field("microbatches", microbatches);
  json.field("best_s", *std::min_element(measured.seconds.begin(), measured.seconds.end()));
  json.field("median_s", median(measured.seconds)).field("cpu_s", measured.used.cpu);
  json.field("switches", measured.used.switches).field("over_bound", median(measured.over_bound));
  add_per_rank(json, "peak_bytes", memory, 0);
  add_per_rank(json, "memory_over_kept", memory, 1);
  add_per_rank(json, "memory_over_needed", memory, 2);
  add_per_rank(json, "alone_over_kept", memory, 3);
  json.field("predicted_s", predicted.step_time).field("predicted_bubble", predicted.bubble);
  add_per_rank(json, "bubble", memory, 4);
  json.key("us_per_microbatch").begin_array();  // per rank, in the last step
  for (const c10::IValue& rank : all_parts) {
    json.begin_object();
    for (const auto& item : rank.toGenericDict())
      json.field(item.key().toStringRef(), item.value().toDouble());
    json.end_object();
  }
  json.end_array().end_object();
  std::cout << json.text() << std::endl;
}

}  // namespace

// runtime_bench MODEL SCHEDULE MICROBATCHES STEPS [threads]: with `threads`, the figures of memory are those
// of both ranks together.
int main(int argc, char** argv) {
  const bool threads = argc == 6 && std::string(argv[5]) == "threads";
  if (argc != 5 && !threads) {
    std::cerr << "usage: runtime_bench linear|gpt SCHEDULE MICROBATCHES STEPS [threads]\n";
    return 2;
  }
  const auto run = [&](ps::comm::World& world) {
    run_rank(world, argv[1], argv[2], std::atoi(argv[3]), std::atoi(argv[4]));
  };
  if (threads || std::getenv("RANK") != nullptr) {
    ps::bench::CountingAllocator::install();
    at::set_num_threads(1);
    torch::manual_seed(0);
    if (threads) {
      ps::comm::run_thread_ranks(2, run);
    } else {
      ps::comm::World world = ps::comm::init();
      run(world);
    }
    return 0;
  }
  ps::comm::LaunchOptions launch;
  launch.command = {std::filesystem::read_symlink("/proc/self/exe").string(), argv[1], argv[2], argv[3],
                    argv[4]};
  launch.ranks = 2;
  launch.environment["OMP_NUM_THREADS"] = "1";
  launch.on_line = [](ps::Rank, ps::comm::OutputStream stream, std::string_view line) {
    (stream == ps::comm::OutputStream::Err ? std::cerr : std::cout) << line << "\n";
  };
  return ps::comm::launch(launch).exit_code();
}
