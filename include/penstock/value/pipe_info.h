// What a stage may ask about the pipeline that it was cut from.
#pragma once

#include <optional>
#include <string>

namespace penstock {

struct PipeInfo {
  std::optional<std::string> graph;  //!< the whole graph's text; none for stages that the user wrote by hand
  int num_stages = 0;
  bool has_loss_and_backward = false;
};

}  // namespace penstock
