// Coordination of the launchers of several nodes.
#include "comm/launch/launch_nodes.h"

#include "base/log_line.h"
#include "base/text.h"
#include "comm/failure/exception_text.h"
#include "comm/failure/monitor.h"
#include "comm/failure/sockets.h"
#include "comm/rendezvous/store_client.h"

#include <penstock/base/error.h>

#include <thread>

namespace penstock::comm {
namespace {

// Longer than the ranks' own limit, so that their more precise reports arrive first.
std::chrono::milliseconds silence_limit() {
  return heartbeat_limit() + std::chrono::seconds(2);
}

// Store key under which node 0 publishes the secret, or a signature if it comes from a token file.
constexpr const char* kSecretKey = "penstock/secret";
constexpr std::size_t kSecretDigits = 32;

constexpr const char* kNode0Unreachable =
    "node 0 cannot be reached: its launcher exited, or the connection was lost";

constexpr std::chrono::milliseconds kSoon{2000};  // then a message says what the launcher waits for

std::string waiting_for(const std::string& whom, std::chrono::milliseconds limit) {
  return "waiting for " + whom + ", at most " + format_seconds(limit);
}

std::string silent_node(int node) {
  return str_cat("node ", node, " sent no heartbeat (exited, stopped, or disconnected)");
}

std::string node_key(const char* what, int node) {
  return str_cat("launch/", what, "/", node);
}

}  // namespace

void notify(const LaunchOptions& options, const std::string& notice) {
  if (options.on_notice) {
    options.on_notice(notice);
  } else {
    Log(LogLevel::Warn) << notice;
  }
}

LaunchNodes::LaunchNodes(const LaunchOptions& options)
    : nodes_(options.nodes), node_(options.node_rank), host_(options.host) {
  const std::uint16_t port = options.port.value_or(0);  // 0: the system chooses a free port
  const std::string endpoint = str_cat(host_, ":", port);
  StoreOptions store_options{.host = host_, .port = port, .hosts = node_ == 0};
  store_options.only_here = nodes_ == 1 || is_loopback(host_);
  store_options.timeout = options.join_timeout;
  c10::intrusive_ptr<c10d::TCPStore> store;
  try {
    if (node_ != 0 && !connect_to({host_, port}, kSoon).connection)
      notify(options, waiting_for("node 0 at " + endpoint, options.join_timeout));
    store = open_store(store_options);
    port_ = store->getPort();
  } catch (const std::exception& e) {
    const auto* ours = dynamic_cast<const Error*>(&e);
    throw CommError("the store at " + endpoint +
                        (node_ == 0 ? " cannot be hosted: " : " cannot be reached: ") +
                        (ours != nullptr ? ours->message() : exception_text(e)),
                    {},
                    ours != nullptr && !ours->hint().empty()
                        ? ours->hint()
                        : "check the rendezvous address; every node must use that of node 0");
  }
  pulses_.resize(static_cast<std::size_t>(nodes_));
  try {
    secret_ = agree_on_secret(*store, options);
    store_ = secret_.protect(store);
    store_->set(node_key("ranks", node_), std::to_string(options.ranks));
    await_all(options);
  } catch (const c10::Error& e) {
    throw CommError(kNode0Unreachable + std::string(": ") + exception_text(e));
  }
}

// Node 0 generates the secret, unless it comes from a token file. Then node 0 publishes only a signature, to
// detect a wrong file.
JobSecret LaunchNodes::agree_on_secret(c10d::Store& store, const LaunchOptions& options) {
  const bool from_file = options.token_file.has_value();
  JobSecret secret;
  if (from_file) {
    secret = JobSecret::from_file(*options.token_file);
  } else if (node_ == 0) {
    secret = JobSecret::random();
  }
  if (nodes_ == 1) return secret;
  const std::string proof = secret.sign("penstock token file");
  if (node_ == 0) {
    store.set(kSecretKey, from_file ? proof : secret.text());
    return secret;
  }
  await_key(store, kSecretKey, 0, options);
  const std::string published = store.get_to_str(kSecretKey);
  if (from_file && published == proof) return secret;
  if (!from_file && published.size() == kSecretDigits) return JobSecret::parse(published);
  throw UsageError(from_file ? "the token file of this node differs from that of node 0"
                             : "node 0 has a token file, but this node has none",
                   {}, "use the same token file on every node, or on none");
}

// Waits until the node has written the key.
void LaunchNodes::await_key(c10d::Store& store, const std::string& key, int node,
                            const LaunchOptions& options) {
  const std::string name = str_cat("node ", node);
  while (!store.check({key})) {
    const auto waited = Clock::now() - started_;
    if (waited > options.join_timeout)
      throw TimeoutError(name + " did not join within " + format_seconds(options.join_timeout));
    if (waited > kSoon && !said_waiting_) {
      notify(options, waiting_for(name, options.join_timeout));
      said_waiting_ = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// Waits for all nodes and adds up their ranks.
void LaunchNodes::await_all(const LaunchOptions& options) {
  for (int node = 0; node < nodes_; ++node) {
    await_key(*store_, node_key("ranks", node), node, options);
    const int ranks = std::stoi(store_->get_to_str(node_key("ranks", node)));
    if (node < node_) first_rank_ += ranks;
    world_size_ += ranks;
  }
}

// Node 0 hosts the store. If the store fails, node 0 counts as lost, and the store is not used again.
template <class Question>
auto LaunchNodes::ask(const Question& question) -> decltype(question()) {
  if (gone_.empty()) {
    try {
      return question();
    } catch (const std::exception& e) {
      Log(LogLevel::Info) << "launcher: " << e.what();
      gone_ = kNode0Unreachable;
    }
  }
  return decltype(question())();
}

void LaunchNodes::publish_death(int attempt, const Failure& failure) {
  ask([&] { store_->compareSet(died_key(attempt), std::string(), failure.serialize()); });
}

std::optional<Failure> LaunchNodes::failure_at(const std::string& key) {
  if (!store_->check({key})) return std::nullopt;
  return Failure::parse(store_->get_to_str(key));
}

std::optional<Failure> LaunchNodes::published_death(int attempt) {
  return ask([&] { return failure_at(died_key(attempt)); });
}

std::optional<Failure> LaunchNodes::reported_failure(int attempt) {
  return ask([&]() -> std::optional<Failure> {
    if (!store_->check({generation_key(attempt)})) return std::nullopt;
    return failure_at(failed_key(attempt, std::stoi(store_->get_to_str(generation_key(attempt)))));
  });
}

std::optional<Failure> LaunchNodes::beat() {
  if (nodes_ == 1) return std::nullopt;
  const auto silence = ask([&] {
    std::optional<Failure> found;
    store_->set(node_key("beat", node_), std::to_string(++beats_));
    for (int node = 1; node_ == 0 && node < nodes_; ++node)
      if (silent(node) && !found) found = {std::nullopt, silent_node(node)};
    return found;
  });
  return gone_.empty() ? silence : Failure{std::nullopt, gone_};
}

// Whether the launcher of the node has sent no heartbeat for longer than the limit.
bool LaunchNodes::silent(int node) {
  Pulse& pulse = pulses_[static_cast<std::size_t>(node)];
  std::string now = store_->check({node_key("beat", node)}) ? store_->get_to_str(node_key("beat", node)) : "";
  if (now != pulse.last) pulse = {std::move(now), Clock::now()};
  return Clock::now() - pulse.changed > silence_limit();
}

bool LaunchNodes::all_ended_well(int attempt, bool here) {
  return nodes_ == 1 ? here : ask([&] { return wait_for_ends(attempt, here); });
}

bool LaunchNodes::wait_for_ends(int attempt, bool here) {
  if (node_ != 0) pulses_.assign(pulses_.size(), {});  // node 0 reads the heartbeats during the attempt too
  const auto end_key = [attempt](int node) { return str_cat(node_key("end", node), "/", attempt); };
  store_->set(end_key(node_), std::string(here ? "ok" : "failed"));
  bool well = true;
  for (int node = 0; node < nodes_; ++node) {
    while (!store_->check({end_key(node)})) {
      beat();
      if (silent(node)) {
        gone_ = silent_node(node);
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    well = well && store_->get_to_str(end_key(node)) == "ok";
  }
  // Node 0 leaves last, because it hosts the store.
  store_->set(str_cat(node_key("gone", node_), "/", attempt), std::string("1"));
  if (node_ == 0) {
    const auto deadline = Clock::now() + silence_limit();
    for (int node = 1; node < nodes_; ++node) {
      while (!store_->check({str_cat(node_key("gone", node), "/", attempt)}) && Clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
  }
  return well;
}

}  // namespace penstock::comm
