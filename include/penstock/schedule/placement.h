// Which rank holds which stage.
#pragma once

#include <penstock/base/ids.h>

#include <string_view>
#include <vector>

namespace penstock {

//! How stages are dealt to ranks: round and round (0 1 2 0 1 2), or to and fro (0 1 2 2 1 0).
enum class PlacementStyle { Loop, V };

std::string_view placement_style_name(PlacementStyle style);
//! Reads `loop` or `v`; a UsageError names both.
PlacementStyle parse_placement_style(std::string_view name);

//! Entry s is the rank of stage s. A UsageError says what cannot be dealt: no ranks, fewer stages than ranks,
//! and for the V style a number of stages that is no multiple of the ranks.
std::vector<Rank> generate_stage_to_rank_mapping(int ranks, int stages,
                                                 PlacementStyle style = PlacementStyle::Loop);
//! Entry r lists the stages of rank r in ascending order.
std::vector<std::vector<StageId>> generate_rank_to_stage_mapping(int ranks, int stages,
                                                                 PlacementStyle style = PlacementStyle::Loop);

//! A map from stages to ranks, and back.
class Placement {
 public:
  Placement() = default;
  Placement(int ranks, std::vector<Rank> stage_to_rank);
  static Placement make(int ranks, int stages, PlacementStyle style);

  int ranks() const { return ranks_; }
  int stages() const { return static_cast<int>(stage_to_rank_.size()); }
  Rank rank_of(StageId stage) const { return stage_to_rank_[static_cast<std::size_t>(stage.value)]; }
  const std::vector<Rank>& stage_to_rank() const { return stage_to_rank_; }
  //! In ascending order.
  std::vector<StageId> stages_of(Rank rank) const;

  friend bool operator==(const Placement&, const Placement&) = default;

 private:
  int ranks_ = 0;
  std::vector<Rank> stage_to_rank_;
};

}  // namespace penstock
