// Gathers times and sizes from all ranks.
#include "train/loop/measure.h"

#include "base/io/storage_error.h"
#include "base/text.h"
#include "plan/cost_text.h"

#include <penstock/plan/simulate.h>
#include <penstock/runtime/stage_profile.h>
#include <penstock/view/drawing.h>
#include <penstock/view/render.h>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <fstream>
#include <sstream>

namespace penstock::train {
namespace {

constexpr const char* kMemory = "memory";  // starts a line of a gathered timeline; all others are actions

}  // namespace

Busy busy_of(const schedule::Timeline& timeline) {
  Busy result;
  for (const auto& rank : timeline.ranks) {
    for (const schedule::TimedAction& timed : rank) {
      if (timed.action.is_compute()) result.busy += timed.end - timed.start;
      result.end = std::max(result.end, timed.end);
    }
  }
  return result;
}

schedule::Timeline gather_timeline(const comm::Group& pipeline, const schedule::Timeline& local) {
  std::ostringstream text;
  text.precision(17);
  for (const auto& rank : local.ranks)
    for (const schedule::TimedAction& timed : rank)
      text << to_string(timed.action) << ' ' << timed.start << ' ' << timed.end << '\n';
  for (const auto& rank : local.memory)
    for (const schedule::MemorySample& sample : rank)
      text << kMemory << ' ' << sample.time << ' ' << sample.bytes << '\n';
  schedule::Timeline all = local;
  all.name = "measured";
  all.ranks.assign(static_cast<std::size_t>(pipeline.size()), {});
  if (!local.memory.empty()) all.memory.assign(all.ranks.size(), {});
  const std::vector<c10::IValue> texts = pipeline.all_gather_object(c10::IValue(text.str()));
  for (std::size_t r = 0; r < texts.size(); ++r) {
    std::istringstream lines(texts[r].toStringRef());
    for (std::string word; lines >> word;) {
      if (word == kMemory) {
        schedule::MemorySample sample;
        lines >> sample.time >> sample.bytes;
        all.memory.at(r).push_back(sample);
      } else {
        schedule::TimedAction timed;
        lines >> timed.start >> timed.end;
        timed.action = schedule::parse_action(word);
        all.ranks[r].push_back(timed);
      }
    }
  }
  return all;
}

std::vector<StageBytes> gather_bytes(const comm::Group& pipeline, int stages,
                                     const std::map<StageId, StageBytes>& local) {
  std::ostringstream text;
  for (const auto& [stage, bytes] : local)
    text << stage << ' ' << bytes.output << ' ' << bytes.kept << ' ' << bytes.parameters << ' '
         << bytes.gradients << ' ' << bytes.optimizer << '\n';
  std::vector<StageBytes> all(static_cast<std::size_t>(stages));
  for (const c10::IValue& item : pipeline.all_gather_object(c10::IValue(text.str()))) {
    std::istringstream lines(item.toStringRef());
    std::size_t stage = 0;
    for (StageBytes bytes; lines >> stage >> bytes.output >> bytes.kept >> bytes.parameters >>
                           bytes.gradients >> bytes.optimizer;)
      all.at(stage) = bytes;
  }
  return all;
}

plan::Costs measured_costs(const std::vector<schedule::Timeline>& timelines,
                           const std::vector<StageBytes>& bytes) {
  plan::Costs costs;
  const auto mean = [&](StageId stage, double runtime::StageProfile::*part) {
    double sum = 0;
    int count = 0;
    for (const schedule::Timeline& timeline : timelines) {
      const auto profiles = runtime::profile_stages(timeline);
      const auto it = profiles.find(stage);
      if (it == profiles.end() || it->second.*part <= 0) continue;
      sum += it->second.*part;
      ++count;
    }
    return count == 0 ? 0.0 : sum / count;
  };
  for (std::size_t s = 0; s < bytes.size(); ++s) {
    const StageId stage(static_cast<std::int64_t>(s));
    plan::StageCosts cost;
    cost.forward = mean(stage, &runtime::StageProfile::forward);
    cost.input = mean(stage, &runtime::StageProfile::backward_input);
    cost.weight = mean(stage, &runtime::StageProfile::backward_weight);
    const double full = mean(stage, &runtime::StageProfile::backward);
    if (full > 0) cost.backward = full;
    if (cost.input + cost.weight <= 0) cost.input = cost.weight = full / 2;
    cost.output_bytes = bytes[s].output;
    cost.input_bytes = s == 0 ? 0 : bytes[s - 1].output;
    cost.activation_bytes = bytes[s].kept;
    cost.parameter_bytes = bytes[s].parameters;
    cost.gradient_bytes = bytes[s].gradients;
    cost.optimizer_bytes = bytes[s].optimizer;
    costs.stages.push_back(cost);
  }
  return costs;
}

std::string cost_file(const plan::Costs& costs, int microbatches, const std::string& heading) {
  std::string text = str_cat("# ", heading,
                             "\n# Measured by penstock train; seconds and bytes of one microbatch.\n"
                             "microbatches = ",
                             microbatches, "\n");
  for (const plan::StageCosts& stage : costs.stages) text += "\n[[stages]]\n" + to_toml(stage);
  return text;
}

std::string topology_text(const ParallelOptions& parallel) {
  std::string text = counted(parallel.pp, "pipeline rank");
  if (parallel.tp > 1) text += " x " + counted(parallel.tp, "tensor-parallel rank");
  if (parallel.dp > 1) text += " x " + counted(parallel.dp, "replica");
  return text;
}

namespace {

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M UTC", &parts)};
}

// The measured memory of each rank, or the largest if there are many ranks.
std::string memory_text(const std::vector<std::uint64_t>& peak) {
  constexpr std::size_t most = 8;
  if (peak.size() > most)
    return "at most " + format_bytes(*std::max_element(peak.begin(), peak.end())) + " per rank";
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < peak.size(); ++rank)
    texts.push_back(str_cat("rank ", rank, ": ", format_bytes(peak[rank])));
  return join(texts, ", ");
}

