// Programs for ordered transports whose receives wait for metadata: what is refused would deadlock, and
// nothing else is.
#include "runtime/setup/receive_waits.h"

#include <penstock/base/error.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>
#include <penstock/schedule/program.h>

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

namespace penstock::runtime {
namespace {

using schedule::Action;
using schedule::ActionList;
using schedule::Draft;
using schedule::Program;
using schedule::ScheduleKind;
using schedule::SendMode;

// Sorts the graph in which every action follows the action before it on its rank, and every receive its send.
// Returns whether that is possible: whether ranks that wait at each receive reach their ends.
bool can_be_sorted(const Program& program) {
  using Message = std::tuple<int, int, std::int64_t>;
  std::map<Message, int> receiver;  // node of the receive
  std::vector<std::vector<int>> followers;
  std::vector<int> open;  // predecessors left
  std::map<Message, int> sender;
  for (int rank = 0; rank < program.ranks(); ++rank) {
    bool first = true;
    for (const Action& action : program.of(Rank(rank))) {
      const int node = static_cast<int>(open.size());
      open.push_back(first ? 0 : 1);
      followers.emplace_back();
      if (!first) followers[static_cast<std::size_t>(node - 1)].push_back(node);
      first = false;
      const std::int64_t m = action.is_send() || action.is_recv() ? action.microbatch().value : 0;
      if (action.is_send()) sender[{action.stage().value, action.peer().value, m}] = node;
      if (action.is_recv()) receiver[{action.peer().value, action.stage().value, m}] = node;
    }
  }
  for (const auto& [message, node] : receiver) {
    followers[static_cast<std::size_t>(sender.at(message))].push_back(node);
    ++open[static_cast<std::size_t>(node)];
  }
  std::vector<int> ready;
  for (std::size_t node = 0; node < open.size(); ++node)
    if (open[node] == 0) ready.push_back(static_cast<int>(node));
  std::size_t sorted = 0;
  while (!ready.empty()) {
    const auto node = static_cast<std::size_t>(ready.back());
    ready.pop_back();
    ++sorted;
    for (const int next : followers[node])
      if (--open[static_cast<std::size_t>(next)] == 0) ready.push_back(next);
  }
  return sorted == open.size();
}

std::optional<Program> validated(const Draft& draft) {
  try {
    return Program::validated(draft, SendMode::Ordered);
  } catch (const ScheduleError&) {
    return std::nullopt;
  }
}

bool is_accepted(const Program& program) {
  try {
    check_waits_at_receives(program);
    return true;
  } catch (const ScheduleError&) {
    return false;
  }
}

// Receives that move to an earlier position of their rank keep many programs valid: a receive blocks only
// where its value is used.
TEST(RuntimeReceiveWaits, RefusesExactlyTheProgramsThatDeadlock) {
  constexpr unsigned seed = 7;
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  int accepted = 0, refused = 0;
  for (int trial = 0; trial < 6000; ++trial) {
    const int ranks = 3 + static_cast<int>(below(2)), microbatches = 2 + static_cast<int>(below(3));
    const auto kind =
        std::array{ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::ZB1P}.at(below(3));
    schedule::LowerOptions options;
    if (below(2) == 0) options.skips.push_back({StageId(0), StageId(2)});
    Draft draft = lower(make_schedule(kind, {ranks, 1, microbatches}), options);
    for (std::size_t moves = 1 + below(4); moves > 0; --moves) {
      ActionList& list = draft.ranks[below(draft.ranks.size())];
      const std::size_t from = below(list.size());
      if (!list[from].is_recv()) continue;
      const Action action = list[from];
      const std::size_t to = below(from + 1);
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(from));
      list.insert(list.begin() + static_cast<std::ptrdiff_t>(to), action);
    }
    const std::optional<Program> program = validated(draft);
    if (!program) continue;
    const bool sorted = can_be_sorted(*program);
    ASSERT_EQ(is_accepted(*program), sorted) << "seed " << seed << ", trial " << trial;
    ++(sorted ? accepted : refused);
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 0);
}

TEST(RuntimeReceiveWaits, AcceptsEveryNamedSchedule) {
  for (const schedule::ScheduleInfo& info : schedule::schedule_infos()) {
    const schedule::ScheduleShape shape{4, info.default_stages_per_rank, 8};
    EXPECT_TRUE(is_accepted(make_program(make_schedule(info.kind, shape), SendMode::Ordered))) << info.name;
  }
}

}  // namespace
}  // namespace penstock::runtime
