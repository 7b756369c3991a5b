// The immutable state of a pipeline after setup, which all steps share.
#pragma once

#include <penstock/runtime/pipeline.h>

#include <c10/core/Stream.h>

#include <array>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace penstock::runtime {

struct PipelineSetup {
  std::vector<PipelineStage> stages;  //!< of this rank, ascending
  schedule::Program program;
  PipelineOptions options;
  comm::Group group;  //!< a separate group, so that messages cannot mix with others
  Rank rank;          //!< in the group and in the program

  std::vector<const PipelineStage*> by_index{};        //!< by stage; null for stages of other ranks
  std::vector<std::vector<std::string>> edge_skips{};  //!< the names of the skip values on each edge
  //! The keyword arguments that the stages of all ranks take; nullopt if a stage accepts any.
  std::optional<std::set<std::string>> keywords{};
  bool has_loss = false;  //!< whether the rank of the last stage has a loss
  //! On a device: the streams for the forward passes of overlaps (overlap.cpp explains why there are two).
  std::optional<std::array<c10::Stream, 2>> overlap_streams{};

  const PipelineStage* stage(StageId index) const { return by_index[index.index()]; }
  Rank rank_of(StageId index) const { return program.placement().rank_of(index); }
  bool local(StageId index) const { return rank_of(index) == rank; }
  StageId last_stage() const { return StageId(program.num_stages() - 1); }
};

}  // namespace penstock::runtime