// The prediction from the costs, then the measured step.
view::Drawing draw_step(const schedule::Program& program, const schedule::Timeline& measured,
                        const plan::Costs& costs, const MeasuredStep& step) {
  view::Drawing drawing = view::draw(simulate(program, costs), view::TimeUnit::Seconds);
  drawing.title = program.name() + ": a measured step next to its prediction";
  drawing.facts = {{"model", step.model},
                   {"step", std::to_string(step.step)},
                   {"date", utc_now()},
                   {"topology", step.topology},
                   {"schedule", str_cat(program.name(), ", ", counted(program.num_stages(), "stage"), ", ",
                                        counted(program.microbatches(), "microbatch"))}};
  add_panel(drawing, measured);
  if (!step.peak_memory.empty())
    drawing.panels.back().summary.emplace_back(
        step.is_resident ? "peak resident memory of the run" : "peak memory of the run",
        memory_text(step.peak_memory));
  return drawing;
}

}  // namespace

std::string timeline_page(const schedule::Program& program, const schedule::Timeline& measured,
                          const plan::Costs& costs, const MeasuredStep& step) {
  return to_html(draw_step(program, measured, costs, step));
}

std::string timeline_trace(const schedule::Program& program, const schedule::Timeline& measured,
                           const plan::Costs& costs, const MeasuredStep& step) {
  return to_trace(draw_step(program, measured, costs, step));
}

std::uint64_t peak_memory_bytes(c10::Device device) {
  if (!device.is_cpu()) {
    using StatType = c10::CachingDeviceAllocator::StatType;
    const auto stats = at::accelerator::getDeviceStats(device.index());
    return static_cast<std::uint64_t>(
        stats.allocated_bytes[static_cast<std::size_t>(StatType::AGGREGATE)].peak);
  }
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
  }
  return 0;
}

std::uint64_t device_memory_bytes(c10::Device device) {
  at::globalContext().lazyInitDevice(device.type());
  const auto index = std::max<c10::DeviceIndex>(device.index(), 0);
  return at::getDeviceAllocator(device.type())->getMemoryInfo(index).second;
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw_storage_error("write", path, errno);
}

}  // namespace penstock::train
