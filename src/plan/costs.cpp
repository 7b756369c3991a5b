// The arithmetic of costs, and their checks.
// Adds up the costs of layers to those of a stage, and checks that the numbers make sense.
#include <penstock/base/error.h>
#include <penstock/plan/costs.h>

#include <cmath>

namespace penstock {

StageCosts merge_layers(std::span<const Layer> layers) {
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
  const StageId source = std::min(from, to);  // a gradient is as large as what it is the gradient of
  const StageId target = std::max(from, to);
  if (!skip_bytes.empty()) {
    if (const auto found = skip_bytes.find({source, target}); found != skip_bytes.end()) return found->second;
  }
  return stages.at(static_cast<std::size_t>(source.value)).output_bytes;
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

namespace {

bool is_time(double time) {
  return time >= 0 && time <= largest_time;
}

void check_time(double time, const char* what, std::size_t stage) {
  if (is_time(time)) return;
  throw UsageError("stage " + std::to_string(stage) + ": " + what + " must be a time of 0 to 1e18");
}

void check_bytes(const StageCosts& stage, std::size_t index) {
  for (const std::uint64_t bytes :
       {stage.activation_bytes, stage.weight_bytes, stage.output_bytes, stage.input_bytes,
        stage.parameter_bytes, stage.gradient_bytes, stage.optimizer_bytes, stage.unsharded_bytes}) {
    if (bytes > largest_bytes)
      throw UsageError("stage " + std::to_string(index) + ": " + std::to_string(bytes) +
                       " bytes are more than a stage can have (1e14)");
  }
}

void check_link(const Link& link) {
  if (!is_time(link.latency)) throw UsageError("a link's latency must be a time of 0 to 1e18");
  if (!(link.bandwidth >= smallest_bandwidth)) throw UsageError("a link's bandwidth must be at least 1e-6");
}

}  // namespace

void check_costs(const Costs& costs, int stages) {
  if (costs.stages.size() != static_cast<std::size_t>(stages)) {
    throw UsageError("the costs are for " + std::to_string(costs.stages.size()) +
                     " stages, but the schedule has " + std::to_string(stages));
  }
  for (std::size_t i = 0; i < costs.stages.size(); ++i) {
    const StageCosts& stage = costs.stages[i];
    check_time(stage.forward, "forward", i);
    check_time(stage.input, "input", i);
    check_time(stage.weight, "weight", i);
    check_time(stage.full_backward(), "backward", i);
    check_time(stage.unshard, "unshard", i);
    check_time(stage.reshard, "reshard", i);
    check_time(stage.reduce_grad, "reduce_grad", i);
    check_bytes(stage, i);
  }
  check_link(costs.link);
  for (const auto& [pair, link] : costs.links) check_link(link);
  for (const auto& [edge, bytes] : costs.skip_bytes)
    if (bytes > largest_bytes) throw UsageError("a message of more than 1e14 bytes");
  if (!is_time(costs.overhead)) throw UsageError("overhead must be a time of 0 to 1e18");
  if (!(costs.overlap >= 0 && costs.overlap <= 1)) throw UsageError("overlap must lie between 0 and 1");
}

}  // namespace penstock
