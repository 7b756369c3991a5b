// The monitor's loop: store, ring, heartbeats.
#include "comm/monitor.h"

#include "comm/environment.h"

#include <penstock/base/log.h>
#include <penstock/base/text.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace penstock {
namespace {

constexpr std::chrono::milliseconds kTick{100};
constexpr std::chrono::milliseconds kBeat{1000};
// A broken connection says only that a process ended; its own words or the launcher's may be on their way.
constexpr std::chrono::milliseconds kPatience{700};
// One try to reach the next rank: it holds up all else that the monitor does.
constexpr std::chrono::milliseconds kConnectLimit{1000};
constexpr char kAlive = '.';
constexpr char kGoodbye = 'B';

// Connections that have not greeted yet: how many are kept, and for how long. The oldest goes first.
constexpr std::size_t kMostStrangers = 256;
constexpr std::chrono::milliseconds kStrangerLimit{2000};
// After a connection could not be accepted, for want of descriptors: the listener stays readable.
constexpr std::chrono::milliseconds kAcceptPause{1000};

// Takes as long for any difference.
bool same_secret(const std::string& a, const std::string& b) {
  unsigned differences = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    differences |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return differences == 0;
}

}  // namespace

std::chrono::milliseconds heartbeat_limit() {
  const char* const asked = std::getenv("PENSTOCK_HEARTBEAT");
  return std::chrono::seconds(asked == nullptr ? 15 : parse_number("PENSTOCK_HEARTBEAT", asked, 86400));
}

std::string died_key(int attempt) {
  return "penstock/" + std::to_string(attempt) + "/died";
}
std::string failed_key(int attempt, int generation) {
  return "penstock/" + std::to_string(attempt) + "/" + std::to_string(generation) + "/failed";
}

std::string generation_key(int attempt) {
  return "penstock/" + std::to_string(attempt) + "/generation";
}

std::string live_key(const std::string& prefix, Rank rank) {
  return prefix + "live/" + std::to_string(rank.value);
}

std::string Monitor::live_key(Rank rank) const {
  return penstock::live_key(
      "penstock/" + std::to_string(setup_.attempt) + "/" + std::to_string(setup_.generation) + "/", rank);
}

Monitor::Monitor(Setup setup) : setup_(std::move(setup)) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    throw CommError("cannot make a pipe: " + std::string(std::strerror(errno)));
  wake_read_ = Fd(ends[0]);
  wake_write_ = Fd(ends[1]);
  const Rank rank = setup_.domain->rank;
  next_.rank = Rank((rank.value + 1) % setup_.size);
  previous_.rank = Rank((rank.value + setup_.size - 1) % setup_.size);
  auto [listener, endpoint] = listen_on(setup_.address);
  listener_ = std::move(listener);
  setup_.store->set(live_key(rank), endpoint.text());
  setup_.store->set(generation_key(setup_.attempt), std::to_string(setup_.generation));
  thread_ = std::thread([this] { run(); });
}

Monitor::~Monitor() {
  stop_ = true;
  [[maybe_unused]] const auto written = write(wake_write_.get(), "x", 1);
  thread_.join();
}

void Monitor::publish(const Failure& failure) {
  if (failure.rank == setup_.domain->rank) confessed_ = true;
  setup_.store->compareSet(failed_key(setup_.attempt, setup_.generation), std::string(), failure.serialize());
}

void Monitor::run() {
  set_log_rank(setup_.domain->rank);
  Clock::time_point last_beat = Clock::now();
  while (!stop_) {
    const int listener = Clock::now() < accept_again_ ? -1 : listener_.get();
    std::array<pollfd, 4> waiting{pollfd{wake_read_.get(), POLLIN, 0}, pollfd{listener, POLLIN, 0},
                                  pollfd{next_.connection.get(), POLLIN, 0},
                                  pollfd{previous_.connection.get(), POLLIN, 0}};
    poll(waiting.data(), waiting.size(), static_cast<int>(kTick.count()));
    if (stop_ || setup_.domain->failure.failed()) break;
    try {
      if (!next_.connection && !next_.lost && !next_.said_goodbye) connect_next();
      accept_strangers();
      hear_strangers();
      listen_to(next_);
      listen_to(previous_);
      if (Clock::now() - last_beat >= kBeat) {
        beat(next_, kAlive);
        beat(previous_, kAlive);
        last_beat = Clock::now();
      }
      judge(next_);
      judge(previous_);
      read_store();
    } catch (const std::exception& e) {
      Log(LogLevel::Info) << "monitor: " << e.what();
      // Only the store throws: a neighbour that cannot be reached is judged by its silence.
      const std::string host =
          setup_.store_host ? "rank " + std::to_string(setup_.store_host->value) : "the launcher";
      setup_.domain->failure.report(
          {setup_.store_host, host + ", which hosts the store, is gone or cut off"});
    }
  }
  if (setup_.domain->failure.failed()) {
    // A rank that computes, and never comes to the operation that the others wait in, has its record read
    // too.
    setup_.domain->recorder.dump("failure");
    return;
  }
  beat(next_, kGoodbye);
  beat(previous_, kGoodbye);
}

// What a connection begins with: that it is one of this job's monitors, and whose.
std::string Monitor::greeting_of(Rank rank) const {
  std::string text = "penstock monitor " + std::to_string(setup_.attempt) + "/" +
                     std::to_string(setup_.generation) + "/" + std::to_string(rank.value) + "\n";
  return text + setup_.secret.sign(text) + "\n";
}

