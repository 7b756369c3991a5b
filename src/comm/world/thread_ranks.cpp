// Thread ranks: a hub shared by all threads, and a world per thread.
#include "base/log_line.h"
#include "base/text.h"
#include "comm/rendezvous/environment.h"
#include "comm/transport/thread_backend.h"
#include "comm/world/rank_device.h"
#include "comm/world/world_impl.h"

#include <penstock/base/error.h>
#include <penstock/comm/launched_rank.h>
#include <penstock/comm/thread_ranks.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

namespace penstock::comm {
namespace {

// Shared by all threads of one job.
class ThreadHub {
 public:
  explicit ThreadHub(int size) : size_(size) {}

  std::shared_ptr<ThreadExchange> exchange(const std::string& name, int size) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<ThreadExchange>& found = exchanges_[name];
    if (!found) found = std::make_shared<ThreadExchange>(size);
    return found;
  }

  // Waits until all ranks have joined this generation.
  void join(int generation_number, Rank rank, const std::shared_ptr<WorldGeneration>& generation,
            std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    auto& present = generations_[generation_number];
    present[rank.value] = generation;
    changed_.notify_all();
    const auto all = [&] { return static_cast<int>(present.size()) == size_; };
    if (changed_.wait_for(lock, limit, all)) return;
    std::vector<std::string> missing;
    for (int other = 0; other < size_; ++other) {
      if (!present.contains(other)) missing.push_back(std::to_string(other));
    }
    throw TimeoutError("these ranks did not join the world: " + join_names(missing), {.rank = rank});
  }

  void publish(int generation_number, const Failure& failure) {
    std::vector<std::shared_ptr<WorldGeneration>> others;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [rank, generation] : generations_[generation_number]) {
        if (!failure.rank || rank != failure.rank->value) others.push_back(generation);
      }
    }
    for (const auto& generation : others) generation->failure.report(failure);
  }

 private:
  static std::string join_names(const std::vector<std::string>& names) { return penstock::join(names, ", "); }

  int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::shared_ptr<ThreadExchange>> exchanges_;
  std::map<int, std::map<int, std::shared_ptr<WorldGeneration>>> generations_;
};

class ThreadTransport : public Transport {
 public:
  ThreadTransport(std::shared_ptr<ThreadHub> hub, int generation_number)
      : hub_(std::move(hub)), generation_number_(generation_number) {}

  c10::intrusive_ptr<c10d::Backend> connect(WorldGeneration& /*generation*/, const std::string& name,
                                            const std::vector<int>& members, int me) override {
    const int size = static_cast<int>(members.size());
    auto exchange = hub_->exchange(str_cat(generation_number_, ":", name), size);
    return c10::make_intrusive<ThreadBackend>(me, size, std::move(exchange));
  }
  //! A send copies its tensor.
  schedule::SendMode send_mode() const override { return schedule::SendMode::Buffered; }
  bool collectives_have_futures() const override { return false; }
  bool can_close_after_failure() const override { return true; }

 private:
  std::shared_ptr<ThreadHub> hub_;
  int generation_number_;
};

struct ThreadWorld : World::Impl {
  std::shared_ptr<ThreadHub> hub;

  void join() override {
    generation = std::make_shared<WorldGeneration>(rank, options.timeout.value());
    hub->join(generation_number, rank, generation, options.join_timeout);
    transport = std::make_shared<ThreadTransport>(hub, generation_number);
    make_world_group();
  }
  Failure publish(const Failure& failure) override {
    hub->publish(generation_number, failure);
    return failure;
  }
  void leave() override {}
};

World make_thread_world(std::shared_ptr<ThreadHub> hub, int rank, int size, const InitOptions& options) {
  auto state = std::make_unique<ThreadWorld>();
  state->hub = std::move(hub);
  state->options = with_environment(options, look_in_process);
  state->rank = Rank(rank);
  state->local_rank = rank;
  state->size = size;
  state->options.device = resolve_device(options.device, rank);
  set_current_device(state->options.device);
  state->join();
  return Access::world(std::move(state));
}

struct Outcome {
  std::vector<std::exception_ptr> errors;
  int first = -1;
};

bool is_of_a_peer(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerFailed&) {
    return true;
  } catch (...) {
    return false;
  }
}

// A rank that fails because of another rank may end first, but its error is not the cause.
int cause_of(const std::vector<std::exception_ptr>& errors, int first) {
  if (first < 0 || !is_of_a_peer(errors[static_cast<std::size_t>(first)])) return first;
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank] && !is_of_a_peer(errors[rank])) return static_cast<int>(rank);
  }
  return first;
}

// The number of processes that a launcher started. 1 if init() would reject the environment.
int launched_processes() {
  try {
    return detect_rank().world_size;
  } catch (const UsageError&) {
    return 1;
  }
}

// Under a launcher, each process would run a separate job of thread ranks, unaware of the others.
void refuse_under_launcher(int ranks) {
  const int processes = ranks == 1 ? 1 : launched_processes();
  if (processes == 1) return;
  throw UsageError(str_cat("this program would start ", ranks, " ranks as threads in each of the launcher's ",
                           processes, " processes"),
                   {},
                   "take the launcher's world from init() instead, or start the program without a launcher");
}

Outcome run_all(int ranks, const std::function<void(World&)>& body, const InitOptions& options) {
  if (ranks < 1) throw UsageError(str_cat("a job needs at least one rank, not ", ranks));
  refuse_under_launcher(ranks);
  const auto hub = std::make_shared<ThreadHub>(ranks);
  Outcome outcome{std::vector<std::exception_ptr>(static_cast<std::size_t>(ranks))};
  std::atomic<int> first{-1};
  const auto run = [&](int rank) {
    set_log_rank(Rank(rank));
    try {
      World world = make_thread_world(hub, rank, ranks, options);
      try {
        body(world);
      } catch (const std::exception& e) {
        int none = -1;
        first.compare_exchange_strong(none, rank);
        outcome.errors[static_cast<std::size_t>(rank)] = std::current_exception();
        world.fail(e.what());
      }
    } catch (...) {
      int none = -1;
      first.compare_exchange_strong(none, rank);
      outcome.errors[static_cast<std::size_t>(rank)] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  outcome.first = cause_of(outcome.errors, first.load());
  return outcome;
}

}  // namespace

std::vector<std::exception_ptr> try_thread_ranks(int ranks, const std::function<void(World&)>& body,
                                                 const InitOptions& options) {
  return run_all(ranks, body, options).errors;
}

void run_thread_ranks(int ranks, const std::function<void(World&)>& body, const InitOptions& options) {
  const Outcome outcome = run_all(ranks, body, options);
  if (outcome.first >= 0) std::rethrow_exception(outcome.errors[static_cast<std::size_t>(outcome.first)]);
}

}  // namespace penstock::comm
