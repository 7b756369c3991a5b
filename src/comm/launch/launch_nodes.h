// Coordinates the launchers of several nodes through the store of node 0: they exchange their numbers of
// ranks, report failures during an attempt, and agree on whether it succeeded.
#pragma once

#include "comm/failure/failure.h"
#include "comm/rendezvous/job_secret.h"

#include <penstock/comm/launcher.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace penstock::comm {

//! Passes a notice to `on_notice`, or logs it.
void notify(const LaunchOptions& options, const std::string& notice);

class LaunchNodes {
 public:
  explicit LaunchNodes(const LaunchOptions& options);

  int first_rank() const { return first_rank_; }
  int world_size() const { return world_size_; }
  const std::string& host() const { return host_; }
  std::uint16_t port() const { return port_; }
  //! Returns the job secret, which is equal on every node.
  const JobSecret& secret() const { return secret_; }

  //! Reports to ranks and launchers that a rank of this node failed. Only the first report is kept.
  void publish_death(int attempt, const Failure& failure);
  //! Returns the failure that any node published, if any.
  std::optional<Failure> published_death(int attempt);
  //! Returns the failure that the ranks themselves reported, if any.
  std::optional<Failure> reported_failure(int attempt);

  //! Waits until all nodes have ended this attempt; returns whether it succeeded on all of them. A launcher
  //! without heartbeats counts as failed.
  bool all_ended_well(int attempt, bool here);
  //! Sends a heartbeat; must be called regularly. Returns a failure if a node is lost: on node 0, another
  //! node whose heartbeats stopped; on other nodes, node 0, if its store does not answer.
  std::optional<Failure> beat();
  //! Returns which node is lost, so that no restart is possible. Empty if all nodes are present.
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
  void await_key(c10d::Store& store, const std::string& key, int node, const LaunchOptions& options);
  void await_all(const LaunchOptions& options);
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

}  // namespace penstock::comm
