// Information about the pipeline that a stage belongs to.
#pragma once

#include <optional>
#include <string>

namespace penstock::pipe {

//! A summary of a split model.
struct PipeInfo {
  std::optional<std::string> graph;  //!< text of the unsplit graph; nullopt for hand-written stages
  int num_stages = 0;
  bool has_loss_and_backward = false;
};

}  // namespace penstock::pipe
