// Waits for operations so that a failure of a peer ends the wait: for collectives through their future, for
// sends and receives in a call of the transport that a failure aborts. An operation on a stream makes the
// current stream wait; the stream watch detects its failure.
#include "base/text.h"
#include "comm/world/work_impl.h"

#include <penstock/comm/work.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <utility>

namespace penstock::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kReportWait{1000};

// Returns the UTC time at `ago` before now, to compare with the logs of the ranks.
std::string time_text(Clock::duration ago) {
  using System = std::chrono::system_clock;
  const std::time_t then =
      System::to_time_t(System::now() - std::chrono::duration_cast<System::duration>(ago));
  std::tm parts{};
  gmtime_r(&then, &parts);
  std::array<char, 16> text{};
  std::strftime(text.data(), text.size(), "%H:%M:%S", &parts);
  return std::string(text.data()) + " UTC";
}

}  // namespace

ErrorContext Work::Impl::context() const {
  return {.rank = generation->rank, .op = record.op};
}

void Work::Impl::wait() {
  if (claim()) {
    run_to_end();
  } else if (!ended()) {
    // The thread that claimed the work ends soon after a failure, by abort or timeout; its result is final.
    const auto limit = Clock::now() + generation->timeout + kVerdictTime * 2;
    while (!ended() && Clock::now() < limit) {
      if (generation->failure.wait_until(limit, [this] { return ended(); })) break;
      generation->failure.throw_if_failed(context());
    }
  }
  const Status end = status.load(std::memory_order_acquire);
  if (end == Status::Failed) std::rethrow_exception(error);
  if (end == Status::Done && stream) finished.block(*current_stream(stream->device()));
  if (end == Status::Pending) raise("another thread is still waiting for it", {});
}

void Work::Impl::run_to_end() noexcept {
  Status end = Status::Done;
  try {
    wait_for_transport();
    if (after) after();
  } catch (...) {
    error = std::current_exception();
    end = Status::Failed;
  }
  // The stream watch records the end of an operation on a stream.
  if (!on_stream || end == Status::Failed) generation->recorder.finish(record.number, end == Status::Failed);
  work.reset();
  future.reset();
  after = nullptr;
  group.reset();
  status.store(end, std::memory_order_release);
  generation->failure.notify();
}

void Work::Impl::run_on_reaper() noexcept {
  const c10::OptionalStreamGuard guard(stream);
  if (stream) {
    const auto compute = std::exchange(after, nullptr);
    after = [this, compute] {
      if (compute) compute();
      finished = StreamPoint(stream);
    };
  }
  run_to_end();
}

void Work::Impl::wait_for_transport() {
  std::string message;
  try {
    if (on_stream) {
      generation->failure.throw_if_failed(context());
      if (work->wait()) return;
    } else if (future) {
      if (!future->completed()) {
        const std::shared_ptr<WorldGeneration> keep = generation;
        future->addCallback([keep](c10::ivalue::Future&) { keep->failure.notify(); });
        generation->failure.wait_until(started + generation->timeout, [this] { return future->completed(); });
      }
      if (future->completed()) {
        if (!future->hasError()) return;
        message = future->tryRetrieveErrorMessage();
      }
    } else {
      arrival.look();
      const FailureState::AbortOnFailure guard(generation->failure, work);
      if (work->wait(generation->timeout)) return;
    }
  } catch (const ShapeError&) {
    throw;  // from the thread transport: the sizes do not match
  } catch (const std::exception& e) {
    message = e.what();
  }
  raise(message, others());
}

std::vector<int> Work::Impl::others() const {
  if (peer) return {peer->value};
  return group ? group->members : std::vector<int>{};
}

bool Work::Impl::is_overdue() const {
  return Clock::now() - started >= generation->timeout;
}

std::string Work::Impl::late_text(Clock::duration waited) const {
  const double seconds = std::chrono::duration<double>(waited).count();
  return str_cat("rank ", generation->rank.value, " waited ", format_seconds(seconds), ", since ",
                 time_text(waited), ", for ", peer_text, ": ", record.op, " of ", format_bytes(record.bytes),
                 " with tag ", record.tag, " on group ", record.group);
}

