// Kills ranks that exchange messages through shared memory at random times: the others stay intact, can still
// communicate with each other, and nothing is left behind.
#include "comm/shm/link.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <list>
#include <random>
#include <thread>

namespace penstock::comm::shm {
namespace {

constexpr int kRanks = 3;
constexpr std::size_t kCapacity = 16U << 10U;
constexpr std::size_t kMaxBytes = 100'000;

// What the processes of one round share.
struct Board {
  std::array<SegmentName, kRanks> names;
  std::atomic<int> announced{0};
  std::atomic<int> attached{0};
  std::atomic<int> exchanged{0};  // messages received by all
  std::atomic<bool> killed{false};
};

class Rank {
 public:
  Rank(Board& board, int rank, bool direct) : board_(board), rank_(rank) {
    const auto own = Segment::create(Engine::segment_bytes(kRanks, kCapacity));
    // A file without a name disappears with the processes that map it, however they end.
    struct stat found {};
    if (fstat(own->name().descriptor, &found) != 0 || found.st_nlink != 0) std::_Exit(4);
    board.names[static_cast<std::size_t>(rank)] = own->name();
    ++board.announced;
    while (board.announced < kRanks) std::this_thread::yield();
    Engine::Setup setup{.rank = rank, .segments = {}, .ring_capacity = kCapacity, .direct = direct};
    for (const SegmentName& name : board.names) setup.segments.push_back(Segment::attach(name));
    ++board.attached;
    while (board.attached < kRanks) std::this_thread::yield();
    own->seal();
    link_ = std::make_unique<Link>(std::move(setup));
  }

  //! Exchanges messages with all ranks until one of them was killed, then with the survivor. Returns 0, or a
  //! code that says what went wrong.
  int run(int victim) {
    for (int round = 0; !board_.killed; ++round)
      for (int step = 1; step < kRanks; ++step)
        if (!exchange((rank_ + step) % kRanks, (rank_ + kRanks - step) % kRanks, 1, round, board_.killed))
          return victim_was_killed() ? last(victim) : 1;
    return last(victim);
  }

 private:
  // An exchange can fail before the test has noted that it killed the victim.
  bool victim_was_killed() const {
    const auto deadline = Link::Clock::now() + std::chrono::seconds(20);
    while (!board_.killed && Link::Clock::now() < deadline) std::this_thread::yield();
    return board_.killed;
  }

  int last(int victim) {
    const int other = kRanks - rank_ - victim;
    const std::atomic<bool> never{false};
    for (int round = 0; round < 20; ++round)
      if (!exchange(other, other, 2, round, never)) return 2;
    return 0;
  }

  // The message of a round has the same size and content for all pairs.
  static std::vector<std::byte> content(std::uint64_t channel, int round, int from) {
    std::mt19937 values(static_cast<unsigned>(round) * 7 + static_cast<unsigned>(channel));
    std::vector<std::byte> bytes(values() % (round % 3 == 0 ? kMaxBytes : 500));
    for (auto& byte : bytes) byte = static_cast<std::byte>(round + from);
    return bytes;
  }

  bool exchange(int to, int from, std::uint64_t channel, int round, const std::atomic<bool>& stop) {
    const std::vector<std::byte> expected = content(channel, round, from);
    sent_.push_back(content(channel, round, rank_));  // kept: a peer may read it later
    std::vector<std::byte>& got = received_.emplace_back(expected.size());
    const auto receive =
        link_->receive({from, channel, round}, {.memory = got.data(), .bytes = got.size(), .reduce = {}});
    const auto send = link_->send({to, channel, round}, sent_.back().data(), sent_.back().size());
    const auto deadline = Link::Clock::now() + std::chrono::seconds(60);
    if (!link_->wait(*receive, deadline, stop) || receive->status != Request::Status::Done) return false;
    if (got != expected) std::_Exit(3);
    ++board_.exchanged;
    if (!link_->wait(*send, deadline, stop)) return false;
    sent_.pop_back();
    received_.pop_back();
    return true;
  }

  Board& board_;
  int rank_;
  std::unique_ptr<Link> link_;
  std::list<std::vector<std::byte>> sent_, received_;
};

void kill_one(unsigned seed, bool direct) {
  SCOPED_TRACE("seed " + std::to_string(seed) + (direct ? ", direct" : ", copied"));
  std::mt19937 random(seed);
  void* const memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const board = new (memory) Board;
  const int victim = static_cast<int>(random() % kRanks);
  std::array<pid_t, kRanks> ranks{};
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks[static_cast<std::size_t>(rank)] = fork();
    if (ranks[static_cast<std::size_t>(rank)] == 0) {
      alarm(90);  // a rank that hangs is killed
      std::_Exit(Rank(*board, rank, direct).run(victim));
    }
  }
  const int messages = static_cast<int>(random() % 200);
  // A rank that is killed before all have attached would leave the others in the constructor of Rank.
  while (board->attached < kRanks || board->exchanged < messages) std::this_thread::yield();
  for (unsigned spins = random() % 20'000; spins > 0; --spins)
    std::atomic_signal_fence(std::memory_order_seq_cst);
  kill(ranks[static_cast<std::size_t>(victim)], SIGKILL);
  board->killed = true;
  for (int rank = 0; rank < kRanks; ++rank) {
    int status = 0;
    waitpid(ranks[static_cast<std::size_t>(rank)], &status, 0);
    if (rank == victim) continue;
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank << ": status " << status;
  }
  munmap(memory, sizeof(Board));
}

TEST(CommShmKill, LeavesOtherRanksIntactAndNothingBehind) {
  const char* const asked = std::getenv("PENSTOCK_KILLS");
  const unsigned kills = asked != nullptr ? static_cast<unsigned>(std::stoul(asked)) : 40;
  for (unsigned seed = 1; seed <= kills && !HasFailure(); ++seed) kill_one(seed, seed % 2 == 0);
  std::cout << kills << " kills" << std::endl;
}

}  // namespace
}  // namespace penstock::comm::shm
