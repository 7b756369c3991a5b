// The monitor's loop: store, ring, heartbeats.
#include "comm/failure/monitor.h"

#include "base/log_line.h"
#include "base/text.h"
#include "comm/rendezvous/environment.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <utility>

namespace penstock::comm {
namespace {

constexpr std::chrono::milliseconds kTick{100};
constexpr std::chrono::milliseconds kBeat{1000};
// A broken connection only shows that a process ended; a report with the cause may follow from that rank or
// from the launcher.
constexpr std::chrono::milliseconds kPatience{700};
// Limit of one attempt to connect to the next rank, which blocks the monitor.
constexpr std::chrono::milliseconds kConnectLimit{1000};
constexpr char kAlive = '.';
constexpr char kGoodbye = 'B';

// Unauthenticated connections: how many the monitor keeps, and for how long. It drops the oldest first.
constexpr std::size_t kMaxPending = 256;
constexpr std::chrono::milliseconds kPendingLimit{2000};
// Pause after accept() failed for lack of descriptors, because the listener stays readable.
constexpr std::chrono::milliseconds kAcceptPause{1000};

// Compares in constant time.
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
  return str_cat("penstock/", attempt, "/died");
}
std::string failed_key(int attempt, int generation) {
  return str_cat("penstock/", attempt, "/", generation, "/failed");
}

std::string generation_key(int attempt) {
  return str_cat("penstock/", attempt, "/generation");
}

std::string live_key(const std::string& prefix, Rank rank) {
  return str_cat(prefix, "live/", rank.value);
}

std::string left_key(const std::string& prefix, Rank rank) {
  return str_cat(prefix, "left/", rank.value);
}

std::string Monitor::prefix() const {
  return str_cat("penstock/", setup_.attempt, "/", setup_.generation_number, "/");
}

std::string Monitor::live_key(Rank rank) const {
  return penstock::comm::live_key(prefix(), rank);
}

Monitor::Monitor(Setup setup) : setup_(std::move(setup)) {
  std::tie(wake_read_, wake_write_) = make_pipe();
  const Rank rank = setup_.generation->rank;
  next_.rank = Rank((rank.value + 1) % setup_.size);
  previous_.rank = Rank((rank.value + setup_.size - 1) % setup_.size);
  auto [listener, endpoint] = listen_on(setup_.address);
  listener_ = std::move(listener);
  setup_.store->set(live_key(rank), endpoint.text());
  setup_.store->set(generation_key(setup_.attempt), std::to_string(setup_.generation_number));
  thread_ = std::thread([this] { run(); });
}

Monitor::~Monitor() {
  stop_ = true;
  [[maybe_unused]] const auto written = write(wake_write_.get(), "x", 1);
  thread_.join();
}

Failure Monitor::publish(const Failure& failure) {
  if (failure.rank == setup_.generation->rank) reported_own_failure_ = true;
  const std::string key = failed_key(setup_.attempt, setup_.generation_number);
  return Failure::parse(setup_.store->compareSet(key, std::string(), failure.serialize()));
}

void Monitor::run() {
  set_log_rank(setup_.generation->rank);
  Clock::time_point last_beat = Clock::now();
  while (!stop_) {
    const int listener = Clock::now() < accept_after_ ? -1 : listener_.get();
    std::array<pollfd, 4> waiting{pollfd{wake_read_.get(), POLLIN, 0}, pollfd{listener, POLLIN, 0},
                                  pollfd{next_.connection.get(), POLLIN, 0},
                                  pollfd{previous_.connection.get(), POLLIN, 0}};
    poll(waiting.data(), waiting.size(), static_cast<int>(kTick.count()));
    if (stop_ || setup_.generation->failure.failed()) break;
    try {
      if (!next_.connection && !next_.lost && !next_.said_goodbye) connect_next();
      accept_connections();
      read_greetings();
      read_heartbeats(next_);
      read_heartbeats(previous_);
      if (Clock::now() - last_beat >= kBeat) {
        beat(next_, kAlive);
        beat(previous_, kAlive);
        last_beat = Clock::now();
      }
      check_heartbeat(next_);
      check_heartbeat(previous_);
      settle_suspicion();
      read_store();
    } catch (const std::exception& e) {
      Log(LogLevel::Info) << "monitor: " << e.what();
      // Only the store throws: an unreachable neighbor fails by its missing heartbeats.
      const std::string host =
          setup_.store_host ? str_cat("rank ", setup_.store_host->value) : "the launcher";
      setup_.generation->failure.report(
          {setup_.store_host, host + ", which hosts the store, exited or cannot be reached"});
    }
  }
  if (setup_.generation->failure.failed()) {
    // Also dumps the record of a rank that computes and never reaches the operation in which the others wait.
    setup_.generation->recorder.dump("failure");
    return;
  }
  beat(next_, kGoodbye);
  beat(previous_, kGoodbye);
}

// The first message of a connection: proves that the sender is a monitor of this job, and names its rank.
std::string Monitor::greeting_of(Rank rank) const {
  std::string text =
      str_cat("penstock monitor ", setup_.attempt, "/", setup_.generation_number, "/", rank.value, "\n");
  return text + setup_.secret.sign(text) + "\n";
}

// Accepts every connection, even if none is expected: a connection left in the queue would wake this thread
// again and again.
void Monitor::accept_connections() {
  if (Clock::now() < accept_after_) return;
  for (std::size_t i = 0; i < kMaxPending; ++i) {
    Fd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection) {
      const bool later = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNABORTED;
      if (!later) accept_after_ = Clock::now() + kAcceptPause;
      return;
    }
    if (pending_.size() == kMaxPending) pending_.erase(pending_.begin());
    pending_.push_back({.connection = std::move(connection), .received = {}});
  }
}

