// The agreement between launchers.
#include "comm/launch_nodes.h"

#include "comm/monitor.h"
#include "comm/sockets.h"

#include <penstock/base/error.h>
#include <penstock/base/text.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <thread>

namespace penstock {
namespace {

constexpr std::chrono::seconds kSilence{15};
constexpr const char* kCutOff = "node 0, which hosts the store, cannot be reached";

std::string node_key(const char* what, int node) {
  return std::string("launch/") + what + "/" + std::to_string(node);
}

}  // namespace

LaunchNodes::LaunchNodes(const LaunchOptions& options)
    : nodes_(options.nodes), node_(options.node_rank), host_(options.host) {
  c10d::TCPStoreOptions tcp;
  tcp.port = options.port;
  tcp.isServer = node_ == 0;
  tcp.waitWorkers = false;
  tcp.timeout = options.join_timeout;
  try {
    const auto store = c10::make_intrusive<c10d::TCPStore>(host_, tcp);
    port_ = store->getPort();
    store_ = store;
    break_when_cut(port_, kCutLimit);
  } catch (const std::exception& e) {
    throw CommError("the store at " + host_ + ":" + std::to_string(options.port) +
                        (node_ == 0 ? " cannot be hosted: " : " cannot be reached: ") +
                        std::string(e.what()).substr(0, 200),
                    {}, "check --rendezvous; every node names the address of node 0");
  }
  pulses_.resize(static_cast<std::size_t>(nodes_));
  store_->set(node_key("ranks", node_), std::to_string(options.ranks));
  const auto deadline = Clock::now() + options.join_timeout;
  for (int node = 0; node < nodes_; ++node) {
    while (!store_->check({node_key("ranks", node)})) {
      if (Clock::now() > deadline) {
        throw TimeoutError("node " + std::to_string(node) + " did not join within " +
                           seconds_text(std::chrono::duration<double>(options.join_timeout).count()));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    const int ranks = std::stoi(store_->get_to_str(node_key("ranks", node)));
    if (node < node_) first_rank_ += ranks;
    world_size_ += ranks;
  }
}

void LaunchNodes::publish_death(int attempt, const Failure& failure) {
  try {
    store_->compareSet(died_key(attempt), std::string(), failure.serialize());
  } catch (const std::exception& e) {  // this node is cut off: its own ranks are ended all the same
    gone_ = kCutOff;
  }
}

std::optional<Failure> LaunchNodes::published_death(int attempt) {
  if (!store_->check({died_key(attempt)})) return std::nullopt;
  return Failure::parse(store_->get_to_str(died_key(attempt)));
}

std::optional<Failure> LaunchNodes::told_failure(int attempt) {
  if (!store_->check({generation_key(attempt)})) return std::nullopt;
  const std::string key = failed_key(attempt, std::stoi(store_->get_to_str(generation_key(attempt))));
  if (!store_->check({key})) return std::nullopt;
  return Failure::parse(store_->get_to_str(key));
}

void LaunchNodes::beat() {
  if (nodes_ == 1) return;
  store_->set(node_key("beat", node_), std::to_string(++beats_));
  if (node_ != 0) return;  // the store is node 0's: to the others its silence is a broken connection
  for (int node = 1; node < nodes_; ++node) silent(node);
}

// Whether its launcher has not been heard of for too long.
bool LaunchNodes::silent(int node) {
  Pulse& pulse = pulses_[static_cast<std::size_t>(node)];
  std::string now = store_->check({node_key("beat", node)}) ? store_->get_to_str(node_key("beat", node)) : "";
  if (now != pulse.last) pulse = {std::move(now), Clock::now()};
  return Clock::now() - pulse.changed > kSilence;
}

bool LaunchNodes::all_ended_well(int attempt, bool here) {
  if (nodes_ == 1) return here;
  try {
    return gone_.empty() && wait_for_ends(attempt, here);
  } catch (const std::exception& e) {
    gone_ = kCutOff;
    return false;
  }
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
        gone_ = "node " + std::to_string(node) + " gives no sign of life (ended, stopped, or cut off)";
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    well = well && store_->get_to_str(end_key(node)) == "ok";
  }
  // Node 0 hosts the store: it leaves last.
  store_->set(node_key("gone", node_) + "/" + std::to_string(attempt), std::string("1"));
  if (node_ == 0) {
    const auto deadline = Clock::now() + kSilence;
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
