// The thread that connects a backend, and the wait for it.
#include "comm/transport/group_connection.h"

#include "comm/failure/exception_text.h"
#include "comm/rendezvous/rendezvous.h"

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <utility>

namespace penstock::comm {
namespace {

// All members are present, and connecting takes milliseconds. After this time, some member cannot be reached.
constexpr std::chrono::seconds kSlow{10};

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

struct Attempt {
  std::promise<BackendPtr> result;
  std::atomic<bool> abandoned{false};
};

// Marks the attempt as abandoned unless it was taken.
class AttemptOwner {
 public:
  explicit AttemptOwner(std::shared_ptr<Attempt> attempt) : attempt_(std::move(attempt)) {}
  ~AttemptOwner() { attempt_->abandoned = true; }
  AttemptOwner(const AttemptOwner&) = delete;
  AttemptOwner& operator=(const AttemptOwner&) = delete;

 private:
  std::shared_ptr<Attempt> attempt_;
};

}  // namespace

BackendPtr GroupConnection::run(std::function<BackendPtr()> connect,
                                std::function<void(c10d::Backend&)> discard) const {
  const auto attempt = std::make_shared<Attempt>();
  const AttemptOwner owner(attempt);
  auto future = attempt->result.get_future();
  std::thread([attempt, connect = std::move(connect), discard = std::move(discard)] {
    try {
      const BackendPtr made = connect();
      if (attempt->abandoned && discard) discard(*made);
      attempt->result.set_value(made);
    } catch (...) {
      attempt->result.set_exception(std::current_exception());
    }
  }).detach();
  const auto start = std::chrono::steady_clock::now();
  const auto limit = start + timeout;
  bool looked = false;
  while (future.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
    generation.failure.throw_if_failed({.rank = generation.rank, .op = "connect " + name});
    const auto now = std::chrono::steady_clock::now();
    if (!looked && (now > limit || now - start > kSlow)) {
      check_members_answer(store, generation, prefix, members);
      looked = true;
    }
    if (now > limit)
      throw TimeoutError("the ranks of group " + name + " could not connect to each other",
                         {.rank = generation.rank, .op = "connect"}, hint);
  }
  try {
    return future.get();
  } catch (const std::exception& e) {
    generation.failure.wait_for_report(std::chrono::milliseconds(2000));
    generation.failure.throw_if_failed({.rank = generation.rank, .op = "connect " + name});
    check_members_answer(store, generation, prefix, members);
    throw CommError("cannot connect group " + name + ": " + exception_text(e), {.rank = generation.rank});
  }
}

}  // namespace penstock::comm
