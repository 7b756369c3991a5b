// Builds the edges between stages and indexes them by stage.
#include "base/text.h"

#include <penstock/base/error.h>
#include <penstock/schedule/wiring.h>

#include <algorithm>
#include <string>

namespace penstock::schedule {
namespace {

void check(const StageEdge& edge, int stages) {
  const std::string text = str_cat("the skip edge ", edge.from.value, " -> ", edge.to.value);
  if (edge.from.value < 0 || edge.to.value >= stages) {
    throw UsageError(str_cat(text, " is not within the ", stages, " stages"));
  }
  if (edge.from >= edge.to) throw UsageError(text + " does not lead to a later stage");
  if (edge.to.value == edge.from.value + 1) {
    throw UsageError(text + " connects adjacent stages", {},
                     "leave it out: each stage always feeds the next one");
  }
}

}  // namespace

Wiring::Wiring(int stages, std::vector<StageEdge> skips) : stages_(stages) {
  for (const StageEdge& edge : skips) check(edge, stages);
  std::sort(skips.begin(), skips.end());
  if (const auto twice = std::adjacent_find(skips.begin(), skips.end()); twice != skips.end()) {
    throw UsageError(
        str_cat("the skip edge ", twice->from.value, " -> ", twice->to.value, " is listed twice"));
  }
  for (int stage = 0; stage + 1 < stages; ++stage) edges_.push_back({StageId(stage), StageId(stage + 1)});
  edges_.insert(edges_.end(), skips.begin(), skips.end());

  const auto size = static_cast<std::size_t>(std::max(stages, 0)) + 1;
  in_start_.assign(size, 0);
  out_start_.assign(size, 0);
  for (const StageEdge& edge : edges_) {
    ++in_start_[edge.to.index() + 1];
    ++out_start_[edge.from.index() + 1];
  }
  for (std::size_t i = 1; i < size; ++i) {
    in_start_[i] += in_start_[i - 1];
    out_start_[i] += out_start_[i - 1];
  }
  in_.resize(edges_.size());
  out_.resize(edges_.size());
  std::vector<int> in_next = in_start_, out_next = out_start_;
  for (int index = 0; index < edges(); ++index) {
    in_[static_cast<std::size_t>(in_next[edge(index).to.index()]++)] = index;
    out_[static_cast<std::size_t>(out_next[edge(index).from.index()]++)] = index;
  }
}

std::span<const StageEdge> Wiring::skips() const {
  return std::span(edges_).subspan(static_cast<std::size_t>(std::max(stages_ - 1, 0)));
}

std::optional<int> Wiring::find(StageId from, StageId to) const {
  if (from.value < 0 || from.value >= stages_) return std::nullopt;
  for (const int index : out_of(from)) {
    if (edge(index).to == to) return index;
  }
  return std::nullopt;
}

}  // namespace penstock::schedule
