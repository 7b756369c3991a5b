// A request of the page, read from JSON.
#pragma once

#include "api/model.h"

#include <penstock/schedule/send_mode.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::playground {

//! Where a timeline comes from: a named schedule, `Auto`, or the text of a schedule file.
struct Source {
  std::string schedule;  //!< the name, or the file name if `csv` is set
  int stages_per_rank = 1;
  bool recompute = false;
  std::vector<int> first_layer;  //!< of the planner's partition; empty: equal stages
  std::optional<std::string> csv;
};

struct Request {
  std::string operation;
  int ranks = 1;
  int microbatches = 1;
  schedule::SendMode send_mode = schedule::SendMode::Buffered;
  std::optional<std::uint64_t> memory_cap;
  Model model;
  Source source;
  std::string format;                //!< of an export
  std::vector<int> stages_per_rank;  //!< for the planner to try
  bool recomputation = true;         //!< whether the planner tries it
};

//! Throws a ParseError or a UsageError. Fields that are missing keep their defaults.
Request read_request(std::string_view text);

}  // namespace penstock::playground
