// Merges the costs of layers into those of a stage, and validates costs.
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/plan/costs.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace penstock::plan {
namespace {

constexpr double kMaxTotalBytes = 9.2e18;  //!< limit of the simulator's signed counters, just below 2^63

//! `unit` is "stage" or "layer".
void check_times(const StageCosts& costs, const char* unit, std::size_t index) {
  const auto times = std::to_array<std::pair<const char*, double>>({{"forward", costs.forward},
                                                                    {"input", costs.input},
                                                                    {"weight", costs.weight},
                                                                    {"backward", costs.full_backward()},
                                                                    {"unshard", costs.unshard},
                                                                    {"reshard", costs.reshard},
                                                                    {"reduce_grad", costs.reduce_grad}});
  for (const auto& [what, seconds] : times) {
    if (seconds >= 0 && std::isfinite(seconds)) continue;
    throw UsageError(str_cat(unit, " ", index, ": ", what, " must be finite and not negative"));
  }
}

void check_total(double seconds, double bytes) {
  if (!std::isfinite(seconds)) {
    throw UsageError("the sum of the times overflows", {}, "use a larger unit of time");
  }
  if (!(bytes <= kMaxTotalBytes))
    throw UsageError("the sum of the bytes exceeds 2^63", {}, "use smaller sizes");
}

//! Upper bounds of the time and the memory of a stage for this number of microbatches.
double most_seconds(const StageCosts& costs, double microbatches) {
  const double backward = std::max(costs.input + costs.weight, costs.full_backward());
  return microbatches * (2 * costs.forward + backward + costs.unshard + costs.reshard + costs.reduce_grad);
}

double most_held(const StageCosts& costs, double microbatches) {
  const auto number = [](std::uint64_t bytes) { return static_cast<double>(bytes); };
  const double resident = number(costs.parameter_bytes) + number(costs.gradient_bytes) +
                          number(costs.optimizer_bytes) + number(costs.unsharded_bytes);
  const double in_flight = number(costs.activation_bytes) + number(costs.weight_bytes) +
                           number(std::max(costs.input_bytes, costs.output_bytes));
  return resident + microbatches * in_flight;
}

void check_link(const Link& link) {
  if (!(link.latency >= 0) || !std::isfinite(link.latency))
    throw UsageError("the latency of a link must be finite and not negative");
  if (!(link.bandwidth > 0)) throw UsageError("the bandwidth of a link must be positive");
}

}  // namespace

StageCosts merge_layers(std::span<const Layer> layers) {
  check_layers(layers);
  StageCosts sum{.forward = 0, .input = 0, .weight = 0, .activation_bytes = 0};
  double backward = 0;
  bool own_backward = false;
  for (const auto& [name, layer] : layers) {
    sum.forward += layer.forward;
    sum.input += layer.input;
    sum.weight += layer.weight;
    backward += layer.full_backward();
    own_backward |= layer.backward.has_value();
    sum.unshard += layer.unshard;
    sum.reshard += layer.reshard;
    sum.reduce_grad += layer.reduce_grad;
    sum.activation_bytes += layer.activation_bytes;
    sum.weight_bytes += layer.weight_bytes;
    sum.parameter_bytes += layer.parameter_bytes;
    sum.gradient_bytes += layer.gradient_bytes;
    sum.optimizer_bytes += layer.optimizer_bytes;
    sum.unsharded_bytes += layer.unsharded_bytes;
    sum.recompute |= layer.recompute;
  }
  if (own_backward) sum.backward = backward;
  if (!layers.empty()) {
    sum.output_bytes = layers.back().costs.output_bytes;
    sum.input_bytes = layers.front().costs.input_bytes;
  }
  return sum;
}

const Link& Costs::link_between(Rank from, Rank to) const {
  if (links.empty()) return link;
  const auto found = links.find({from, to});
  return found == links.end() ? link : found->second;
}

std::uint64_t Costs::message_bytes(StageId from, StageId to) const {
  const StageId source = std::min(from, to);  // a gradient has the size of its value
  const StageId target = std::max(from, to);
  if (!skip_bytes.empty()) {
    if (const auto found = skip_bytes.find({source, target}); found != skip_bytes.end()) return found->second;
  }
  return stages.at(source.index()).output_bytes;
}

Costs Costs::uniform(int stages, StageCosts each) {
  Costs costs;
  costs.stages.assign(static_cast<std::size_t>(stages), each);
  return costs;
}

Costs with_recomputation(Costs costs) {
  for (StageCosts& stage : costs.stages) stage.recompute = true;
  return costs;
}

void check_layers(std::span<const Layer> layers, int microbatches) {
  double seconds = 0, bytes = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    check_times(layers[i].costs, "layer", i);
    seconds += most_seconds(layers[i].costs, microbatches);
    bytes += most_held(layers[i].costs, microbatches);
  }
  check_total(seconds, bytes);
}

void check_costs(const Costs& costs, int stages, int microbatches) {
  if (costs.stages.size() != static_cast<std::size_t>(stages)) {
    throw UsageError(
        str_cat("the costs are for ", costs.stages.size(), " stages, but the schedule has ", stages));
  }
  double seconds = 0, bytes = 0;
  std::uint64_t largest = 0;  // size of the largest message
  for (std::size_t i = 0; i < costs.stages.size(); ++i) {
    check_times(costs.stages[i], "stage", i);
    seconds += most_seconds(costs.stages[i], microbatches);
    bytes += most_held(costs.stages[i], microbatches);
    largest = std::max(largest, costs.stages[i].output_bytes);
  }
  for (const auto& [edge, message] : costs.skip_bytes) largest = std::max(largest, message);
  check_link(costs.link);
  double slowest = costs.link.time(largest);
  for (const auto& [pair, link] : costs.links) {
    check_link(link);
    slowest = std::max(slowest, link.time(largest));
  }
  // Each pair of stages exchanges at most one message per microbatch in each direction.
  const auto count = static_cast<double>(stages);
  check_total(seconds + microbatches * count * count * slowest, bytes);
  if (!(costs.overlap >= 0 && costs.overlap <= 1)) throw UsageError("overlap must be between 0 and 1");
  if (!(costs.overhead >= 0) || !std::isfinite(costs.overhead))
    throw UsageError("overhead must be finite and not negative");
}

}  // namespace penstock::plan
