// Watches the other ranks of a job of processes, on its own thread and with its own store client (a blocking
// call stalls all other calls of a client). It learns of failures in three ways:
//   - The failing rank, or the launcher that saw it exit, writes the failure into the store.
//   - The ranks form a ring of connections. A connection that closes without a goodbye shows that the process
//     of the neighbor ended.
//   - Neighbors exchange a heartbeat every second. A neighbor that is silent for the heartbeat limit (15 s)
//     failed, whether or not it ever answered.
// docs/adr/0003 gives the reasons.
#pragma once

#include "comm/failure/sockets.h"
#include "comm/rendezvous/job_secret.h"
#include "comm/world/generation.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace penstock::comm {

//! Store keys of failures.
std::string died_key(int attempt);                    //!< written by the launcher
std::string failed_key(int attempt, int generation);  //!< written by ranks
std::string generation_key(int attempt);              //!< the current generation; written by ranks
//! Store key of the endpoint of a rank's monitor. The prefix names the attempt and the generation.
std::string live_key(const std::string& prefix, Rank rank);
//! Store key that a rank sets before it leaves the world. The prefix is the same.
std::string left_key(const std::string& prefix, Rank rank);

//! How long a rank may go without a heartbeat: PENSTOCK_HEARTBEAT seconds, 15 by default.
std::chrono::milliseconds heartbeat_limit();

class Monitor {
 public:
  struct Setup {
    std::shared_ptr<WorldGeneration> generation;
    c10::intrusive_ptr<c10d::Store> store;  //!< a client used only by the monitor
    int attempt = 0;
    int generation_number = 0;
    int size = 1;
    std::string address;             //!< address of this machine, as the other ranks reach it
    JobSecret secret;                //!< signs the greetings
    std::optional<Rank> store_host;  //!< the rank that hosts the store; nullopt if the launcher does
    std::chrono::milliseconds heartbeat_limit = penstock::comm::heartbeat_limit();
  };

  explicit Monitor(Setup setup);
  ~Monitor();  //!< says goodbye to its neighbors

  //! Writes a failure into the store, unless it already contains one; returns the one in the store.
  Failure publish(const Failure& failure);

 private:
  using Clock = std::chrono::steady_clock;
  struct Neighbor {
    Rank rank;
    Fd connection;
    bool spoke = false;                          // it has sent a heartbeat
    std::optional<Clock::time_point> last_sign;  // last heartbeat, or the first attempt to connect
    std::string trouble;                         // error of the last attempt to connect
    bool said_goodbye = false;
    bool lost = false;
  };

  //! A connection that is not authenticated yet.
  struct PendingConnection {
    Fd connection;
    std::string received;
    Clock::time_point since = Clock::now();
  };

  void run();
  void accept_connections();
  void read_greetings();
  std::string greeting_of(Rank rank) const;
  void connect_next();
  void read_heartbeats(Neighbor& neighbor);
  void record_heartbeat(Neighbor& neighbor);
  void beat(Neighbor& neighbor, char sign);
  void mark_lost(Neighbor& neighbor, const std::string& how);
  void check_heartbeat(const Neighbor& neighbor);
  void settle_suspicion();
  void read_store();
  std::string prefix() const;
  std::string live_key(Rank rank) const;

  Setup setup_;
  Fd listener_;
  Fd wake_read_, wake_write_;
  Clock::time_point accept_after_ = Clock::now();
  std::vector<PendingConnection> pending_;
  Neighbor next_, previous_;
  struct Suspicion {
    Failure failure;
    Clock::time_point since;
    bool of_silence = false;  // withdrawn by the next heartbeat
  };
  std::optional<Suspicion> suspicion_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> reported_own_failure_{false};  // this rank itself reported its failure
  std::thread thread_;
};

}  // namespace penstock::comm
