// Measures the overhead of the runtime: a pipeline with one rank per process over Gloo, with nearly empty
// stages or a small GPT. It starts its own ranks. reference.py measures the same with the reference.
#include "base/json.h"
#include "bound.h"
#include "counting_allocator.h"
#include "models.h"

#include <penstock/comm/launcher.h>

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

// Runs one microbatch on this stage without a pipeline. Measures the bytes kept between forward and backward,
// and the peak.
struct Alone {
  std::size_t activations = 0;
  std::size_t peak = 0;
};

Alone run_alone(const ps::bench::Work& work, const ps::runtime::PipelineStage& stage, int microbatches) {
  using Count = ps::bench::CountingAllocator;
  const std::size_t before = Count::now();
  Count::start();
  at::Tensor input = work.args[0].toTensor().chunk(microbatches)[0];
  if (!stage.is_first()) input = work.hidden(input.size(0)).requires_grad_(true);
  at::Tensor output = stage.module().forward({input}, {}).output.toTensor();
  if (stage.is_last()) output = work.loss(output, work.target.toTensor().chunk(microbatches)[0], {});
  const std::size_t kept = Count::now() - before;
  output.backward(stage.is_last() ? at::Tensor() : at::ones_like(output));
  return {kept, Count::peak() - before};
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

// Fastest and median step in seconds, and CPU time and context switches per step.
int run_rank(const std::string& model, const std::string& schedule, int microbatches, int steps) {
  ps::bench::CountingAllocator::install();
  at::set_num_threads(1);
  torch::manual_seed(0);
  ps::comm::World world = ps::comm::init();
  ps::bench::Work work =
      model == "gpt" ? ps::bench::gpt(world.rank().value) : ps::bench::linear(world.rank().value);
  const ps::runtime::PipelineStage stage(work.module, ps::StageId(world.rank().value), world.size(), at::kCPU,
                                         world.group());
  ps::runtime::PipelineOptions options;
  options.loss = work.loss;
  options.return_outputs = false;
  ps::runtime::PipelineSchedule pipeline({stage}, schedule, microbatches, options);
  std::vector<double> seconds;
  std::vector<double> over_bound;
  std::map<std::string, double> parts;
  Usage before;
  const auto in_flight = static_cast<double>(pipeline.program().peak_in_flight(stage.index()));
  run_alone(work, stage, microbatches);  // allocates the gradients
  const Alone alone = run_alone(work, stage, microbatches);
  for (int step = 0; step < steps + 2; ++step) {
    if (step == 2) before = usage();
    world.group().barrier();
    const auto start = Clock::now();
    const ps::runtime::StepResult result = pipeline.step(work.args, work.target);
    world.group().barrier();
    if (step < 2) continue;
    parts = parts_of(result.timeline, world.rank().value);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    over_bound.push_back(seconds.back() /
                         ps::bench::bound(pipeline.program(), world.group(), result.timeline));
  }
  const Usage after = usage();
  const auto median = [](std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  ps::bench::CountingAllocator::start();
  pipeline.step(work.args, work.target);
  const auto peak = static_cast<double>(ps::bench::CountingAllocator::peak());
  const std::size_t batch = work.args[0].toTensor().nbytes() + work.target.toTensor().nbytes();
  const auto fixed = static_cast<double>(2 * parameter_bytes(stage) + batch);
  const double kept = fixed + in_flight * static_cast<double>(alone.activations);
  const double needed =
      fixed + (in_flight - 1) * static_cast<double>(alone.activations) + static_cast<double>(alone.peak);
  // The same for the stage without a pipeline: forward and backward of one microbatch.
  const double alone_over_kept =
      (fixed + static_cast<double>(alone.peak)) / (fixed + static_cast<double>(alone.activations));
  // Gather the memory of all ranks; rank 0 prints it.
  const auto memory =
      world.group().all_gather(at::tensor({peak / kept, peak / needed, alone_over_kept}, at::kDouble));
  c10::Dict<std::string, double> mine;
  for (const auto& [name, us] : parts) mine.insert(name, us);
  const std::vector<c10::IValue> all_parts = world.group().all_gather_object(mine);
  if (world.rank().value != 0) return 0;
  ps::JsonWriter json;
  json.begin_object().field("model", model).field("schedule", schedule).field("microbatches", microbatches);
  json.field("best_s", *std::min_element(seconds.begin(), seconds.end())).field("median_s", median(seconds));
  json.field("cpu_s", (after.cpu - before.cpu) / steps)
      .field("switches", (after.switches - before.switches) / steps);
  json.field("over_bound", median(over_bound));
  json.key("memory_over_kept").begin_array();  // parameters, gradients, batch, activations in flight
  for (const at::Tensor& ratios : memory) json.value(ratios[0].item<double>());
  json.end_array().key("memory_over_needed").begin_array();  // plus the temporaries of a backward pass
  for (const at::Tensor& ratios : memory) json.value(ratios[1].item<double>());
  json.end_array().key("alone_over_kept").begin_array();  // a dense forward and backward of the stage
  for (const at::Tensor& ratios : memory) json.value(ratios[2].item<double>());
  json.end_array().key("us_per_microbatch").begin_array();  // per rank, in the last step
  for (const c10::IValue& rank : all_parts) {
    json.begin_object();
    for (const auto& item : rank.toGenericDict())
      json.field(item.key().toStringRef(), item.value().toDouble());
    json.end_object();
  }
  json.end_array().end_object();
  std::cout << json.text() << std::endl;
  return 0;
}

}  // namespace

// runtime_bench MODEL SCHEDULE MICROBATCHES STEPS
int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: runtime_bench linear|gpt SCHEDULE MICROBATCHES STEPS\n";
    return 2;
  }
  if (std::getenv("RANK") != nullptr)
    return run_rank(argv[1], argv[2], std::atoi(argv[3]), std::atoi(argv[4]));
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
