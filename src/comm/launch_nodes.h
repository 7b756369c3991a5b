// How the launchers of several nodes agree: node 0 hosts the store, all say how many ranks they have, tell
// each other of failures while an attempt runs, and decide together whether it ended well.
#pragma once

#include "comm/failure.h"
#include "comm/job_secret.h"

#include <penstock/comm/launcher.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

class LaunchNodes {
 public:
  explicit LaunchNodes(const LaunchOptions& options);

  int first_rank() const { return first_rank_; }
  int world_size() const { return world_size_; }
  const std::string& host() const { return host_; }
  std::uint16_t port() const { return port_; }
  //! The same on every node.
  const JobSecret& secret() const { return secret_; }

  //! Tells ranks and launchers that a rank of this node has ended badly; the first one stays.
  void publish_death(int attempt, const Failure& failure);
  //! A death that was published by any node.
  std::optional<Failure> published_death(int attempt);
  //! What the ranks themselves say failed, if anything.
  std::optional<Failure> told_failure(int attempt);

  //! Waits for the other nodes' end of this attempt; whether all ended well. A launcher that falls silent
  //! counts as bad.
  bool all_ended_well(int attempt, bool here);
  //! Shows that this launcher lives; called now and then. Tells of a node that is gone: to node 0 one whose
  //! launcher has been silent for too long, to the others node 0, whose store does not answer.
  std::optional<Failure> beat();
  //! Why no further attempt can begin: a node is gone. Empty if all are there.
  const std::string& gone() const { return gone_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Pulse {
    std::string last;
    Clock::time_point changed = Clock::now();
  };

  template <class Question>
  auto ask(const Question& question) -> decltype(question());
  std::optional<Failure> failure_at(const std::string& key);
  JobSecret agree_on_secret(c10d::Store& store, const LaunchOptions& options);
  void await_key(c10d::Store& store, const std::string& key, int node, std::chrono::milliseconds limit);
  void await_all(std::chrono::milliseconds limit);
  bool silent(int node);
  bool wait_for_ends(int attempt, bool here);

  int nodes_;
  int node_;
  std::string host_;
  int first_rank_ = 0;
  int world_size_ = 0;
  c10::intrusive_ptr<c10d::Store> store_;
  std::uint16_t port_ = 0;
  JobSecret secret_;
  Clock::time_point started_ = Clock::now();
  bool said_waiting_ = false;
  std::int64_t beats_ = 0;
  std::vector<Pulse> pulses_;
  std::string gone_;
};

}  // namespace penstock
