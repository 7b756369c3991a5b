// Reads event files with the real TensorBoard.
#pragma once

#include "support/program.h"

#include <nlohmann/json.hpp>

#include <cstdlib>
#include <optional>
#include <string>

namespace penstock::test {

//! The scalars in a directory: {tag: [[step, value], …]}. nullopt if PENSTOCK_PYTHON names no Python with the
//! package `tensorboard`.
inline std::optional<nlohmann::json> read_tensorboard(const std::string& directory) {
  const char* const python = std::getenv("PENSTOCK_PYTHON");
  if (python == nullptr || run_program({python, "-c", "import tensorboard"}).code != 0) return std::nullopt;
  const Outcome outcome = run_program({python, PENSTOCK_SOURCE_DIR "/tests/base/read_events.py", directory});
  if (outcome.code != 0) throw std::runtime_error(outcome.err);
  return nlohmann::json::parse(outcome.out);
}

}  // namespace penstock::test
