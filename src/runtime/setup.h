// What a pipeline is, once it is set up: everything that its steps share and none of them changes.
#pragma once

#include <penstock/runtime/pipeline.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace penstock {

struct PipelineSetup {
  std::vector<PipelineStage> stages;  //!< of this rank, ascending
  Program program;
  PipelineOptions options;
  Group group;  //!< of its own, so that its messages meet no others
  Rank rank;    //!< in the group and in the program

  std::vector<const PipelineStage*> by_index{};        //!< of all stages; null for other ranks'
  std::vector<std::vector<std::string>> edge_skips{};  //!< the names that travel along each edge
  //! The keyword arguments that the stages of all ranks take; nothing if one takes whatever it is given.
  std::optional<std::set<std::string>> keywords{};
  bool has_loss = false;  //!< the rank of the last stage has one

  const PipelineStage* stage(StageId index) const { return by_index[static_cast<std::size_t>(index.value)]; }
  Rank rank_of(StageId index) const { return program.placement().rank_of(index); }
  bool local(StageId index) const { return rank_of(index) == rank; }
  StageId last_stage() const { return StageId(program.stages() - 1); }
};

}  // namespace penstock
