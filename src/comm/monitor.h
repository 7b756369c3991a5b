// Watches the other ranks of a job of processes, on its own thread and with its own client of the store (a
// blocking call stalls every other call of a client). It learns of failures in three ways:
//   - a rank that can still speak, or the launcher that saw it end, writes them into the store;
//   - each rank keeps a connection to the next one of a ring: it breaks the moment a process ends without a
//   goodbye;
//   - a second without a sign of life on the ring is normal, a heartbeat limit (15 s) of silence is not,
//   be it of a neighbour that spoke before or of one that never answered.
// docs/adr/0003 says why each is needed.
#pragma once

#include "comm/domain.h"
#include "comm/job_secret.h"
#include "comm/sockets.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace penstock {

//! Where failures stand in the store.
std::string died_key(int attempt);                    //!< written by the launcher
std::string failed_key(int attempt, int generation);  //!< written by ranks
std::string generation_key(int attempt);              //!< of the world that lives; written by ranks
//! Where a rank's monitor listens; the prefix is that of the attempt and generation.
std::string live_key(const std::string& prefix, Rank rank);

//! How long a rank may be silent: PENSTOCK_HEARTBEAT seconds, or 15.
std::chrono::milliseconds heartbeat_limit();

class Monitor {
 public:
  struct Setup {
    std::shared_ptr<Domain> domain;
    c10::intrusive_ptr<c10d::Store> store;  //!< a client that nobody else uses
    int attempt = 0;
    int generation = 0;
    int size = 1;
    std::string address;             //!< of this machine, towards the others
    JobSecret secret;                //!< signs the greetings
    std::optional<Rank> store_host;  //!< the rank that hosts the store; nothing for the launcher
    std::chrono::milliseconds heartbeat_limit = penstock::heartbeat_limit();
  };

  explicit Monitor(Setup setup);
  ~Monitor();  //!< says goodbye to its neighbours

  //! Writes a failure into the store, unless one stands there.
  void publish(const Failure& failure);

 private:
  using Clock = std::chrono::steady_clock;
  struct Neighbour {
    Rank rank;
    Fd connection;
    bool spoke = false;                          // it has sent something over a connection
    std::optional<Clock::time_point> last_sign;  // or when we first tried to reach it
    std::string trouble;                         // why it could not be reached so far
    bool said_goodbye = false;
    bool lost = false;
  };

  //! A connection that has not said yet who it is.
  struct Stranger {
    Fd connection;
    std::string said;
    Clock::time_point since = Clock::now();
  };

  void run();
  void accept_strangers();
  void hear_strangers();
  std::string greeting_of(Rank rank) const;
  void connect_next();
  void listen_to(Neighbour& neighbour);
  void heard_of(Neighbour& neighbour);
  void beat(Neighbour& neighbour, char sign);
  void lose(Neighbour& neighbour, const std::string& how);
  void judge(const Neighbour& neighbour);
  void read_store();
  std::string live_key(Rank rank) const;

  Setup setup_;
  Fd listener_;
  Fd wake_read_, wake_write_;
  Clock::time_point accept_again_ = Clock::now();
  std::vector<Stranger> strangers_;
  Neighbour next_, previous_;
  struct Suspicion {
    Failure failure;
    Clock::time_point since;
    bool of_silence = false;  // withdrawn by the next sign of life
  };
  std::optional<Suspicion> suspicion_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> confessed_{false};  // said itself that it failed
  std::thread thread_;
};

}  // namespace penstock
