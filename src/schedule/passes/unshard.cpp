// Pass: UNSHARD and RESHARD. Before each action the next few stages that the rank will use are unsharded
// (prefetched), and those that are not among them resharded.
#include "schedule/passes/python_set.h"

#include <penstock/schedule/lower.h>

#include <algorithm>
#include <utility>

namespace penstock {
namespace {

// The stages that the actions from some place on use, soonest first. Walking a list from its end, each action
// moves its stages to the front.
class NextStages {
 public:
  void use(int stage, std::size_t place) {
    auto found =
        std::find_if(order_.begin(), order_.end(), [&](const Use& use) { return use.stage == stage; });
    if (found == order_.end()) found = order_.insert(found, {stage, place});
    found->place = place;
    std::rotate(order_.begin(), found, found + 1);
  }

  // The first `count`, and one more where both belong to one overlap.
  void first(std::size_t count, std::vector<int>& stages) const {
    stages.clear();
    for (std::size_t i = 0; i < order_.size(); ++i) {
      if (i > count || (i == count && order_[i].place != order_[i - 1].place)) break;
      stages.push_back(order_[i].stage);
    }
  }

 private:
  struct Use {
    int stage;
    std::size_t place;
  };
  std::vector<Use> order_;
};

// The stages that are wanted before each action up to `until`, unless an earlier entry has that place.
struct Wanted {
  std::size_t until;
  std::vector<int> stages;
};

std::vector<Wanted> wanted_stages(const ActionList& list, std::size_t count) {
  std::vector<Wanted> wanted;
  NextStages next;
  std::vector<int> now;
  for (std::size_t i = list.size(); i-- > 0;) {
    if (list[i].kind() == ActionKind::Overlap) next.use(list[i].backward_part().stage().value, i);
    next.use(list[i].stage().value, i);
    next.first(count, now);
    if (wanted.empty() || wanted.back().stages != now) wanted.push_back({i, now});
  }
  std::reverse(wanted.begin(), wanted.end());
  return wanted;
}

bool has(const std::vector<int>& stages, int stage) {
  return std::find(stages.begin(), stages.end(), stage) != stages.end();
}

// Reshards what is no longer wanted, then unshards what is.
void change(PythonSet& active, const std::vector<int>& wanted, ActionList& result) {
  for (const int stage : active.values()) {
    if (has(wanted, stage)) continue;
    active.remove(stage);
    result.push_back(Action::reshard(StageId(stage)));
  }
  for (const int stage : wanted) {
    if (active.contains(stage)) continue;
    active.add(stage);
    result.push_back(Action::unshard(StageId(stage)));
  }
}

}  // namespace

Draft add_unshard(Draft draft, const LowerOptions& options) {
  const auto count = static_cast<std::size_t>(std::max(1, options.max_active_stages));
  for (ActionList& list : draft.ranks) {
    ActionList result;
    result.reserve(list.size() + 16);
    PythonSet active;
    std::size_t place = 0;
    for (const Wanted& wanted : wanted_stages(list, count)) {
      change(active, wanted.stages, result);
      for (; place <= wanted.until; ++place) result.push_back(list[place]);
    }
    change(active, {}, result);
    list = std::move(result);
  }
  return draft;
}

}  // namespace penstock
