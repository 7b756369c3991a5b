// The connection of a rank to the other ranks of its host, for all threads of the rank: an Engine with a lock
// and with waiting. A thread that waits first polls for a short time, which adapts to what polling has gained
// recently, and then sleeps until a peer signals that something happened.
//
// Messages move while a thread of the rank waits here. A rank that also waits elsewhere, for ranks of other
// hosts, needs a thread that moves them meanwhile: otherwise ranks could wait for each other in a circle.
#pragma once

#include "comm/shm/engine.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace penstock::comm::shm {

class Link {
 public:
  using Clock = std::chrono::steady_clock;

  enum class Progress { InWaits, OnThread };

  explicit Link(Engine::Setup setup, Progress progress = Progress::InWaits);
  //! Tells the peers that this rank has left.
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  RequestPtr send(const Key& to, const void* data, std::size_t bytes, const Engine::Owner& owner = {});
  RequestPtr receive(const Key& from, Sink sink, const Engine::Owner& owner = {});
  void start(std::unique_ptr<Operation> operation);

  //! Whether the request has ended.
  bool poll(const Request& request);
  //! Waits until the request has ended, `stop` is true or the deadline has passed. Returns whether the
  //! request has ended.
  bool wait(const Request& request, Clock::time_point deadline, const std::atomic<bool>& stop);
  //! Wakes waiting threads, so that they look at `stop`.
  void wake();
  //! Waits until every message was delivered, except those to ranks that have left. Returns whether it was.
  bool flush(Clock::time_point deadline, const std::function<bool()>& stop);

  int ranks() const { return engine_.ranks(); }

 private:
  bool wait_until(const std::function<bool()>& ended, Clock::time_point deadline,
                  const std::function<bool()>& stop);
  bool spin(const std::function<bool()>& ended);
  void adapt_spin(std::chrono::nanoseconds waited);
  bool sleep_until(const std::function<bool()>& ended, Clock::time_point deadline,
                   const std::function<bool()>& stop);
  void run();
  void progress(std::unique_lock<std::mutex>& held);

  std::mutex mutex_;
  Engine engine_;
  const std::chrono::nanoseconds max_spin_;
  std::atomic<std::int64_t> spin_;  // nanoseconds
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace penstock::comm::shm
