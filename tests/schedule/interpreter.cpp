// Step-by-step execution of lowered lists; see interpreter.h.
#include "schedule/interpreter.h"

#include <array>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock::schedule::testing_support {
namespace {

// A message: direction (0 forward, 1 backward), from stage, to stage, microbatch.
using Message = std::array<int, 4>;
using Batch = std::pair<int, int>;  // stage, microbatch

struct RankState {
  std::size_t next = 0;
  std::set<Batch> outputs, input_gradients, weight_gradients;
  std::set<Message> posted;
  std::set<int> unsharded;
  std::map<int, std::deque<Message>>
      queue;  // ordered mode: unfinished transfers by peer rank, in program order
};

enum class Step { Done, Wait, Fail };

class World {
 public:
  World(const schedule::Draft& draft, schedule::SendMode mode)
      : draft_(draft), mode_(mode), ranks_(draft.ranks.size()) {
    for (const schedule::ActionList& list : draft.ranks) {
      for (const schedule::Action& action : list) look(action);
    }
  }

  bool run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        while (ranks_[r].next < draft_.ranks[r].size()) {
          const Step step = perform(static_cast<int>(r), draft_.ranks[r][ranks_[r].next]);
          if (step == Step::Fail) return false;
          if (step == Step::Wait) break;
          ++ranks_[r].next;
          moved = true;
        }
      }
      if (mode_ == schedule::SendMode::Ordered && finish_transfers()) moved = true;
    }
    return finished();
  }

 private:
  void look(const schedule::Action& action) {
    if (action.kind() == schedule::ActionKind::Unshard || action.kind() == schedule::ActionKind::Reshard)
      sharded_.insert(action.stage().value);
    if (action.kind() == schedule::ActionKind::ReduceGrad) any_reduce_ = true;
    if (action.is_compute() && action.kind() != schedule::ActionKind::Forward) training_ = true;
  }

  int rank_of(int stage) const { return draft_.placement.rank_of(StageId(stage)).value; }
  bool exists(int stage, int batch) const {
    return stage < draft_.placement.num_stages() && batch < draft_.microbatches;
  }

  std::vector<int> inputs_of(int stage) const {
    std::vector<int> from;
    if (stage > 0) from.push_back(stage - 1);
    for (const schedule::StageEdge& edge : draft_.wiring.skips()) {
      if (edge.to.value == stage) from.push_back(edge.from.value);
    }
    return from;
  }
  std::vector<int> users_of(int stage) const {
    std::vector<int> to;
    if (stage + 1 < draft_.placement.num_stages()) to.push_back(stage + 1);
    for (const schedule::StageEdge& edge : draft_.wiring.skips()) {
      if (edge.from.value == stage) to.push_back(edge.to.value);
    }
    return to;
  }

  // Whether a message has arrived; Fail if the rank never posted a receive for it.
  Step arrived(const RankState& me, const Message& message) const {
    if (!me.posted.contains(message)) return Step::Fail;
    const bool here =
        mode_ == schedule::SendMode::Ordered ? delivered_.contains(message) : sent_.contains(message);
    return here ? Step::Done : Step::Wait;
  }

  Step inputs_ready(int rank, const RankState& me, const schedule::Action& part) const {
    const int stage = part.stage().value, batch = part.microbatch().value;
    Step worst = Step::Done;
    const auto merge = [&](Step step) {
      if (step == Step::Fail || worst == Step::Done) worst = step;
    };
    switch (part.kind()) {
      case schedule::ActionKind::Forward:
        for (const int from : inputs_of(stage)) {
          if (worst == Step::Fail) break;
          if (rank_of(from) == rank) {
            merge(me.outputs.contains({from, batch}) ? Step::Done : Step::Fail);
          } else {
            merge(arrived(me, {0, from, stage, batch}));
          }
        }
        return worst;
      case schedule::ActionKind::Backward:
      case schedule::ActionKind::BackwardInput:
        if (!me.outputs.contains({stage, batch})) return Step::Fail;
        for (const int to : users_of(stage)) {
          if (worst == Step::Fail) break;
          if (rank_of(to) == rank) {
            merge(me.input_gradients.contains({to, batch}) ? Step::Done : Step::Fail);
          } else {
            merge(arrived(me, {1, to, stage, batch}));
          }
        }
        return worst;
      default:
        return me.input_gradients.contains({stage, batch}) ? Step::Done : Step::Fail;  // W
    }
  }

  Step compute(int rank, RankState& me, const schedule::Action& action) {
    std::vector<Action> parts{action};
    if (action.kind() == schedule::ActionKind::Overlap)
      parts = {action.forward_part(), action.backward_part()};
    bool wait = false;
    for (const schedule::Action& part : parts) {
      if (!exists(part.stage().value, part.microbatch().value) || rank_of(part.stage().value) != rank)
        return Step::Fail;
      if (sharded_.contains(part.stage().value) && !me.unsharded.contains(part.stage().value))
        return Step::Fail;
      const Step step = inputs_ready(rank, me, part);
      if (step == Step::Fail) return Step::Fail;
      if (step == Step::Wait) wait = true;
    }
    if (wait) return Step::Wait;
    for (const schedule::Action& part : parts) {
      const Batch key{part.stage().value, part.microbatch().value};
      bool fresh = true;
      if (part.kind() == schedule::ActionKind::Forward) fresh = me.outputs.insert(key).second;
      if (part.kind() == schedule::ActionKind::Backward ||
          part.kind() == schedule::ActionKind::BackwardInput) {
        fresh = me.input_gradients.insert(key).second;
      }
      if (part.kind() == schedule::ActionKind::Backward ||
          part.kind() == schedule::ActionKind::BackwardWeight) {
        fresh = me.weight_gradients.insert(key).second && fresh;
      }
      if (!fresh) return Step::Fail;
    }
    return Step::Done;
  }

  Step transfer(int rank, RankState& me, const schedule::Action& action) {
    const int stage = action.stage().value, peer = action.peer().value, batch = action.microbatch().value;
    if (!exists(stage, batch) || !exists(peer, batch)) return Step::Fail;
    if (rank_of(stage) != rank || rank_of(peer) == rank) return Step::Fail;
    const bool forward = action.kind() == schedule::ActionKind::SendForward ||
                         action.kind() == schedule::ActionKind::RecvForward;
    const bool send = action.is_send();
    const int from = send ? stage : peer, to = send ? peer : stage;
    bool linked = false;
    for (const int user : users_of(forward ? from : to)) linked = linked || user == (forward ? to : from);
    if (!linked || (!forward && !training_)) return Step::Fail;
    const Message message{forward ? 0 : 1, from, to, batch};
    if (!send) {
      if (!me.posted.insert(message).second) return Step::Fail;
    } else {
      const auto& values = forward ? me.outputs : me.input_gradients;
      if (!values.contains({stage, batch}) || sent_.contains(message)) return Step::Fail;
      if (mode_ == schedule::SendMode::Blocking &&
          !ranks_[static_cast<std::size_t>(rank_of(to))].posted.contains(message)) {
        return Step::Wait;
      }
      sent_.insert(message);
    }
    me.queue[rank_of(peer)].push_back(message);
    return Step::Done;
  }

  Step perform(int rank, const schedule::Action& action) {
    RankState& me = ranks_[static_cast<std::size_t>(rank)];
    const int stage = action.stage().value;
    if (action.is_idle()) return Step::Done;
    if (action.is_compute()) return compute(rank, me, action);
    if (action.is_transfer()) return transfer(rank, me, action);
    if (!exists(stage, 0) || rank_of(stage) != rank) return Step::Fail;
    if (action.kind() == schedule::ActionKind::Unshard)
      return me.unsharded.insert(stage).second ? Step::Done : Step::Fail;
    if (action.kind() == schedule::ActionKind::Reshard)
      return me.unsharded.erase(stage) == 1 ? Step::Done : Step::Fail;
    for (int batch = 0; batch < draft_.microbatches; ++batch) {
      if (!me.weight_gradients.contains({stage, batch})) return Step::Fail;
    }
    return reduced_.insert(stage).second ? Step::Done : Step::Fail;
  }

  // Ordered mode: if the heads of both queues of a pair are the same transfer, it completes.
  bool finish_transfers() {
    bool any = false;
    for (std::size_t a = 0; a < ranks_.size(); ++a) {
      for (auto& [b, mine] : ranks_[a].queue) {
        auto& theirs = ranks_[static_cast<std::size_t>(b)].queue[static_cast<int>(a)];
        while (!mine.empty() && !theirs.empty() && mine.front() == theirs.front()) {
          delivered_.insert(mine.front());
          mine.pop_front();
          theirs.pop_front();
          any = true;
        }
      }
    }
    return any;
  }

  bool finished() const {
    std::size_t outputs = 0, inputs = 0, weights = 0, posted = 0;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const RankState& rank = ranks_[r];
      if (rank.next != draft_.ranks[r].size()) return false;
      outputs += rank.outputs.size();
      inputs += rank.input_gradients.size();
      weights += rank.weight_gradients.size();
      posted += rank.posted.size();
      for (const Message& message : rank.posted) {
        if (!sent_.contains(message)) return false;
      }
      if (mode_ != schedule::SendMode::Ordered) continue;
      for (const auto& [peer, queue] : rank.queue) {
        if (!queue.empty()) return false;
      }
    }
    const std::size_t all = static_cast<std::size_t>(draft_.placement.num_stages()) *
                            static_cast<std::size_t>(draft_.microbatches);
    if (outputs != all || posted != sent_.size()) return false;
    if (training_ && (inputs != all || weights != all)) return false;
    return !any_reduce_ || reduced_.size() == static_cast<std::size_t>(draft_.placement.num_stages());
  }

  const schedule::Draft& draft_;
  schedule::SendMode mode_;
  bool training_ = false, any_reduce_ = false;
  std::set<int> sharded_, reduced_;
  std::set<Message> sent_, delivered_;
  std::vector<RankState> ranks_;
};

