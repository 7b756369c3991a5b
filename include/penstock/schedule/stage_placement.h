// Which rank runs which stage.
#pragma once

#include <penstock/base/ids.h>

#include <string_view>
#include <vector>

namespace penstock::schedule {

//! How stages are assigned to ranks: round-robin (0 1 2 0 1 2) or in alternating directions (0 1 2 2 1 0).
enum class PlacementStyle { Loop, V };

std::string_view to_string(PlacementStyle style);
//! Parses `loop` or `v`. Throws a UsageError that lists both.
PlacementStyle parse_placement_style(std::string_view name);

//! Entry s is the rank of stage s. Throws UsageError if there are no ranks, fewer stages than ranks, or,
//! for the V style, a number of stages that is not a multiple of the number of ranks.
std::vector<Rank> generate_stage_to_rank_mapping(int ranks, int stages,
                                                 PlacementStyle style = PlacementStyle::Loop);
//! Entry r lists the stages of rank r in ascending order.
std::vector<std::vector<StageId>> generate_rank_to_stage_mapping(int ranks, int stages,
                                                                 PlacementStyle style = PlacementStyle::Loop);

//! Maps stages to ranks and ranks to stages.
class Placement {
 public:
  Placement() = default;
  //! Entry s is the rank of stage s. Throws UsageError if an entry is not in 0 … ranks-1.
  Placement(int ranks, std::vector<Rank> stage_to_rank);
  //! The placement of generate_stage_to_rank_mapping, with the same errors.
  static Placement make(int ranks, int stages, PlacementStyle style);

  int ranks() const { return ranks_; }
  int num_stages() const { return static_cast<int>(stage_to_rank_.size()); }
  Rank rank_of(StageId stage) const { return stage_to_rank_.at(stage.index()); }
  const std::vector<Rank>& stage_to_rank() const { return stage_to_rank_; }
  //! In ascending order.
  std::vector<StageId> stages_of(Rank rank) const;

  friend bool operator==(const Placement&, const Placement&) = default;

 private:
  int ranks_ = 0;
  std::vector<Rank> stage_to_rank_;
};

}  // namespace penstock::schedule
