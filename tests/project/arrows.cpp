// Parses the arrows and computes their transitive closure.
#include "arrows.h"

#include <regex>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace penstock::test {
namespace {

std::vector<std::string> names_in(const std::string& text) {
  static const std::regex word("[a-z]+");
  std::vector<std::string> names;
  for (std::sregex_iterator it(text.begin(), text.end(), word), end; it != end; ++it)
    names.push_back(it->str());
  return names;
}

void follow(const Reach& direct, const std::string& from, const std::string& at,
            std::set<std::string>& seen) {
  if (const auto it = direct.find(at); it != direct.end()) {
    for (const std::string& next : it->second) {
      if (next == from) throw std::runtime_error("the arrows go round in a circle through " + from);
      if (seen.insert(next).second) follow(direct, from, next, seen);
    }
  }
}

}  // namespace

std::string arrows_block(const std::string& document) {
  const std::string fence = "```arrows\n";
  const std::size_t begin = document.find(fence);
  if (begin == std::string::npos) throw std::runtime_error("no ```arrows block");
  const std::size_t start = begin + fence.size();
  return document.substr(start, document.find("```", start) - start);
}

Reach read_arrows(const std::string& block) {
  Reach direct;
  std::istringstream lines(block);
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> included;
    for (std::size_t at = 0; at <= line.size();) {
      const std::size_t next = std::min(line.find("<-", at), line.size());
      const std::vector<std::string> group = names_in(line.substr(at, next - at));
      for (const std::string& name : group) direct[name].insert(included.begin(), included.end());
      included = group;
      at = next + 2;
    }
  }
  Reach reach;
  for (const auto& [name, unused] : direct) {
    follow(direct, name, name, reach[name]);
    reach[name].insert(name);
  }
  return reach;
}

}  // namespace penstock::test
