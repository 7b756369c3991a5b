// Describes the stages of a model.
#include "report/stages.h"

#include "base/text.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

namespace penstock::tool {
namespace {

//! `blocks.` and 3 of `blocks.3`; nullopt if the name does not end in a number.
std::optional<std::pair<std::string, int>> numbered(const std::string& name) {
  const std::size_t digits = name.find_last_not_of("0123456789") + 1;
  int number = 0;
  const auto [end, error] = std::from_chars(name.data() + digits, name.data() + name.size(), number);
  if (error != std::errc()) return std::nullopt;
  return std::pair(name.substr(0, digits), number);
}

}  // namespace

std::size_t elements_of(const graph::Graph& graph, graph::Slot::Kind kind) {
  std::size_t elements = 0;
  for (const graph::Slot& slot : graph.slots) {
    const auto& meta = graph.value(slot.value).meta;
    if (slot.kind == kind && meta) elements += static_cast<std::size_t>(meta->numel());
  }
  return elements;
}

std::vector<std::string> modules_of(const pipe::Pipe& pipe, StageId stage) {
  std::map<std::string, int> holders;
  for (int s = 0; s < pipe.num_stages(); ++s) {
    for (const std::string& path : pipe.stage_module_paths(StageId(s))) ++holders[path];
  }
  std::vector<std::string> modules;
  for (const std::string& path : pipe.stage_module_paths(stage)) {
    const std::size_t dot = path.rfind('.');
    const bool inside = dot != std::string::npos && holders[path.substr(0, dot)] == 1;
    if (holders[path] == 1 && !inside) modules.push_back(path);
    const auto is_child = [&](const auto& item) { return item.first.starts_with(path + "."); };
    if (holders[path] > 1 && std::none_of(holders.begin(), holders.end(), is_child))
      modules.push_back(path + " (partial)");
  }
  return modules;
}

std::string module_ranges(const std::vector<std::string>& modules) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < modules.size();) {
    std::size_t last = i;
    auto next = numbered(modules[i]);
    while (next && last + 1 < modules.size()) {
      ++next->second;
      if (numbered(modules[last + 1]) != next) break;
      ++last;
    }
    texts.push_back(last == i ? modules[i] : modules[i] + (last == i + 1 ? ", " : " … ") + modules[last]);
    i = last + 1;
  }
  return join(texts, ", ");
}

}  // namespace penstock::tool
