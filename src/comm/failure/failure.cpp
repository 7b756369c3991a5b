// The failure state of a world.
#include "comm/failure/failure.h"

#include "base/log_line.h"
#include "base/text.h"
#include "comm/failure/exception_text.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace penstock::comm {

namespace {

constexpr std::string_view kLeft = " left";  //!< after the rank of a departure

}  // namespace

Failure Failure::of_departure(Rank left, Rank waiting, const std::string& op) {
  return {left,
          str_cat("left the world while rank ", waiting.value, " waited for it in ", op,
                  "; check that every rank runs the same number of steps and the same collectives"),
          true};
}

std::string Failure::serialize() const {
  if (!rank) return "-:" + cause;
  return str_cat(rank->value, departure ? kLeft : "", ":", cause);
}

Failure Failure::parse(const std::string& text) {
  const auto colon = text.find(':');
  if (colon == std::string::npos) return {std::nullopt, text};
  std::string number = text.substr(0, colon);
  const bool left = number.ends_with(kLeft);
  if (left) number.resize(number.size() - kLeft.size());
  const bool is_rank = !number.empty() && number.find_first_not_of("0123456789") == std::string::npos;
  if (!is_rank || number.size() > 9) return {std::nullopt, text.substr(colon + 1)};
  return {Rank(std::stoi(number)), text.substr(colon + 1), left};
}

std::optional<Failure> FailureState::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void FailureState::report(Failure failure) {
  std::vector<c10::intrusive_ptr<c10d::Work>> waiting;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    Log(LogLevel::Warn) << "failure: " << failure.serialize();
    failure_ = std::move(failure);
    failed_.store(true, std::memory_order_release);
    waiting = waiting_;
  }
  for (const auto& work : waiting) work->abort();
  changed_.notify_all();
  if (on_failure_) on_failure_();
}

std::optional<Failure> FailureState::wait_for_report(std::chrono::milliseconds time) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time, [this] { return failure_.has_value(); });
  return failure_;
}

bool FailureState::wait_until(std::chrono::steady_clock::time_point deadline,
                              const std::function<bool()>& ready) const {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return ready() || failure_.has_value(); });
  return ready();
}

void FailureState::notify() const {
  {
    const std::lock_guard lock(mutex_);
  }  // a waiter between its check and its sleep must not miss the signal
  changed_.notify_all();
}

void FailureState::raise(const ErrorContext& context) const {
  const Failure known = failure().value_or(Failure{std::nullopt, "a rank failed"});
  if (known.late) throw TimeoutError(known.cause, context, kTimeoutHint);
  if (known.rank) throw PeerFailed(*known.rank, known.cause, context);
  throw CommError(known.cause, context);
}

void FailureState::raise_for(const c10::Error& error, const ErrorContext& context) const {
  wait_for_report(kVerdictTime);
  throw_if_failed(context);
  throw CommError(exception_text(error), context);
}

FailureState::AbortOnFailure::AbortOnFailure(FailureState& state, c10::intrusive_ptr<c10d::Work> work)
    : state_(state), work_(std::move(work)) {
  {
    const std::lock_guard lock(state_.mutex_);
    state_.waiting_.push_back(work_);
  }
  if (state_.failed()) work_->abort();
}

FailureState::AbortOnFailure::~AbortOnFailure() {
  const std::lock_guard lock(state_.mutex_);
  std::erase(state_.waiting_, work_);
}

}  // namespace penstock::comm
