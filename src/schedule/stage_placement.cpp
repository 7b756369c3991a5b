// Assigns stages to ranks.
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/schedule/action.h>
#include <penstock/schedule/stage_placement.h>

#include <string>
#include <utility>

namespace penstock::schedule {

std::string_view to_string(PlacementStyle style) {
  switch (style) {
    case PlacementStyle::Loop:
      return "loop";
    case PlacementStyle::V:
      return "v";
  }
  return "";
}

PlacementStyle parse_placement_style(std::string_view name) {
  if (name == "loop") return PlacementStyle::Loop;
  if (name == "v") return PlacementStyle::V;
  throw UsageError("unknown placement style " + quote(name), {}, "use 'loop' or 'v'");
}

std::vector<Rank> generate_stage_to_rank_mapping(int ranks, int stages, PlacementStyle style) {
  const std::string counts = str_cat(stages, " stages on ", ranks, " ranks");
  if (ranks < 1) throw UsageError("cannot place " + counts, {}, "use at least 1 rank");
  if (stages < ranks) {
    throw UsageError("cannot place " + counts + ": some ranks would have no stage", {},
                     str_cat("use at least ", ranks, " stages"));
  }
  if (stages > kMaxStages) {
    throw UsageError("cannot place " + counts, {}, str_cat("use at most ", kMaxStages, " stages"));
  }
  if (style == PlacementStyle::V && stages % ranks != 0) {
    throw UsageError(
        "cannot place " + counts +
            " in the v style: the number of stages is not a multiple of the number of ranks",
        {}, str_cat("use ", stages - stages % ranks, " or ", stages - stages % ranks + ranks, " stages"));
  }
  std::vector<Rank> mapping;
  mapping.reserve(static_cast<std::size_t>(stages));
  for (int stage = 0; stage < stages; ++stage) {
    const int column = stage % ranks;
    const bool back = style == PlacementStyle::V && (stage / ranks) % 2 == 1;
    mapping.emplace_back(back ? ranks - 1 - column : column);
  }
  return mapping;
}

std::vector<std::vector<StageId>> generate_rank_to_stage_mapping(int ranks, int stages,
                                                                 PlacementStyle style) {
  std::vector<std::vector<StageId>> mapping(static_cast<std::size_t>(ranks > 0 ? ranks : 0));
  const auto stage_to_rank = generate_stage_to_rank_mapping(ranks, stages, style);
  for (std::size_t stage = 0; stage < stage_to_rank.size(); ++stage) {
    mapping[stage_to_rank[stage].index()].emplace_back(static_cast<std::int64_t>(stage));
  }
  return mapping;
}

Placement::Placement(int ranks, std::vector<Rank> stage_to_rank)
    : ranks_(ranks), stage_to_rank_(std::move(stage_to_rank)) {
  for (std::size_t stage = 0; stage < stage_to_rank_.size(); ++stage) {
    const int rank = stage_to_rank_[stage].value;
    if (rank >= 0 && rank < ranks_) continue;
    throw UsageError(str_cat("stage ", stage, " is placed on rank ", rank, " of ", ranks_));
  }
}

Placement Placement::make(int ranks, int stages, PlacementStyle style) {
  return {ranks, generate_stage_to_rank_mapping(ranks, stages, style)};
}

std::vector<StageId> Placement::stages_of(Rank rank) const {
  std::vector<StageId> found;
  for (int stage = 0; stage < num_stages(); ++stage) {
    if (rank_of(StageId(stage)) == rank) found.emplace_back(stage);
  }
  return found;
}

}  // namespace penstock::schedule
