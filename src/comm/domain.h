// What all groups of one world (of one generation: `rebuild` makes a new one) share, and how their backends are made.
#pragma once

#include "comm/failure.h"
#include "comm/reaper.h"

#include <penstock/comm/flight_recorder.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace penstock {

struct Domain {
  Domain(Rank this_rank, std::chrono::milliseconds wait_limit)
      : rank(this_rank), timeout(wait_limit), recorder(this_rank) {}

  const Rank rank;
  const std::chrono::milliseconds timeout;
  FailureState failure;
  //! Tells the other ranks; set while the world lives.
  std::function<void(const Failure&)> publish;
  FlightRecorder recorder;
  Reaper reaper;
};

//! Makes the backends of groups.
class Transport {
 public:
  virtual ~Transport() = default;
  //! Connects the ranks `members` (of the world) under `name`; this rank is members[me]. Called by all of them.
  virtual c10::intrusive_ptr<c10d::Backend> connect(Domain& domain, const std::string& name,
                                                    const std::vector<int>& members, int me) = 0;
  //! Whether collectives finish through their future (Gloo), so that waiting for them needs no blocked call.
  virtual bool collectives_have_futures() const = 0;
  //! Whether a group that failed can be destroyed without waiting for its peers.
  virtual bool closes_after_a_failure() const { return false; }
  //! Whether a thread of its own moves the bytes, to and from the memory of the tensors (see handover.h).
  virtual bool has_a_thread() const { return false; }
};

}  // namespace penstock
