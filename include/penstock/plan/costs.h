// The cost model of a step: times and bytes per stage, and the links between ranks. Plain data: the tool
// reads it from TOML, the runtime can measure it, the simulator and the planner use it. docs/simulation.md
// explains each field.
#pragma once

#include <penstock/base/ids.h>

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::plan {

//! Times (in seconds or any other unit) and bytes of one stage, or of one layer, per microbatch.
struct StageCosts {
  double forward = 1;
  double input = 1;                //!< I: the gradient of the stage's inputs
  double weight = 1;               //!< W: the gradients of its parameters
  std::optional<double> backward;  //!< B; default: input + weight
  double unshard = 0;
  double reshard = 0;
  double reduce_grad = 0;

  std::uint64_t activation_bytes = 1;  //!< in use from F until the end of I or B
  std::uint64_t weight_bytes = 0;      //!< in use from F until the end of W or B (needed by W)
  std::uint64_t output_bytes = 0;      //!< size of a message to the next stage, and of its gradient
  std::uint64_t input_bytes = 0;       //!< kept per microbatch if the stage recomputes
  std::uint64_t parameter_bytes = 0;
  std::uint64_t gradient_bytes = 0;
  std::uint64_t optimizer_bytes = 0;
  std::uint64_t unsharded_bytes = 0;  //!< additionally in use from UNSHARD until RESHARD
  //! Frees the activations except `input_bytes` after F and computes them again before I or B.
  bool recompute = false;

  double full_backward() const { return backward.value_or(input + weight); }
  //! The computation time of one microbatch, including recomputation.
  double total_time() const { return forward * (recompute ? 2 : 1) + full_backward(); }
  //! Bytes in use during the entire step.
  std::uint64_t resident_bytes() const { return parameter_bytes + gradient_bytes + optimizer_bytes; }
  //! Bytes in use per microbatch between its F and its backward pass.
  std::uint64_t in_flight_bytes() const { return recompute ? input_bytes : activation_bytes + weight_bytes; }

  friend bool operator==(const StageCosts&, const StageCosts&) = default;
};

//! One layer of a model that is not yet partitioned into stages.
struct Layer {
  std::string name;
  StageCosts costs;

  friend bool operator==(const Layer&, const Layer&) = default;
};

//! The costs of a stage with these layers: sums of times and bytes; the output message is that of the last
//! layer. Throws UsageError if check_layers does.
StageCosts merge_layers(std::span<const Layer> layers);

//! A message of n bytes takes latency + n / bandwidth.
struct Link {
  double latency = 0;
  double bandwidth = std::numeric_limits<double>::infinity();  //!< bytes per second

  double time(std::uint64_t bytes) const { return latency + static_cast<double>(bytes) / bandwidth; }

  friend bool operator==(const Link&, const Link&) = default;
};

//! The costs of a pipeline.
struct Costs {
  std::vector<StageCosts> stages;
  Link link;                                    //!< for every ordered pair of ranks that is not in `links`
  std::map<std::pair<Rank, Rank>, Link> links;  //!< keys: (from, to)
  std::map<std::pair<StageId, StageId>, std::uint64_t> skip_bytes;  //!< message sizes of skip edges
  //! The fraction of the shorter part of an OVERLAP_F_B that the longer part hides, from 0 (none) to 1.
  double overlap = 0;
  //! The fixed time per F, I, W and B, independent of the microbatch size. Only the planner uses it.
  double overhead = 0;

  //! The link from one rank to another: its entry in `links`, else `link`.
  const Link& link_between(Rank from, Rank to) const;
  //! The size of a message from stage `from` to stage `to`, forward or backward.
  std::uint64_t message_bytes(StageId from, StageId to) const;

  //! All stages cost the same and transfers are free.
  static Costs uniform(int stages, StageCosts each = {});

  friend bool operator==(const Costs&, const Costs&) = default;
};

//! The same costs with recomputation in every stage.
Costs with_recomputation(Costs costs);

//! Throws a UsageError for times that are negative or not finite, bandwidth that is not positive, overlap
//! outside 0..1, a wrong number of stages, and totals over all stages and microbatches that overflow a double
//! (times) or 63 bits (bytes).
void check_costs(const Costs& costs, int stages, int microbatches = 1);
//! The same for the layers of a model.
void check_layers(std::span<const Layer> layers, int microbatches = 1);

}  // namespace penstock::plan
