// What a step costs: times and bytes for each stage, and the links between ranks. Plain data; the tool reads
// it from TOML, the runtime can measure it, the simulator and the planner use it. docs/simulation.md has the
// meaning of each.
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

namespace penstock {

//! Times (seconds, or any one unit) and bytes of one stage for one microbatch; also of one layer, of which
//! stages are made.
struct StageCosts {
  double forward = 1;
  double input = 1;                //!< I: the gradient of the stage's inputs
  double weight = 1;               //!< W: the gradients of its parameters
  std::optional<double> backward;  //!< B; without it, I and W one after the other
  double unshard = 0;
  double reshard = 0;
  double reduce_grad = 0;

  std::uint64_t activation_bytes = 1;  //!< held from F until the end of I or B
  std::uint64_t weight_bytes = 0;      //!< held from F until the end of W or B (what W still needs)
  std::uint64_t output_bytes = 0;      //!< one message to the next stage, and of its gradient on the way back
  std::uint64_t input_bytes = 0;       //!< what is kept of a microbatch when the stage recomputes
  std::uint64_t parameter_bytes = 0;
  std::uint64_t gradient_bytes = 0;
  std::uint64_t optimizer_bytes = 0;
  std::uint64_t unsharded_bytes = 0;  //!< held besides from UNSHARD until RESHARD
  //! Activations are dropped after F, all but `input_bytes`, and computed again before I or B.
  bool recompute = false;

  double full_backward() const { return backward.value_or(input + weight); }
  //! What the rank spends on one microbatch of this stage, recomputation included.
  double total_time() const { return forward * (recompute ? 2 : 1) + full_backward(); }
  //! Bytes that stay for the whole step.
  std::uint64_t resident_bytes() const { return parameter_bytes + gradient_bytes + optimizer_bytes; }
  //! Bytes that one microbatch holds between its F and its backward.
  std::uint64_t in_flight_bytes() const { return recompute ? input_bytes : activation_bytes + weight_bytes; }

  friend bool operator==(const StageCosts&, const StageCosts&) = default;
};

//! One layer of a model that has not been cut yet.
struct Layer {
  std::string name;
  StageCosts costs;

  friend bool operator==(const Layer&, const Layer&) = default;
};

//! A stage that holds these layers: times and bytes add up; the message out is the last layer's.
StageCosts merge_layers(std::span<const Layer> layers);

//! A message of n bytes takes latency + n / bandwidth.
struct Link {
  double latency = 0;
  double bandwidth = std::numeric_limits<double>::infinity();  //!< bytes a second

  double time(std::uint64_t bytes) const { return latency + static_cast<double>(bytes) / bandwidth; }

  friend bool operator==(const Link&, const Link&) = default;
};

//! The costs of a whole pipeline.
struct Costs {
  std::vector<StageCosts> stages;
  Link link;                                    //!< of every ordered pair of ranks that `links` does not name
  std::map<std::pair<Rank, Rank>, Link> links;  //!< from, to
  std::map<std::pair<StageId, StageId>, std::uint64_t> skip_bytes;  //!< messages of edges that skip stages
  //! The share of the shorter part of an OVERLAP_F_B that hides beneath the longer: 0 is one after the other,
  //! 1 all.
  double overlap = 0;
  //! The part of each F, I, W and B that does not shrink when microbatches get smaller; the planner's concern
  //! alone.
  double overhead = 0;

  const Link& link_between(Rank from, Rank to) const;
  //! The bytes of one message from stage `from` to stage `to`, forward or backward.
  std::uint64_t message_bytes(StageId from, StageId to) const;

  //! All stages alike, free links.
  static Costs uniform(int stages, StageCosts each = {});

  friend bool operator==(const Costs&, const Costs&) = default;
};

//! The same pipeline with every stage recomputing its activations.
Costs with_recomputation(Costs costs);

//! Bounds of costs, far from any machine's: sums of costs within them do not overflow.
inline constexpr double largest_time = 1e18, smallest_bandwidth = 1e-6;
inline constexpr std::uint64_t largest_bytes = 100'000'000'000'000;

//! Refuses, with a UsageError, negative or non-finite times, costs out of bounds, overlap outside 0..1, or
//! too few stages.
void check_costs(const Costs& costs, int stages);

}  // namespace penstock
