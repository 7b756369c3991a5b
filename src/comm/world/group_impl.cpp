// Connects and closes the backends of a group.
#include "comm/world/group_impl.h"

#include "base/log_line.h"
#include "comm/failure/exception_text.h"
#include "comm/transport/self_transport.h"

#include <utility>

namespace penstock::comm {

void Route::close(WorldGeneration& generation) {
  if (!backend) return;
  const bool failed = generation.failure.failed();
  if (transport->runs_on_stream()) {
    try {
      if (failed) {
        generation.aborter.abort_all();  // the thread that reported the failure may not have done it yet
        generation.aborter.wait(std::chrono::seconds(10));
      } else {
        backend->shutdown();
      }
    } catch (const std::exception& e) {
      Log(LogLevel::Info) << "closing a group: " << exception_text(e);
    }
    return;
  }
  if (!failed || transport->can_close_after_failure()) return;
  // A failed Gloo group cannot be aborted, and its destructor waits for its threads: leak it.
  [[maybe_unused]] auto* abandoned = backend.release();
}

Group::Impl::~Impl() {
  if (!generation) return;  // connecting failed
  main.close(*generation);
  if (control) control->close(*generation);
}

std::shared_ptr<Group::Impl> make_group(std::string name, std::vector<int> members, int rank,
                                        std::shared_ptr<Transport> transport,
                                        std::shared_ptr<WorldGeneration> generation, GroupUse use) {
  if (members.size() == 1 && transport->runs_on_stream()) transport = std::make_shared<SelfTransport>();
  const auto control = transport->control();
  if (use == GroupUse::Objects && control) transport = control;
  auto state = std::make_shared<Group::Impl>();
  state->generation = generation;
  try {
    if (control && transport != control)
      state->control = Route{control->connect(*generation, name, members, rank), control};
    state->main = {use == GroupUse::Transfers ? transport->connect_transfers(*generation, name, members, rank)
                                              : transport->connect(*generation, name, members, rank),
                   transport};
  } catch (const c10::Error& e) {
    generation->failure.raise_for(e, {.rank = generation->rank, .op = "connect " + name});
  }
  if (transport->runs_on_stream()) generation->aborter.add(state->main.backend);
  state->name = std::move(name);
  state->rank = rank;
  state->members = std::move(members);
  return state;
}

}  // namespace penstock::comm
