// Locks the engine, polls and sleeps.
#include "comm/shm/link.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <thread>
#include <utility>

namespace penstock::comm::shm {
namespace {

// Waking a sleeping thread takes about 50 us, so polling for longer gains little.
constexpr std::chrono::nanoseconds kMaxSpin{50'000};
constexpr std::chrono::nanoseconds kMinSpin{2'000};
// A bound for one sleep. Nothing depends on it; a lost signal would only cost time.
constexpr std::chrono::milliseconds kMaxSleep{500};

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void sleep_on(std::atomic<std::uint32_t>& futex, std::uint32_t value, std::chrono::nanoseconds limit) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec time{.tv_sec = seconds.count(), .tv_nsec = (limit - seconds).count()};
  syscall(SYS_futex, &futex, FUTEX_WAIT, value, &time, nullptr, 0);
}

//! Counts a thread that may sleep, so that others signal.
class Sleeper {
 public:
  explicit Sleeper(Mailbox& mailbox) : mailbox_(mailbox) { mailbox_.sleepers.fetch_add(1); }
  ~Sleeper() { mailbox_.sleepers.fetch_sub(1); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

 private:
  Mailbox& mailbox_;
};

// Polling only helps if every rank can have a core.
std::chrono::nanoseconds max_spin(std::size_t ranks) {
  return ranks <= std::thread::hardware_concurrency() ? kMaxSpin : kMinSpin;
}

}  // namespace

Link::Link(Engine::Setup setup, Progress progress)
    : engine_(setup), max_spin_(max_spin(setup.segments.size())), spin_(max_spin_.count()) {
  if (progress == Progress::OnThread) thread_ = std::thread([this] { run(); });
}

Link::~Link() {
  if (thread_.joinable()) {
    stop_ = true;
    wake();
    thread_.join();
  }
  engine_.close();
}

void Link::run() {
  while (!stop_) sleep_until([] { return false; }, Clock::now() + kMaxSleep, [this] { return stop_.load(); });
}

// Other threads may sleep although what they wait for has ended.
void Link::progress(std::unique_lock<std::mutex>& held) {
  const bool ended = engine_.progress();
  held.unlock();
  if (ended && engine_.mailbox().sleepers.load() != 0) wake();
}

RequestPtr Link::send(const Key& to, const void* data, std::size_t bytes, const Engine::Owner& owner) {
  const std::lock_guard lock(mutex_);
  return engine_.send(to, data, bytes, owner);
}

RequestPtr Link::receive(const Key& from, Sink sink, const Engine::Owner& owner) {
  const std::lock_guard lock(mutex_);
  return engine_.receive(from, std::move(sink), owner);
}

void Link::start(std::unique_ptr<Operation> operation) {
  const std::lock_guard lock(mutex_);
  engine_.start(std::move(operation));
}

void Link::wake() {
  engine_.mailbox().doorbell.fetch_add(1);
  wake_futex(engine_.mailbox().doorbell);
}

bool Link::poll(const Request& request) {
  if (request.ended()) return true;
  if (std::unique_lock lock(mutex_, std::try_to_lock); lock) progress(lock);
  return request.ended();
}

bool Link::spin(const std::function<bool()>& ended) {
  const auto until = Clock::now() + std::chrono::nanoseconds(spin_.load(std::memory_order_relaxed));
  bool found = false;
  do {
    if (std::unique_lock lock(mutex_, std::try_to_lock); lock) progress(lock);
    found = ended();
    for (int i = 0; i < 8 && !found; ++i) relax();
  } while (!found && Clock::now() < until);
  return found;
}

// Polls longer after a wait that polling could have ended, and less after a longer one. A wait that slept
// includes the time to wake up.
void Link::adapt_spin(std::chrono::nanoseconds waited) {
  const std::chrono::nanoseconds last(spin_.load(std::memory_order_relaxed));
  const auto next = waited < 4 * max_spin_ ? last * 2 : last / 2;
  spin_.store(std::clamp(next, kMinSpin, max_spin_).count(), std::memory_order_relaxed);
}

bool Link::wait_until(const std::function<bool()>& ended, Clock::time_point deadline,
                      const std::function<bool()>& stop) {
  if (ended()) return true;
  const auto start = Clock::now();
  const bool done = spin(ended) || sleep_until(ended, deadline, stop);
  adapt_spin(Clock::now() - start);
  return done;
}

bool Link::sleep_until(const std::function<bool()>& ended, Clock::time_point deadline,
                       const std::function<bool()>& stop) {
  Mailbox& mailbox = engine_.mailbox();
  const Sleeper sleeper(mailbox);
  for (;;) {
    const std::uint32_t value = mailbox.doorbell.load();
    {
      std::unique_lock lock(mutex_);
      progress(lock);
    }
    if (ended()) return true;
    const auto now = Clock::now();
    if (stop() || now >= deadline) return false;
    sleep_on(mailbox.doorbell, value, std::min<std::chrono::nanoseconds>(kMaxSleep, deadline - now));
  }
}

bool Link::wait(const Request& request, Clock::time_point deadline, const std::atomic<bool>& stop) {
  return wait_until([&] { return request.ended(); }, deadline, [&] { return stop.load(); });
}

bool Link::flush(Clock::time_point deadline, const std::function<bool()>& stop) {
  const auto sent = [this] {
    const std::lock_guard lock(mutex_);
    return !engine_.has_unsent();
  };
  return wait_until(sent, deadline, stop);
}

}  // namespace penstock::comm::shm
