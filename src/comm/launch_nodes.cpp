// The agreement between launchers.
#include "comm/launch_nodes.h"

#include "comm/monitor.h"
#include "comm/sockets.h"

#include <penstock/base/error.h>
#include <penstock/base/log.h>
#include <penstock/base/text.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdio>
#include <thread>

namespace penstock {
namespace {

// After the ranks' own limit: of ranks that have found each other they know more.
std::chrono::milliseconds silence_limit() {
  return heartbeat_limit() + std::chrono::seconds(2);
}

constexpr const char* kCutOff =
    "node 0 cannot be reached any more: its launcher is gone, or the network is cut";

constexpr std::chrono::milliseconds kSoon{2000};  // after which people want to know what is waited for

std::string limit_text(std::chrono::milliseconds limit) {
  return seconds_text(std::chrono::duration<double>(limit).count());
}

void say_waiting(const std::string& whom, std::chrono::milliseconds limit) {
  std::fprintf(stderr, "waiting for %s, at most %s\n", whom.c_str(), limit_text(limit).c_str());
}

std::string silent_node(int node) {
  return "node " + std::to_string(node) + " gives no sign of life (ended, stopped, or cut off)";
}

std::string node_key(const char* what, int node) {
  return std::string("launch/") + what + "/" + std::to_string(node);
}

}  // namespace

LaunchNodes::LaunchNodes(const LaunchOptions& options)
    : nodes_(options.nodes), node_(options.node_rank), host_(options.host) {
  const std::string place = host_ + ":" + std::to_string(options.port);
  c10d::TCPStoreOptions tcp;
  tcp.port = options.port;
  tcp.isServer = node_ == 0;
  tcp.waitWorkers = false;
  tcp.timeout = options.join_timeout;
  try {
    if (node_ != 0 && !connect_to({host_, options.port}, kSoon).connection)
      say_waiting("node 0 at " + place, options.join_timeout);
    const auto store = c10::make_intrusive<c10d::TCPStore>(host_, tcp);
    port_ = store->getPort();
    store_ = store;
    break_when_cut(port_, kCutLimit);
  } catch (const std::exception& e) {
    throw CommError(
        "the store at " + place + (node_ == 0 ? " cannot be hosted: " : " cannot be reached: ") + words_of(e),
        {}, "check --rendezvous; every node names the address of node 0");
  }
  pulses_.resize(static_cast<std::size_t>(nodes_));
  try {
    store_->set(node_key("ranks", node_), std::to_string(options.ranks));
    await_all(options.join_timeout);
  } catch (const c10::Error& e) {
    throw CommError(kCutOff + std::string(": ") + words_of(e));
  }
}

// Learns of each node's ranks.
void LaunchNodes::await_all(std::chrono::milliseconds limit) {
  const auto start = Clock::now();
  bool said = false;
  for (int node = 0; node < nodes_; ++node) {
    const std::string name = "node " + std::to_string(node);
    while (!store_->check({node_key("ranks", node)})) {
      const auto waited = Clock::now() - start;
      if (waited > limit) throw TimeoutError(name + " did not join within " + limit_text(limit));
      if (waited > kSoon && !said) {
        say_waiting(name, limit);
        said = true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    const int ranks = std::stoi(store_->get_to_str(node_key("ranks", node)));
    if (node < node_) first_rank_ += ranks;
    world_size_ += ranks;
  }
}

// The store is node 0's: one that fails to answer is gone, and is not asked again.
template <class Question>
auto LaunchNodes::ask(const Question& question) -> decltype(question()) {
  if (gone_.empty()) {
    try {
      return question();
    } catch (const std::exception& e) {
      Log(LogLevel::Info) << "launcher: " << e.what();
      gone_ = kCutOff;
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

std::optional<Failure> LaunchNodes::told_failure(int attempt) {
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

// Whether its launcher has not been heard of for too long.
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
  if (node_ != 0) pulses_.assign(pulses_.size(), {});  // node 0 has listened all the time
  const auto end_key = [attempt](int node) { return node_key("end", node) + "/" + std::to_string(attempt); };
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
  // Node 0 hosts the store: it leaves last.
  store_->set(node_key("gone", node_) + "/" + std::to_string(attempt), std::string("1"));
  if (node_ == 0) {
    const auto deadline = Clock::now() + silence_limit();
    for (int node = 1; node < nodes_; ++node) {
      while (!store_->check({node_key("gone", node) + "/" + std::to_string(attempt)}) &&
             Clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
  }
  return well;
}

}  // namespace penstock