// Everyone who knocks is let in, also where nobody is expected: a connection that is left in the queue would
// wake this thread for ever.
void Monitor::accept_strangers() {
  if (Clock::now() < accept_again_) return;
  for (std::size_t i = 0; i < kMostStrangers; ++i) {
    Fd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection) {
      const bool later = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNABORTED;
      if (!later) accept_again_ = Clock::now() + kAcceptPause;
      return;
    }
    if (strangers_.size() == kMostStrangers) strangers_.erase(strangers_.begin());
    strangers_.push_back({.connection = std::move(connection), .said = {}});
  }
}

// Never waits: a stranger that says nothing, or half a greeting, must not hold up the heartbeats.
void Monitor::hear_strangers() {
  const std::string expected = greeting_of(previous_.rank);
  const auto is_done = [&](Stranger& stranger) {
    std::array<char, 128> bytes{};
    const std::size_t missing = std::min(expected.size() - stranger.said.size(), bytes.size());
    const auto count = recv(stranger.connection.get(), bytes.data(), missing, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
      return Clock::now() - stranger.since > kStrangerLimit;
    if (count <= 0) return true;
    stranger.said.append(bytes.data(), static_cast<std::size_t>(count));
    // Garbage is not waited for. The signature is compared as a whole: each byte's answer would help to guess
    // it.
    const std::size_t open_part = std::min(stranger.said.size(), expected.find('\n'));
    if (!expected.starts_with(stranger.said.substr(0, open_part))) return true;
    if (stranger.said.size() < expected.size()) return false;
    if (same_secret(stranger.said, expected) && !previous_.connection && !previous_.lost) {
      previous_.connection = std::move(stranger.connection);
      beat(previous_, kAlive);  // tells it that it was let in
      heard_of(previous_);
    }
    return true;
  };
  std::erase_if(strangers_, is_done);
}

void Monitor::connect_next() {
  if (!setup_.store->check({live_key(next_.rank)})) return;
  const Endpoint endpoint = Endpoint::parse(setup_.store->get_to_str(live_key(next_.rank)));
  if (!next_.last_sign) next_.last_sign = Clock::now();
  Connecting tried = connect_to(endpoint, kConnectLimit);
  if (!tried.connection) {
    next_.trouble = "cannot be reached by rank " + std::to_string(setup_.domain->rank.value) + " at " +
                    endpoint.host + " port " + std::to_string(endpoint.port) + ": " +
                    std::strerror(tried.error);
    // Nobody listens there any more. Anything else may pass, and is silence until then.
    if (tried.error == ECONNREFUSED) lose(next_, next_.trouble);
    return;
  }
  next_.connection = std::move(tried.connection);
  next_.trouble.clear();
  const std::string greeting = greeting_of(setup_.domain->rank);
  send(next_.connection.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
}

void Monitor::beat(Neighbour& neighbour, char sign) {
  if (neighbour.connection) send(neighbour.connection.get(), &sign, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Monitor::listen_to(Neighbour& neighbour) {
  if (!neighbour.connection) return;
  std::array<char, 64> signs{};
  for (;;) {
    const auto count = recv(neighbour.connection.get(), signs.data(), signs.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (count <= 0) {
      neighbour.connection.reset();
      // Closed before it was let in, for instance because strangers crowd the door: try again.
      if (!neighbour.spoke && &neighbour == &next_) return;
      if (!neighbour.said_goodbye)
        lose(neighbour, "its process ended without a goodbye (killed, crashed, or its machine is gone)");
      return;
    }
    neighbour.spoke = true;
    heard_of(neighbour);
    if (std::memchr(signs.data(), kGoodbye, static_cast<std::size_t>(count)) != nullptr)
      neighbour.said_goodbye = true;
  }
}

void Monitor::heard_of(Neighbour& neighbour) {
  neighbour.last_sign = Clock::now();
  // Where both were held up, by a store that did not answer or a machine that slept, this one may have
  // looked before the other could speak again.
  if (suspicion_ && suspicion_->of_silence && suspicion_->failure.rank == neighbour.rank) suspicion_.reset();
}

void Monitor::lose(Neighbour& neighbour, const std::string& how) {
  neighbour.lost = true;
  if (!suspicion_) suspicion_ = Suspicion{{neighbour.rank, how}, Clock::now()};
}

void Monitor::judge(const Neighbour& neighbour) {
  if (neighbour.last_sign && !neighbour.said_goodbye && !neighbour.lost && !suspicion_ &&
      Clock::now() - *neighbour.last_sign > setup_.heartbeat_limit) {
    const double limit = std::chrono::duration<double>(setup_.heartbeat_limit).count();
    suspicion_ = Suspicion{
        {neighbour.rank, "gave no sign of life for " + seconds_text(limit) + " (" +
                             (neighbour.trouble.empty() ? "stopped, or cut off" : neighbour.trouble) + ")"},
        Clock::now(),
        true};
  }
  if (suspicion_ && Clock::now() - suspicion_->since > kPatience) publish(suspicion_->failure);
}

void Monitor::read_store() {
  for (const std::string& key : {failed_key(setup_.attempt, setup_.generation), died_key(setup_.attempt)}) {
    if (!setup_.store->check({key})) continue;
    const Failure failure = Failure::parse(setup_.store->get_to_str(key));
    if (failure.rank != setup_.domain->rank) {
      setup_.domain->failure.report(failure);
    } else if (!confessed_) {
      setup_.domain->failure.report({std::nullopt, "the other ranks gave this one up: it " + failure.cause});
    }
    return;
  }
}

}  // namespace penstock