void Work::Impl::report_late(const std::vector<int>& others) {
  const auto waited = Clock::now() - started;
  // A rank in a collective cannot tell which rank is late; another rank that times out now may know.
  if (!peer) generation->failure.wait_for_report(kReportWait);
  generation->report_departed(others, record.op);
  if (generation->failure.failed()) return;
  generation->recorder.dump("time-out");
  generation->failure.report({.rank = std::nullopt, .cause = late_text(waited), .late = true});
}

void Work::Impl::report_broken(const std::string& transport_message, const std::vector<int>& others) {
  // A rank that left because it failed is reported by its launcher.
  if (!generation->failure.failed()) generation->failure.wait_for_report(kVerdictTime);
  generation->report_departed(others, record.op);
  if (generation->failure.failed()) return;
  if (peer) {
    generation->failure.report({*peer, "its connection broke: " + transport_message});
  } else if (on_stream) {  // nobody waits for it
    generation->failure.report({std::nullopt, "the transport failed: " + transport_message});
  }
}

void Work::Impl::raise(const std::string& transport_message, const std::vector<int>& others) {
  const auto waited = Clock::now() - started;
  if (!generation->failure.failed() && waited >= generation->timeout) {
    if (!peer) generation->failure.wait_for_report(kReportWait);
    generation->report_departed(others, record.op);
    if (!generation->failure.failed()) {
      generation->recorder.dump("time-out");
      throw TimeoutError(late_text(waited), context(), kTimeoutHint);
    }
  }
  report_broken(transport_message, others);
  generation->recorder.dump("failure");
  generation->failure.throw_if_failed(context());
  throw CommError("the transport failed: " + transport_message, context());
}

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    detach();
    impl_ = std::move(other.impl_);
  }
  return *this;
}

void Work::wait() {
  if (!impl_) return;
  const std::shared_ptr<Work::Impl> state = std::move(impl_);
  impl_.reset();
  state->wait();
}

void Work::then(std::function<void()> after) {
  if (!impl_) return after();
  if (impl_->claimed()) throw UsageError("`then` was called after `done`", {}, "call `then` before `done`");
  if (!impl_->after) {
    impl_->after = std::move(after);
    return;
  }
  impl_->after = [first = std::move(impl_->after), next = std::move(after)] {
    first();
    next();
  };
}

bool Work::done() {
  if (!impl_ || impl_->ended()) return true;
  if (impl_->on_stream && !impl_->work->isCompleted()) return false;
  if (!impl_->claim()) return false;  // the reaper has it
  const bool finished = impl_->future ? impl_->future->completed() : impl_->work->isCompleted();
  if (!finished) {
    impl_->generation->reaper.adopt({impl_});
    return false;
  }
  impl_->run_to_end();
  return true;
}

void Work::detach() noexcept {
  if (const auto state = release()) state->generation->reaper.adopt({state});
}

void Work::detach_all(std::vector<Work> works) noexcept {
  std::vector<std::shared_ptr<Work::Impl>> pending;
  for (Work& work : works) {
    if (auto state = work.release()) pending.push_back(std::move(state));
  }
  while (!pending.empty()) {  // usually all belong to one world
    const std::shared_ptr<WorldGeneration> generation = pending.front()->generation;
    const auto others = std::stable_partition(
        pending.begin(), pending.end(), [&](const auto& state) { return state->generation == generation; });
    generation->reaper.adopt({pending.begin(), others});
    pending.erase(pending.begin(), others);
  }
}

// A completed operation ends here. Gloo cannot tell whether a send or receive is done, so the reaper waits.
std::shared_ptr<Work::Impl> Work::release() noexcept {
  std::shared_ptr<Work::Impl> state = std::move(impl_);
  impl_.reset();
  if (!state || !state->claim()) return nullptr;
  if (state->on_stream) {  // the transport keeps the tensors, so only a continuation has to wait
    if (state->after) state->run_to_end();
    return nullptr;
  }
  if (state->kept && !state->after) {
    state->generation->recorder.finish(state->record.number, false);
    return nullptr;
  }
  const bool finished = state->future ? state->future->completed() : state->work->isCompleted();
  if (!finished) return state;
  state->run_to_end();
  return nullptr;
}

}  // namespace penstock::comm
