// Runs the lists of a program, with ranks that wait at each receive.
#include "runtime/setup/receive_waits.h"

#include "base/text.h"

#include <penstock/base/error.h>

#include <set>
#include <tuple>
#include <vector>

namespace penstock::runtime {
namespace {

// A message: the stages it goes from and to, and its microbatch. The direction follows from the stages.
using MessageKey = std::tuple<int, int, std::int64_t>;

MessageKey key_of(const schedule::Action& transfer) {
  const bool sends = transfer.is_send();
  const StageId from = sends ? transfer.stage() : transfer.peer();
  const StageId to = sends ? transfer.peer() : transfer.stage();
  return {from.value, to.value, transfer.microbatch().value};
}

}  // namespace

void check_waits_at_receives(const schedule::Program& program) {
  if (program.send_mode() != schedule::SendMode::Ordered) return;
  std::set<MessageKey> sent;
  std::vector<std::size_t> next(static_cast<std::size_t>(program.ranks()), 0);
  const auto advance = [&](Rank rank) {
    const schedule::ActionList& actions = program.of(rank);
    std::size_t& at = next[rank.index()];
    const std::size_t before = at;
    for (; at < actions.size(); ++at) {
      if (actions[at].is_send()) sent.insert(key_of(actions[at]));
      if (actions[at].is_recv() && !sent.contains(key_of(actions[at]))) break;
    }
    return at != before;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < program.ranks(); ++rank) moved = advance(Rank(rank)) || moved;
  }
  for (int rank = 0; rank < program.ranks(); ++rank) {
    const schedule::ActionList& actions = program.of(Rank(rank));
    const std::size_t at = next[static_cast<std::size_t>(rank)];
    if (at == actions.size()) continue;
    throw ScheduleError(
        str_cat("the ranks would wait for each other's metadata in the first step: rank ", rank, " at ",
                to_string(actions[at])),
        {},
        "post receives later: this transport runs the transfers of two ranks in the order of the program");
  }
}

}  // namespace penstock::runtime
