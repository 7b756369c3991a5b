// Foreign connections to the ports of a job: garbage, other protocols, silent connections and guessed store
// keys. None of them may disturb the job.
#include "comm/failure/descriptor_limit.h"
#include "comm/failure/monitor.h"
#include "comm/failure/sockets.h"
#include "support/process_ranks.h"
#include "support/program.h"

#include <penstock/comm/world.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <set>
#include <sstream>
#include <thread>

namespace penstock::test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;
namespace fs = std::filesystem;

// Runs until the file named by STOP_FILE exists.
const RankFunction busy_ranks("busy", [] {
  comm::World world = comm::init();
  const char* const stop = std::getenv("STOP_FILE");
  for (bool first = true;; first = false) {
    const at::Tensor sum = at::full({1000}, world.rank() == Rank(0) && fs::exists(stop) ? 1.0 : 0.0);
    world.group().all_reduce(sum);
    if (first) std::cout << "works in " << getpid() << std::endl;
    if (sum[0].item<double>() > 0) return 0;
  }
});

std::set<std::string> socket_inodes(pid_t pid) {
  std::set<std::string> found;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code gone;
    const std::string link = fs::read_symlink(entry, gone).string();
    if (link.starts_with("socket:[")) found.insert(link.substr(8, link.size() - 9));
  }
  return found;
}

//! The listening sockets of a process: the address in the kernel's hexadecimal notation, and the port.
struct Listener {
  std::string address;
  std::uint16_t port = 0;
};

std::vector<Listener> listeners_of(pid_t pid) {
  const std::set<std::string> inodes = socket_inodes(pid);
  std::vector<Listener> found;
  for (const char* const table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::istringstream lines(slurp(table));
    std::string line, slot, local, remote, state, skip, inode;
    for (std::getline(lines, line); std::getline(lines, line);) {
      std::istringstream(line) >> slot >> local >> remote >> state >> skip >> skip >> skip >> skip >> skip >>
          inode;
      const auto colon = local.find(':');
      if (state == "0A" && inodes.contains(inode))
        found.push_back({local.substr(0, colon),
                         static_cast<std::uint16_t>(std::stoi(local.substr(colon + 1), nullptr, 16))});
    }
  }
  return found;
}

//! A running job of two ranks under the tool. Over Gloo, the ranks listen on more ports.
class BusyJob {
 public:
  explicit BusyJob(const std::string& backend = "gloo")
      : program_(
            {PENSTOCK_TOOL, "run", "--ranks=2", "--grace=1", "--",
             fs::read_symlink("/proc/self/exe").string()},
            {"PENSTOCK_TEST_RANKS=busy", "PENSTOCK_BACKEND=" + backend, "STOP_FILE=" + (dir_ / "stop")}) {
    while (!program_.ended() && count("works in ") < 2) std::this_thread::yield();
    processes_.push_back(program_.pid());
    std::istringstream lines(program_.out());
    for (std::string line; std::getline(lines, line);)
      if (const auto at = line.find("works in "); at != std::string::npos)
        processes_.push_back(std::stoi(line.substr(at + 9)));
  }
  ~BusyJob() {
    if (!program_.ended()) kill(program_.pid(), SIGTERM);
    program_.finish();
  }
  BusyJob(const BusyJob&) = delete;
  BusyJob& operator=(const BusyJob&) = delete;

  //! The launcher's pid, then those of the ranks.
  const std::vector<pid_t>& processes() const { return processes_; }
  bool ended() { return program_.ended(); }
  Outcome finish() {
    std::ofstream(dir_ / "stop").put('x');
    return program_.finish();
  }

 private:
  int count(const std::string& words) const {
    int found = 0;
    const std::string out = program_.out();
    for (auto at = out.find(words); at != std::string::npos; at = out.find(words, at + 1)) ++found;
    return found;
  }

  TempDir dir_;
  Program program_;
  std::vector<pid_t> processes_;
};

// The handshake of a store client and a truncated request for a missing key.
const std::string kStoreGreeting("\0\xCE\xF7\x85\x3C", 5);
const std::string kHalfAQuestion("\3\1\0\0\0\0\0\0\0k", 10);

