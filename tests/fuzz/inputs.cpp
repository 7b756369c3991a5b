// Loads corpora and runs a target.
#include "fuzz/targets.h"

#include <penstock/base/error.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace penstock::fuzz {

std::string file_content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

const char* problem_with(const Target& target, std::string_view bytes) {
  try {
    return target.check(bytes);
  } catch (const Error&) {
    return nullptr;
  }
}

std::vector<std::string> inputs_of(const Target& target) {
  std::vector<std::filesystem::path> paths;
  const std::string directory = std::string(PENSTOCK_SOURCE_DIR) + "/tests/fuzz/corpus/" + target.name;
  if (std::filesystem::is_directory(directory))
    for (const auto& entry : std::filesystem::directory_iterator(directory)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> inputs;
  for (const auto& path : paths) inputs.push_back(file_content(path.string()));
  if (target.seeds != nullptr)
    for (std::string& seed : target.seeds()) inputs.push_back(std::move(seed));
  return inputs;
}

}  // namespace penstock::fuzz
