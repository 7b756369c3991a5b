// The costs that the playground's user enters: one number for the share of each rank, or one per stage.
#pragma once

#include <penstock/plan/costs.h>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::playground {

//! A time or a number of bytes per microbatch. With a list, unit i (a stage or layer) costs `list[i]`.
//! Without one, the units of each rank share `per_rank` equally, so that schedules with different numbers of
//! stages run the same model.
struct Quantity {
  std::string name;
  double per_rank = 0;
  std::vector<double> list;
};

struct Model {
  Quantity forward{"forward", 1, {}};
  Quantity input{"input", 1, {}};
  Quantity weight{"weight", 1, {}};
  Quantity activation_bytes{"activation_bytes", 1, {}};
  Quantity weight_bytes{"weight_bytes", 0, {}};
  Quantity parameter_bytes{"parameter_bytes", 0, {}};
  std::uint64_t output_bytes = 0;  //!< the size of a message, the same between all stages
  plan::Link link;
  double overlap = 0;
};

//! The costs of `units` stages on `ranks` ranks. Throws a UsageError if a list has another length.
plan::Costs stage_costs(const Model& model, int ranks, int units);

//! The layers that the planner partitions: one per entry of the lists, or four per rank without lists.
std::vector<plan::Layer> layers_of(const Model& model, int ranks);

//! The costs of stages that consist of the given layers. `first_layer` is that of a Plan.
plan::Costs partitioned_costs(const Model& model, int ranks, const std::vector<int>& first_layer);

//! A cost file for `penstock simulate --costs`.
std::string to_toml(const plan::Costs& costs);

}  // namespace penstock::playground