comm::Fd connect_and_send(std::uint16_t port, const std::string& words) {
  comm::Connecting made = comm::connect_to({"127.0.0.1", port}, std::chrono::seconds(20));
  EXPECT_TRUE(made.connection) << "port " << port << ": " << std::strerror(made.error);
  if (made.connection) send(made.connection.get(), words.data(), words.size(), MSG_NOSIGNAL);
  return std::move(made.connection);
}

void close_with_reset(comm::Fd connection) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};  // closes with a reset
  setsockopt(connection.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

constexpr int kPorts = 5;  // the store, and per rank its monitor and Gloo

//! The number of silent connections that this process can hold to each port: 1,100, or fewer if the hard
//! limit of descriptors is low. Raises the soft limit.
int silent_connections() {
  constexpr int wanted = 1100, others = 200;  // descriptors of this process for other purposes
  comm::raise_descriptor_limit();
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const auto most = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, kPorts * wanted + others));
  const int count = (most - others) / kPorts;
  if (count < wanted)
    std::cout << "holds only " << count << " connections per port: the hard limit of descriptors is "
              << limit.rlim_max << "\n";
  return count;
}

TEST(CommForeignConnections, OnEveryPortDoNotDisturbJob) {
  const int silent = silent_connections();
  ASSERT_GT(silent, 0);
  BusyJob job;
  ASSERT_THAT(job.processes(), SizeIs(3));
  std::vector<comm::Fd> idle;
  std::mt19937 random(7);
  int ports = 0;
  for (const pid_t pid : job.processes()) {
    for (const Listener& listener : listeners_of(pid)) {
      ++ports;
      for (const std::string& words :
           {kStoreGreeting + kHalfAQuestion, kStoreGreeting + kHalfAQuestion, kStoreGreeting,
            std::string("\0", 1), std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string("PSL1"),
            std::string("penstock monitor 0/0/1\n")}) {
        close_with_reset(connect_and_send(listener.port, words));
        idle.push_back(connect_and_send(listener.port, words));  // stays connected
      }
      for (int i = 0; i < 60; ++i) {
        std::string garbage(i % 2 == 0 ? kStoreGreeting : "");
        for (unsigned length = random() % 100; length > 0; --length) garbage += static_cast<char>(random());
        connect_and_send(listener.port, garbage);
      }
      for (int i = 0; i < silent; ++i) idle.push_back(connect_and_send(listener.port, ""));
    }
  }
  EXPECT_EQ(ports, kPorts);
  EXPECT_FALSE(job.ended());
  const Outcome outcome = job.finish();
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST(CommForeignConnections, SingleHostJobListensOnlyOnLoopback) {
  for (const auto& [backend, ports] : {std::pair("gloo", kPorts), std::pair("shm", kPorts - 2)}) {
    BusyJob job(backend);
    int found = 0;
    for (const pid_t pid : job.processes()) {
      for (const Listener& listener : listeners_of(pid)) {
        ++found;
        EXPECT_EQ(listener.address, "0100007F") << listener.port;
      }
    }
    EXPECT_EQ(found, ports) << backend;
    EXPECT_EQ(job.finish().code, 0);
  }
}

// A store client that knows how the library names its keys and lists the existing ones.
TEST(CommForeignConnections, CannotEndJobByGuessingStoreKeys) {
  BusyJob job;
  const std::vector<Listener> launcher = listeners_of(job.processes().at(0));
  ASSERT_THAT(launcher, SizeIs(1));
  c10d::TCPStoreOptions options;
  options.port = launcher[0].port;
  options.waitWorkers = false;
  const auto client = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  c10d::Store& guest = *client;
  const std::vector<std::string> keys = guest.listKeys();
  EXPECT_THAT(keys, Not(::testing::IsEmpty()));
  EXPECT_THAT(keys, Each(Not(HasSubstr("penstock"))));
  std::set<std::string> prefixes{""};  // the prefix of each key, before the slash
  for (const std::string& key : keys) prefixes.insert(key.substr(0, key.find('/') + 1));
  for (const std::string& prefix : prefixes) {
    guest.set(prefix + comm::died_key(0), std::string("1:a guess"));
    guest.set(prefix + comm::failed_key(0, 0), std::string("1:a guess"));
  }
  // Observed for longer than the monitors' interval.
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (std::chrono::steady_clock::now() < until && !job.ended()) std::this_thread::yield();
  EXPECT_FALSE(job.ended());
  const Outcome outcome = job.finish();
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

}  // namespace
}  // namespace penstock::test
