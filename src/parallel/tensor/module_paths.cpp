// Wildcard matching with two pointers and backtracking to the last `*`.
#include "parallel/tensor/module_paths.h"

namespace penstock::parallel {

bool path_fits(std::string_view pattern, std::string_view path) {
  std::size_t p = 0, t = 0, star = std::string_view::npos, retry = 0;
  while (t < path.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = t;
    } else if (p < pattern.size() && (pattern[p] == path[t] || (pattern[p] == '?' && path[t] != '.'))) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos && path[retry] != '.') {
      p = star + 1;
      t = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace penstock::parallel
