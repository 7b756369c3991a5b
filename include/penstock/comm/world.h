// The world: all ranks of a job. `init()` joins it from the environment that torchrun and `penstock run` make; without
// one it is a world of one. A monitor thread watches the other ranks, so that a failure anywhere becomes an error here.
#pragma once

#include <penstock/base/ids.h>
#include <penstock/comm/group.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

namespace penstock {

//! The transports that can be asked for. `Auto` is NCCL on CUDA builds of libtorch, else Gloo.
enum class BackendKind { Auto, Gloo, Nccl, Mpi, Ucc };

//! Reads `auto`, `gloo`, `nccl`, `mpi` or `ucc`; UsageError for anything else.
BackendKind parse_backend(std::string_view name);
std::string_view backend_name(BackendKind kind);

//! Whether the libtorch at hand has this transport.
bool backend_available(BackendKind kind);

struct InitOptions {
  BackendKind backend = BackendKind::Auto;  //!< PENSTOCK_BACKEND, if set, wins over Auto
  //! How long an operation may wait before it is a TimeoutError; PENSTOCK_TIMEOUT (seconds), if set, wins.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  //! How long the ranks may take to find each other.
  std::chrono::milliseconds join_timeout = std::chrono::minutes(2);
};

struct WorldState;
class FlightRecorder;

class World {
 public:
  explicit World(std::unique_ptr<WorldState> state);
  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  ~World();

  Rank rank() const;
  int size() const;
  //! The rank among those of this machine.
  int local_rank() const;
  //! All ranks.
  const Group& group() const;

  //! Tells every other rank that this one has failed, and why. Uncaught exceptions do this by themselves.
  void fail(const std::string& cause);
  //! Throws PeerFailed if a rank is known to have failed.
  void check() const;

  //! After a failure that left every process alive: abandons all groups and joins a new world of the same ranks. Every
  //! rank must call it; a rank that does not come is named after `join_timeout`.
  void rebuild();

  FlightRecorder& flight_recorder() const;

 private:
  std::unique_ptr<WorldState> state_;
};

//! Joins the world that RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT describe.
World init(const InitOptions& options = {});

}  // namespace penstock
