// Pass: inserts UNSHARD and RESHARD. Before each action, unshards (prefetches) the next few stages that the
// rank will use and reshards all others.
#include <penstock/schedule/lower.h>

#include <algorithm>
#include <set>
#include <utility>

namespace penstock::schedule {
namespace {

// The stages that the actions from some position on use, next use first. Built by walking a list backwards:
// each action moves its stages to the front.
class NextStages {
 public:
  void use(int stage, std::size_t position) {
    auto found =
        std::find_if(order_.begin(), order_.end(), [&](const Use& use) { return use.stage == stage; });
    if (found == order_.end()) found = order_.insert(found, {stage, position});
    found->position = position;
    std::rotate(order_.begin(), found, found + 1);
  }

  // Returns the first `count` stages, plus one more if it belongs to the same overlap as the last.
  void first(std::size_t count, std::vector<int>& stages) const {
    stages.clear();
    for (std::size_t i = 0; i < order_.size(); ++i) {
      if (i > count || (i == count && order_[i].position != order_[i - 1].position)) break;
      stages.push_back(order_[i].stage);
    }
  }

 private:
  struct Use {
    int stage;
    std::size_t position;
  };
  std::vector<Use> order_;
};

// The stages needed for the actions up to index `until`, starting after the previous entry.
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

// Reshards the stages that are no longer needed, then unshards the new ones.
void change(std::set<int>& active, const std::vector<int>& wanted, ActionList& result) {
  std::erase_if(active, [&](int stage) {
    if (has(wanted, stage)) return false;
    result.push_back(Action::reshard(StageId(stage)));
    return true;
  });
  for (const int stage : wanted)
    if (active.insert(stage).second) result.push_back(Action::unshard(StageId(stage)));
}

}  // namespace

Draft add_unshard(Draft draft, const LowerOptions& options) {
  const auto count = static_cast<std::size_t>(std::max(1, options.max_active_stages));
  for (ActionList& list : draft.ranks) {
    ActionList result;
    result.reserve(list.size() + 16);
    std::set<int> active;
    std::size_t position = 0;
    for (const Wanted& wanted : wanted_stages(list, count)) {
      change(active, wanted.stages, result);
      for (; position <= wanted.until; ++position) result.push_back(list[position]);
    }
    change(active, {}, result);
    list = std::move(result);
  }
  return draft;
}

}  // namespace penstock::schedule
