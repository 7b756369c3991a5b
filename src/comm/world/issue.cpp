// Issues the operations of a group to its backends.
#include "comm/world/issue.h"

#include "base/text.h"
#include "comm/world/access.h"

#include <utility>

namespace penstock::comm {
namespace {

std::shared_ptr<Work::Impl> describe(const std::shared_ptr<Group::Impl>& group, const Operation& operation) {
  auto state = std::make_shared<Work::Impl>();
  state->generation = group->generation;
  state->group = group;
  state->stream = current_stream(operation.tensor);
  state->record.op = operation.name;
  state->record.group = group->name;
  state->record.peer = operation.peer;
  state->record.tag = operation.tag;
  state->record.bytes = operation.tensor.defined() ? operation.tensor.nbytes() : 0;
  if (operation.is_collective) state->record.sequence = ++group->collectives;
  if (operation.peer && !operation.is_collective) {
    state->peer = Rank(group->members[static_cast<std::size_t>(*operation.peer)]);
    state->peer_text = str_cat("rank ", state->peer->value);
  } else {
    state->peer_text = "the other ranks of the group";
  }
  return state;
}

}  // namespace

Work issue(const std::shared_ptr<Group::Impl>& group, const Operation& operation,
           const std::function<c10::intrusive_ptr<c10d::Work>(Issue&)>& call) {
  WorldGeneration& generation = *group->generation;
  const Route& route = group->route_of(operation.tensor);
  const auto state = describe(group, operation);
  const ErrorContext context{.rank = generation.rank, .op = operation.name};
  generation.failure.throw_if_failed(context);
  state->record.number = generation.recorder.start(state->record);
  Issue issued{.route = route,
               .backend = *route.backend,
               .staging = HostStaging(route.transport->host_memory_only() && state->stream),
               .arrival = {}};
  try {
    state->work = call(issued);
  } catch (const c10::Error& e) {
    generation.recorder.finish(state->record.number, true);
    generation.failure.throw_if_failed(context);
    throw CommError(e.what_without_backtrace(), context);
  } catch (const UsageError&) {
    generation.recorder.finish(state->record.number, true);
    throw;
  } catch (const std::exception& e) {
    // Gloo rejects work on a connection that is already broken; the monitor reports which rank failed.
    generation.recorder.finish(state->record.number, true);
    generation.failure.wait_for_report(kVerdictTime);
    generation.report_departed(state->others(), operation.name);
    generation.recorder.dump("failure");
    if (!generation.failure.failed() && state->peer) throw PeerFailed(*state->peer, e.what(), context);
    generation.failure.throw_if_failed(context);
    throw CommError(e.what(), context);
  }
  state->arrival = issued.arrival;
  if (issued.staging.has_outputs())
    state->after = [staging = std::move(issued.staging)] { staging.finish(); };
  if (operation.is_collective) state->future = route.transport->future_of(*state->work);
  state->kept = issued.kept;
  state->on_stream = route.transport->runs_on_stream();
  if (state->on_stream) generation.stream_watch.add(state);
  return Access::work(state);
}

}  // namespace penstock::comm