// The same for compute tables: values are available everywhere at once, so only the order matters.
class Tables {
 public:
  Tables(const schedule::Schedule& schedule, const schedule::Wiring& wiring)
      : schedule_(schedule), wiring_(wiring), next_(schedule.ranks.size(), 0) {}

  bool run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < next_.size(); ++rank) {
        if (next_[rank] == schedule_.ranks[rank].size()) continue;
        const Step step = perform(static_cast<int>(rank), schedule_.ranks[rank][next_[rank]]);
        if (step == Step::Fail) return false;
        if (step == Step::Wait) continue;
        ++next_[rank];
        moved = true;
      }
    }
    return finished();
  }

 private:
  Step perform(int rank, const schedule::Action& action) {
    if (action.is_idle()) return Step::Done;
    if (!action.is_compute()) return Step::Fail;
    std::vector<Action> parts{action};
    if (action.kind() == schedule::ActionKind::Overlap)
      parts = {action.forward_part(), action.backward_part()};
    for (const Action& part : parts) {
      const int stage = part.stage().value;
      if (stage >= schedule_.placement.num_stages() || part.microbatch().value >= schedule_.microbatches)
        return Step::Fail;
      if (schedule_.placement.rank_of(StageId(stage)).value != rank) return Step::Fail;
      if (!ready(part)) return Step::Wait;
    }
    for (const Action& part : parts) {
      if (!apply(part)) return Step::Fail;
    }
    return Step::Done;
  }

  bool ready(const schedule::Action& part) const {
    const int stage = part.stage().value, batch = part.microbatch().value;
    if (part.kind() == ActionKind::BackwardWeight) return inputs_.contains({stage, batch});
    const bool forward = part.kind() == ActionKind::Forward;
    if (!forward && !outputs_.contains({stage, batch})) return false;
    for (int i = 0; i < wiring_.edges(); ++i) {
      const int from = wiring_.edge(i).from.value, to = wiring_.edge(i).to.value;
      if (forward && to == stage && !outputs_.contains({from, batch})) return false;
      if (!forward && from == stage && !inputs_.contains({to, batch})) return false;
    }
    return true;
  }

  // Returns false if the action has already run.
  bool apply(const schedule::Action& part) {
    const Batch key{part.stage().value, part.microbatch().value};
    if (part.kind() == ActionKind::Forward) return outputs_.insert(key).second;
    training_ = true;
    if (part.kind() != ActionKind::BackwardWeight && !inputs_.insert(key).second) return false;
    return part.kind() == ActionKind::BackwardInput || weights_.insert(key).second;
  }

  bool finished() const {
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      if (next_[rank] != schedule_.ranks[rank].size()) return false;
    }
    const std::size_t all =
        static_cast<std::size_t>(schedule_.num_stages()) * static_cast<std::size_t>(schedule_.microbatches);
    return outputs_.size() == all && (!training_ || (inputs_.size() == all && weights_.size() == all));
  }

  const schedule::Schedule& schedule_;
  const schedule::Wiring& wiring_;
  bool training_ = false;
  std::set<Batch> outputs_, inputs_, weights_;
  std::vector<std::size_t> next_;
};

}  // namespace

bool runs_to_the_end(const Draft& draft, SendMode mode) {
  return World(draft, mode).run();
}

bool runs_to_the_end(const Schedule& schedule, const Wiring& wiring) {
  return Tables(schedule, wiring).run();
}

}  // namespace penstock::schedule::testing_support
