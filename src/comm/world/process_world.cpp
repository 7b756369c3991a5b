// Worlds of processes: `init()` joins the one that the environment describes, or creates a world of one rank;
// `join_world()` joins one through a store of the caller.
#include "base/log_line.h"
#include "base/text.h"
#include "comm/failure/descriptor_limit.h"
#include "comm/failure/exception_text.h"
#include "comm/failure/monitor.h"
#include "comm/failure/sockets.h"
#include "comm/rendezvous/environment.h"
#include "comm/rendezvous/job_secret.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/rendezvous/store_client.h"
#include "comm/shm/shm_transport.h"
#include "comm/transport/gloo_transport.h"
#include "comm/transport/optional_backends.h"
#include "comm/transport/self_transport.h"
#include "comm/world/rank_device.h"
#include "comm/world/world_impl.h"

#include <penstock/comm/launched_rank.h>
#include <penstock/comm/world.h>

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace penstock::comm {
namespace {

struct ProcessWorld;

// The worlds of this process. The terminate handler reports an uncaught exception to their other ranks.
struct Registry {
  std::mutex mutex;
  std::vector<ProcessWorld*> worlds;
  std::terminate_handler before = nullptr;
};

Registry& registry() {
  static auto* const instance = new Registry;  // never destroyed: terminate may run during exit
  return *instance;
}

void on_terminate();

// A program in a job of several tasks that was not started by srun is usually a mistake.
void refuse_allocation_shell(const LaunchedRank& found) {
  if (found.launcher != LauncherKind::None || found.allocated_tasks <= 1) return;
  throw UsageError(
      to_string(found), {},
      "start the program with srun, which starts the tasks, or with `penstock run`; to run it as "
      "a single rank, set RANK=0 and WORLD_SIZE=1");
}

// The address at which the other ranks reach this one. On many machines, the own name resolves to a loopback
// address, which the other nodes of a Slurm job cannot reach: then the address of the default route.
std::string own_address(const LaunchedRank& found) {
  constexpr const char* elsewhere = "198.51.100.1";  // reserved for documentation; nothing is sent
  if (found.master_address.empty()) {                // a store without a host, such as a file
    try {
      return address_toward(elsewhere);
    } catch (const CommError&) {
      return "127.0.0.1";
    }
  }
  const std::string address = address_toward(found.master_address);
  const bool hidden =
      found.launcher == LauncherKind::Slurm && is_loopback(address) && !is_loopback(found.master_address);
  return hidden ? address_toward(elsewhere) : address;
}

// The host of a store; empty if it has none, such as a file.
std::string host_of(c10::intrusive_ptr<c10d::Store> store) {
  if (auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(store.get()))
    store = prefixed->getUnderlyingNonPrefixStore();
  const auto* const tcp = dynamic_cast<const c10d::TCPStore*>(store.get());
  return tcp == nullptr ? "" : tcp->getHost();
}

struct ProcessWorld : World::Impl {
  LaunchedRank environment;
  JobSecret secret;
  std::string address;
  c10::intrusive_ptr<c10d::Store> given;  // by the caller of join_world; null for init
  c10::intrusive_ptr<c10d::Store> store;
  std::unique_ptr<Monitor> monitor;

  void take(LaunchedRank found) {
    refuse_allocation_shell(found);
    environment = std::move(found);
    rank = environment.rank;
    size = environment.world_size;
    local_rank = environment.local_rank;
    secret = read_job_secret(look_in_process, environment);
    if (environment.launcher != LauncherKind::None) set_log_rank(rank);
    announce_launcher();
  }

  // The world of a cluster's launcher is derived from its own variables, so its users see what was found.
  void announce_launcher() const {
    const std::string line = "launcher: " + to_string(environment);
    const bool derived =
        environment.launcher != LauncherKind::None && environment.launcher != LauncherKind::Torchrun;
    derived&& rank == Rank(0) && size > 1 ? log_notice(line) : log_line(LogLevel::Info, line);
  }

  // A world through a store of the caller. Its process, not a launcher, hosts the store, but this world does
  // not depend on when.
  void take(const c10::intrusive_ptr<c10d::Store>& store_of_caller, const StoreRank& place) {
    if (place.world_size < 1 || place.rank.value < 0 || place.rank.value >= place.world_size)
      throw UsageError(
          str_cat("rank ", place.rank.value, " is not in a world of ", counted(place.world_size, "rank")));
    if (place.world_size > 1 && !store_of_caller)
      throw UsageError("a world of several ranks needs a store", {.rank = place.rank});
    given = store_of_caller;
    rank = environment.rank = place.rank;
    size = environment.world_size = place.world_size;
    local_rank = environment.local_rank = place.local_rank;
    environment.launcher_hosts_store = true;
    if (size > 1) environment.master_address = host_of(given);
  }

  c10::intrusive_ptr<c10d::Store> open_store(bool host) const {
    if (given) return given->clone();
    StoreOptions store_options{.host = environment.master_address, .port = environment.master_port};
    store_options.hosts = host;
    store_options.only_here = is_loopback(environment.master_address);
    store_options.shared = true;
    store_options.timeout = options.join_timeout;
    try {
      return secret.protect(penstock::comm::open_store(store_options));
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& e) {
      const std::string endpoint = str_cat(environment.master_address, ":", environment.master_port);
      throw CommError(std::string(host ? "cannot host the store at " : "cannot reach the store at ") +
                          endpoint + ": " + exception_text(e),
                      {.rank = rank},
                      host ? "another job may use this port; set MASTER_PORT to a free port on every rank"
                           : "check MASTER_ADDR and MASTER_PORT, and that rank 0 or the launcher is running");
    }
  }

  std::string prefix() const {
    return str_cat("penstock/", environment.attempt, "/", generation_number, "/");
  }

  void join() override {
    monitor.reset();
    generation = std::make_shared<WorldGeneration>(rank, options.timeout.value());
    if (size > 1) {
      if (!store) {
        address = own_address(environment);
        store = open_store(rank.value == 0 && !environment.launcher_hosts_store);
      }
      Monitor::Setup setup{
          .generation = generation, .store = open_store(false), .attempt = environment.attempt};
      setup.generation_number = generation_number;
      setup.size = size;
      setup.address = address;
      setup.secret = secret;
      if (!environment.launcher_hosts_store) setup.store_host = Rank(0);
      std::vector<int> everyone;
      for (int member = 0; member < size; ++member) everyone.push_back(member);
      try {
        monitor = std::make_unique<Monitor>(std::move(setup));
        if (options.backend == BackendKind::Shm) shm::announce_on_host(*store, prefix(), rank);
        await_members(*store, *generation, prefix() + "join", everyone, options.join_timeout);
      } catch (const c10::Error& e) {
        generation->failure.raise_for(e, {.rank = rank, .op = "join"});
      }
    }
    transport = make_transport();
    make_world_group();
    Log(LogLevel::Info) << "joined a world of " << size;
  }

  std::shared_ptr<Transport> make_transport() {
    if (size == 1) return std::make_shared<SelfTransport>();
    const auto make_gloo = [this] {
      return make_gloo_transport(store, prefix(), address, options.join_timeout);
    };
    switch (options.backend) {
      case BackendKind::Auto:  // chosen by init()
      case BackendKind::Gloo:
        return make_gloo();
      case BackendKind::Shm: {
        shm::Host host = shm::connect_host(*store, *generation, prefix(), size, options.join_timeout);
        if (!host.problem.empty() && host.index.at(rank.value) == 0)  // once per host
          TORCH_WARN("penstock: the ranks of this host use gloo instead of shared memory: ", host.problem);
        if (!host.link) return make_gloo();
        Log(LogLevel::Info) << "shared memory connects the " << host.index.size() << " ranks of this host; "
                            << (host.direct ? "they read large tensors from each other's memory"
                                            : "large tensors are copied through it");
        return make_shm_transport(std::move(host), make_gloo());
      }
      case BackendKind::Nccl:
        return make_nccl_transport(store, prefix(), address, options.device, options.join_timeout);
    }
    throw UsageError(str_cat("unknown backend ", static_cast<int>(options.backend)), {},
                     "use a value of BackendKind");
  }

  Failure publish(const Failure& failure) override { return monitor ? monitor->publish(failure) : failure; }

  std::vector<Rank> departed() override {
    std::vector<Rank> left;
    for (int member = 0; store && member < size; ++member)
      if (store->check({left_key(prefix(), Rank(member))})) left.emplace_back(member);
    return left;
  }

  // The caller's store may be gone before this world.
  void say_left() {
    try {
      store->set(left_key(prefix(), rank), std::vector<std::uint8_t>{1});
    } catch (const std::exception& e) {
      if (!given) throw;
      Log(LogLevel::Info) << "the store ended before this world: " << e.what();
    }
  }

  void leave() override {
    {
      const std::lock_guard lock(registry().mutex);
      std::erase(registry().worlds, this);
    }
    // A rank that left earlier and hosts the store still waits for this one.
    const auto failure = generation->failure.failure();
    const bool failed = failure && !failure->departure;
    group.reset();
    // Before the monitor closes its connections: a neighbor that could not be told goodbye looks for the key.
    if (store && !failed) say_left();
    monitor.reset();
    if (!store || failed) return;
    // The host of the store waits until all other ranks have left. With a store of the caller, this is
    // usually rank 0, and the ranks usually leave together.
    constexpr std::chrono::milliseconds usual{2000};
    if (rank.value != 0 || (environment.launcher_hosts_store && !given)) return;
    std::vector<std::string> keys;
    for (int member = 1; member < size; ++member) keys.push_back(left_key(prefix(), Rank(member)));
    try {
      store->wait(keys, given ? usual : options.join_timeout);
    } catch (const std::exception& e) {
      Log(given ? LogLevel::Info : LogLevel::Warn)
          << "some ranks had not left the world when the host of the store exited";
    }
  }
};

// Reports why this process terminates. The terminating thread may already hold the locks that this takes, so
// another thread takes them, and the wait for it is bounded.
void report_to_other_ranks(const std::string& cause) noexcept {
  try {
    auto reported = std::make_shared<std::promise<void>>();
    const std::future<void> done = reported->get_future();
    std::thread([cause, reported] {
      const std::lock_guard lock(registry().mutex);
      for (ProcessWorld* world : registry().worlds) {
        try {
          world->generation->recorder.dump("failure");
          world->publish({world->rank, cause});
        } catch (...) {  // the store may be down; nothing more can be done
        }
      }
      reported->set_value();
    }).detach();
    done.wait_for(kVerdictTime);
  } catch (...) {  // no thread available: the ring of monitors still detects the end of this process
  }
}

void on_terminate() {
  std::string cause = "terminated";
  if (const std::exception_ptr current = std::current_exception()) {
    try {
      std::rethrow_exception(current);
    } catch (const PeerFailed& e) {
      cause.clear();  // a consequence, not a cause
    } catch (const std::exception& e) {
      cause = "uncaught exception: " + exception_text(e);
    } catch (...) {
      cause = "uncaught exception of unknown type";
    }
  }
  if (!cause.empty()) report_to_other_ranks(cause);
  if (registry().before != nullptr) registry().before();
  std::abort();
}

}  // namespace

// Gloo and the store may write to closed connections. That must be an error and not kill this process, so
// ignore SIGPIPE, as Python does. Keeps a handler that the user installed.
static void survive_broken_pipes() {
  struct sigaction now {};
  if (sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

static World join_as(std::unique_ptr<ProcessWorld> state, const InitOptions& options) {
  state->options.device = resolve_device(options.device, state->local_rank);
  set_current_device(state->options.device);
  if (state->size > 1) {
    const BackendChoice choice = choose_backend(state->options.backend, state->options.device);
    Log(LogLevel::Info) << "backend: " << to_string(choice.kind) << ", because " << choice.reason;
    state->options.backend = choice.kind;
    survive_broken_pipes();
  }
  state->join();
  {
    const std::lock_guard lock(registry().mutex);
    registry().worlds.push_back(state.get());
    if (registry().before == nullptr) registry().before = std::set_terminate(on_terminate);
  }
  return Access::world(std::move(state));
}

World init(const InitOptions& options) {
  c10::initLogging();  // reads TORCH_CPP_LOG_LEVEL, as torch does in Python
  auto state = std::make_unique<ProcessWorld>();
  state->options = with_environment(options, look_in_process);
  state->take(detect_rank());
  return join_as(std::move(state), options);
}

World join_world(const c10::intrusive_ptr<c10d::Store>& store, const StoreRank& place,
                 const InitOptions& options) {
  auto state = std::make_unique<ProcessWorld>();
  state->options = with_environment(options, look_in_process);
  state->take(store, place);
  return join_as(std::move(state), options);
}

}  // namespace penstock::comm
