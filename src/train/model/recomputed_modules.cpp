// Resolves patterns of module paths.
#include "train/model/recomputed_modules.h"

#include "base/text.h"
#include "parallel/tensor/module_paths.h"

#include <penstock/base/error.h>

#include <algorithm>

namespace penstock::train {
namespace {

bool fits_any(const std::vector<std::string>& patterns, std::string_view path) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return parallel::path_fits(pattern, path); });
}

bool is_inside_match(const std::vector<std::string>& patterns, const std::string& path) {
  for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1))
    if (fits_any(patterns, std::string_view(path).substr(0, dot))) return true;
  return false;
}

}  // namespace

std::vector<std::string> matching_modules(const std::vector<std::string>& patterns,
                                          const std::vector<std::string>& paths) {
  std::vector<std::string> modules;
  for (const std::string& path : paths)
    if (fits_any(patterns, path) && !is_inside_match(patterns, path)) modules.push_back(path);
  return modules;
}

std::vector<std::string> recomputed_modules(const std::vector<std::string>& patterns,
                                            const std::vector<std::string>& paths) {
  for (const std::string& pattern : patterns) {
    if (std::any_of(paths.begin(), paths.end(),
                    [&](const std::string& path) { return parallel::path_fits(pattern, path); }))
      continue;
    throw UsageError(
        "recompute_modules: no module of the model that can be recomputed matches " + quote(pattern, 200), {},
        did_you_mean(pattern, paths, "`*` matches within one component of a path: blocks.*.mlp"));
  }
  return matching_modules(patterns, paths);
}

}  // namespace penstock::train