// Never blocks: a connection that sends nothing or half a greeting must not delay the heartbeats.
void Monitor::read_greetings() {
  const std::string expected = greeting_of(previous_.rank);
  const auto is_done = [&](PendingConnection& pending) {
    std::array<char, 128> bytes{};
    const std::size_t missing = std::min(expected.size() - pending.received.size(), bytes.size());
    const auto count = recv(pending.connection.get(), bytes.data(), missing, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
      return Clock::now() - pending.since > kPendingLimit;
    if (count <= 0) return true;
    pending.received.append(bytes.data(), static_cast<std::size_t>(count));
    // Drops a wrong first line immediately. Compares the signature only when it is complete: an answer per
    // byte would help to guess it.
    const std::size_t open_part = std::min(pending.received.size(), expected.find('\n'));
    if (!expected.starts_with(pending.received.substr(0, open_part))) return true;
    if (pending.received.size() < expected.size()) return false;
    if (same_secret(pending.received, expected) && !previous_.connection && !previous_.lost) {
      previous_.connection = std::move(pending.connection);
      beat(previous_, kAlive);  // tells the neighbor that it was accepted
      record_heartbeat(previous_);
    }
    return true;
  };
  std::erase_if(pending_, is_done);
}

void Monitor::connect_next() {
  if (!setup_.store->check({live_key(next_.rank)})) return;
  const Endpoint endpoint = Endpoint::parse(setup_.store->get_to_str(live_key(next_.rank)));
  if (!next_.last_sign) next_.last_sign = Clock::now();
  Connecting tried = connect_to(endpoint, kConnectLimit);
  if (!tried.connection) {
    next_.trouble = str_cat("cannot be reached by rank ", setup_.generation->rank.value, " at ",
                            endpoint.host, " port ", endpoint.port, ": ", std::strerror(tried.error));
    // Nothing listens on that port anymore. Other errors may be temporary: retry until the heartbeat limit.
    if (tried.error == ECONNREFUSED) mark_lost(next_, next_.trouble);
    return;
  }
  next_.connection = std::move(tried.connection);
  next_.trouble.clear();
  const std::string greeting = greeting_of(setup_.generation->rank);
  send(next_.connection.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
}

void Monitor::beat(Neighbor& neighbor, char sign) {
  if (neighbor.connection) send(neighbor.connection.get(), &sign, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Monitor::read_heartbeats(Neighbor& neighbor) {
  if (!neighbor.connection) return;
  std::array<char, 64> signs{};
  for (;;) {
    const auto count = recv(neighbor.connection.get(), signs.data(), signs.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (count <= 0) {
      neighbor.connection.reset();
      // Closed before it was accepted, for instance because of too many foreign connections: try again.
      if (!neighbor.spoke && &neighbor == &next_) return;
      if (!neighbor.said_goodbye)
        mark_lost(neighbor,
                  "its process ended without leaving the world (killed, crashed, or its machine is down)");
      return;
    }
    neighbor.spoke = true;
    record_heartbeat(neighbor);
    if (std::memchr(signs.data(), kGoodbye, static_cast<std::size_t>(count)) != nullptr)
      neighbor.said_goodbye = true;
  }
}

void Monitor::record_heartbeat(Neighbor& neighbor) {
  neighbor.last_sign = Clock::now();
  // If both ranks were blocked (by a slow store or a suspended machine), this one may have checked before the
  // other could send again.
  if (suspicion_ && suspicion_->of_silence && suspicion_->failure.rank == neighbor.rank) suspicion_.reset();
}

void Monitor::mark_lost(Neighbor& neighbor, const std::string& how) {
  neighbor.lost = true;
  if (!suspicion_) suspicion_ = Suspicion{{neighbor.rank, how}, Clock::now()};
}

void Monitor::check_heartbeat(const Neighbor& neighbor) {
  if (neighbor.last_sign && !neighbor.said_goodbye && !neighbor.lost && !suspicion_ &&
      Clock::now() - *neighbor.last_sign > setup_.heartbeat_limit) {
    const double limit = std::chrono::duration<double>(setup_.heartbeat_limit).count();
    suspicion_ = Suspicion{
        {neighbor.rank, "sent no heartbeat for " + format_seconds(limit) + " (" +
                            (neighbor.trouble.empty() ? "stopped, or disconnected" : neighbor.trouble) + ")"},
        Clock::now(),
        true};
  }
}

// A rank that leaves before its neighbors are connected cannot say goodbye to them, but the store knows that
// it left.
void Monitor::settle_suspicion() {
  if (!suspicion_ || Clock::now() - suspicion_->since <= kPatience) return;
  const Rank suspect = *suspicion_->failure.rank;
  if (!setup_.store->check({left_key(prefix(), suspect)})) {
    publish(suspicion_->failure);
    return;
  }
  for (Neighbor* neighbor : {&next_, &previous_})
    if (neighbor->rank == suspect) neighbor->said_goodbye = true;
  suspicion_.reset();
}

void Monitor::read_store() {
  for (const std::string& key :
       {failed_key(setup_.attempt, setup_.generation_number), died_key(setup_.attempt)}) {
    if (!setup_.store->check({key})) continue;
    const Failure failure = Failure::parse(setup_.store->get_to_str(key));
    if (failure.rank != setup_.generation->rank) {
      setup_.generation->failure.report(failure);
    } else if (!reported_own_failure_) {
      setup_.generation->failure.report(
          {std::nullopt, "the other ranks reported this rank as failed: " + failure.cause});
    }
    return;
  }
}

}  // namespace penstock::comm
