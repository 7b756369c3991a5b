// The world: all ranks of a job. `init()` joins it, as described by the environment variables of torchrun,
// `penstock run`, Slurm or MPI (docs/clusters.md); without a launcher, the world has one rank. A monitor
// thread watches the other ranks, so that a failure of any rank becomes an error on this one.
#pragma once

#include <penstock/base/ids.h>
#include <penstock/comm/flight_record.h>
#include <penstock/comm/group.h>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace c10d {
class Store;
}

namespace penstock::comm {

//! The supported transports. `Shm` is shared memory between the ranks of a host and Gloo between hosts.
//! `Auto` leaves the choice to PENSTOCK_BACKEND. If that is not set, it is NCCL for ranks on CUDA devices and
//! Shm for all others.
enum class BackendKind { Auto, Gloo, Shm, Nccl };

//! Parses `auto`, `gloo`, `shm` or `nccl`, ignoring case. Throws UsageError for any other name.
BackendKind parse_backend(std::string_view name);
std::string_view to_string(BackendKind kind);

//! Returns whether this build of libtorch has the transport.
bool backend_available(BackendKind kind);

//! Returns the version of the library behind a transport, if it has one: that of NCCL, such as `2.29.7`.
std::optional<std::string> backend_version(BackendKind kind);

//! A transport and the reason for its choice.
struct BackendChoice {
  BackendKind kind = BackendKind::Gloo;
  std::string reason;  //!< as in `the ranks are on CUDA devices`
};
//! Returns what `requested` means for ranks on a device. Does not read PENSTOCK_BACKEND. Throws UsageError
//! for NCCL and a device other than CUDA.
BackendChoice choose_backend(BackendKind requested, c10::Device device);

//! How this rank joins the world. A value that the program sets takes precedence. Environment variables are
//! the defaults of options that the program leaves unset.
struct InitOptions {
  BackendKind backend = BackendKind::Auto;
  //! The device of this rank. A device without an index, such as c10::kCUDA, means the device with the index
  //! of the local rank. It becomes the current device of the calling thread.
  c10::Device device = c10::kCPU;
  //! How long an operation may wait before it throws TimeoutError. Unset: PENSTOCK_TIMEOUT (in seconds) if
  //! set, else 5 minutes.
  std::optional<std::chrono::milliseconds> timeout{};
  //! How long the ranks may take to connect to each other.
  std::chrono::milliseconds join_timeout = std::chrono::minutes(2);
};

//! This process's (or thread's) membership in the world. Ends when it is destroyed.
class World {
 public:
  struct Impl;

  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  ~World();

  //! The world rank. Equals the position in `group()`, which is a GroupRank.
  Rank rank() const;
  //! Returns the number of ranks.
  int size() const;
  //! Returns the rank within this machine.
  int local_rank() const;
  //! Returns the device of this rank (InitOptions::device), with its index.
  c10::Device device() const;
  //! Returns the group of all ranks.
  const Group& group() const;

  //! Reports to every other rank that this rank failed, with the cause. Uncaught exceptions are reported
  //! automatically.
  void fail(const std::string& cause);
  //! Throws PeerFailed if a rank is known to have failed.
  void check() const;

  //! Recovers from a failure that left every process alive: abandons all groups and joins a new world of the
  //! same ranks. Every rank must call it; after `join_timeout`, throws TimeoutError naming the missing ranks.
  void rebuild();

  //! Returns the last 1024 communication operations of this rank, oldest first.
  std::vector<FlightRecord> flight_records() const;

 private:
  friend struct Access;
  explicit World(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

//! Joins the world that the environment describes (`detect_rank` in launched_rank.h): RANK, WORLD_SIZE,
//! MASTER_ADDR and MASTER_PORT, or the variables of srun or mpirun. Throws UsageError if variables are
//! missing or contradict each other, or in the shell of a Slurm allocation of several tasks.
World init(const InitOptions& options = {});

//! The place of this process in a world that is joined through a store of the program.
struct StoreRank {
  Rank rank;
  int world_size = 1;
  int local_rank = 0;  //!< within this machine
};

//! Joins a world through a store that the program already has, such as that of a c10d process group. Reads no
//! variables of launchers. Collective: every rank calls it. Worlds that share a store need a
//! c10d::PrefixStore each. A world of one rank does not use the store, which may then be null. The process
//! that hosts the store must keep it until every rank has left the world.
World join_world(const c10::intrusive_ptr<c10d::Store>& store, const StoreRank& place,
                 const InitOptions& options = {});

}  // namespace penstock::comm
