// Adopted groups over real Gloo process groups: the contract of transports, failures and limits. The ranks
// are threads, or processes where a process must die.
#include "comm/contract.h"
#include "comm/rendezvous/store_client.h"
#include "comm/transport/gloo_transport.h"
#include "comm/world/world_impl.h"
#include "support/check.h"
#include "support/error_message.h"
#include "support/process_ranks.h"

#include <penstock/base/error.h>
#include <penstock/comm/adopt.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/runtime/pipeline.h>
#include <penstock/schedule/csv.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <sstream>
#include <thread>

namespace penstock::comm {
namespace {

using testing::HasSubstr;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr std::chrono::seconds kGlooTimeout{60};

// A ProcessGroupGloo, as a user would create it. (Only one file includes its header, so the transport of the
// library creates it here.)
BackendPtr gloo(const StorePtr& store, int rank, const std::vector<int>& members, int me,
                const std::string& name) {
  WorldGeneration generation(Rank(rank), kGlooTimeout);
  return make_gloo_transport(store, "user/", "127.0.0.1", kGlooTimeout)
      ->connect(generation, name, members, me);
}

BackendPtr gloo(const StorePtr& store, int rank, int size) {
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return gloo(store, rank, members, rank, "all");
}

// Runs `body` on one thread per rank, each with its own Gloo backend. Rethrows the first error.
void run_gloo_threads(int ranks, const std::function<void(const StorePtr&, BackendPtr)>& body) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(store, gloo(store, rank, ranks));
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

// The contract expects a World. This one has an adopted group.
struct AdoptedWorld : World::Impl {
  void join() override {}
  Failure publish(const Failure& failure) override { return failure; }
  void leave() override {}
};

World world_of(const Group& adopted) {
  auto state = std::make_unique<AdoptedWorld>();
  state->rank = Rank(adopted.rank());
  state->size = adopted.size();
  state->generation = Access::impl(adopted)->generation;
  state->group = adopted;
  return Access::world(std::move(state));
}

class CommAdoptedContract : public ::testing::TestWithParam<std::tuple<int, test::ContractCase>> {};

TEST_P(CommAdoptedContract, PassesContractSuite) {
  const auto& [ranks, contract] = GetParam();
  run_gloo_threads(ranks, [&, run = contract.run](const StorePtr& store, const BackendPtr& backend) {
    AdoptOptions options{.name = "world"};
    options.connect = [&store, rank = backend->getRank()](const std::string& name,
                                                          const std::vector<int>& members, int me) {
      return gloo(store, rank, members, me, name);
    };
    World world = world_of(adopt_group(backend, options));
    run(world);
    world.group().barrier();  // before one rank closes its connections
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CommAdoptedContract,
                         ::testing::Combine(::testing::Values(2, 3),
                                            ::testing::ValuesIn(test::contract_cases())),
                         [](const auto& test) {
                           return std::string(std::get<1>(test.param).name) +
                                  std::to_string(std::get<0>(test.param));
                         });

TEST(CommAdoptedGroup, TakesBackendOfProcessGroup) {
  run_gloo_threads(2, [](const StorePtr& store, const BackendPtr& backend) {
    const auto user = c10::make_intrusive<c10d::ProcessGroup>(store, backend->getRank(), backend->getSize());
    user->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, backend);
    const Group group = adopt_group(user);
    EXPECT_EQ(group.backend(), "gloo");
    EXPECT_EQ(group.name(), "adopted");
    EXPECT_EQ(group.send_mode(), schedule::SendMode::Buffered);
    const at::Tensor sum = at::full({3}, 1.0F + static_cast<float>(group.rank()));
    group.all_reduce(sum);
    EXPECT_TRUE(sum.equal(at::full({3}, 3.0F)));
    EXPECT_THAT(test::error_message<UsageError>([&] { adopt_group(user, {}, c10::DeviceType::CUDA); }),
                HasSubstr("no backend for cuda tensors"));
    group.barrier();
  });
}

TEST(CommAdoptedGroup, CannotBeSplitWithoutConnect) {
  run_gloo_threads(2, [](const StorePtr&, const BackendPtr& backend) {
    const Group group = adopt_group(backend);
    EXPECT_THAT(test::error_message<UsageError>([&] { group.split(0); }), HasSubstr("AdoptOptions::connect"));
    group.barrier();  // the group still works
  });
  EXPECT_ERROR(adopt_group(BackendPtr()), UsageError, "adopt_group needs a backend");
  EXPECT_ERROR(adopt_group(c10::intrusive_ptr<c10d::ProcessGroup>()), UsageError,
               "adopt_group needs a process group");
}

TEST(CommAdoptedGroup, ChecksBackendOfNewGroup) {
  run_gloo_threads(2, [](const StorePtr&, const BackendPtr& backend) {
    AdoptOptions options;
    options.connect = [&](const std::string&, const std::vector<int>&, int) { return backend; };
    const Group group = adopt_group(backend, options);
    EXPECT_THAT(test::error_message<UsageError>([&] { group.split(group.rank()); }),
                HasSubstr("expected rank 0 of 1"));
    group.barrier();
  });
}

// Rank 1 is alive but never answers.
TEST(CommAdoptedGroup, OperationsTimeOut) {
  for (const bool collective : {false, true}) {
    std::atomic<bool> seen{false};
    run_gloo_threads(2, [&](const StorePtr& store, const BackendPtr& backend) {
      const Group group = adopt_group(backend, {.timeout = std::chrono::milliseconds(200)});
      if (group.rank() == 1) return store->wait({"seen"}, kGlooTimeout);
      const at::Tensor tensor = at::zeros(4);
      const std::string error = test::error_message<TimeoutError>(
          [&] { collective ? group.all_reduce(tensor) : group.recv(tensor, 1); });
      EXPECT_THAT(error, HasSubstr("on group adopted"));
      EXPECT_THAT(error, HasSubstr(collective ? "for the other ranks" : "for rank 1"));
      seen = true;
      store->set("seen", std::vector<std::uint8_t>{1});
    });
    EXPECT_TRUE(seen);
  }
}

// Without a monitor, the broken connection is the only sign. A receive names the peer; a collective cannot.
const test::RankFunction dying_peer("adopted dying peer", [] {
  const int rank = std::atoi(std::getenv("RANK"));
  const auto port = static_cast<std::uint16_t>(std::atoi(std::getenv("MASTER_PORT")));
  const StorePtr store = open_store({.host = "127.0.0.1", .port = port, .timeout = kGlooTimeout});
  const Group group = adopt_group(gloo(store, rank, 2));
  group.barrier();
  if (rank == 1) _exit(0);
  const at::Tensor tensor = at::zeros(4);
  if (std::getenv("COLLECTIVE") != nullptr) {
    std::cout << test::error_message<CommError>([&] { group.all_reduce(tensor); }) << std::endl;
    return 0;
  }
  try {
    group.recv(tensor, 1);
  } catch (const PeerFailed& error) {
    std::cout << "peer " << error.peer().value << ": " << error.cause() << std::endl;
  }
  // The failure is known now, so the group refuses further operations.
  std::cout << "then " << test::error_message<PeerFailed>([&] { group.send(tensor, 1); }) << std::endl;
  return 0;
});

TEST(CommAdoptedGroup, NoticesPeerThatDied) {
  const test::RanksOutcome sends = test::run_process_ranks("adopted dying peer", 2);
  ASSERT_TRUE(sends.result.ok) << sends.text();
  EXPECT_THAT(sends.text(), HasSubstr("[0] peer 1: "));
  EXPECT_THAT(sends.text(), HasSubstr("then rank 1 failed"));
  const test::RanksOutcome collectives =
      test::run_process_ranks("adopted dying peer", 2, {.environment = {{"COLLECTIVE", "1"}}});
  ASSERT_TRUE(collectives.result.ok) << collectives.text();
  EXPECT_THAT(collectives.text(), HasSubstr("the transport failed"));
}

// Both ranks send before they post the receive for the other's message. The program is validated again for
// the send mode of the group that runs it.
TEST(CommAdoptedGroup, RejectsProgramForAnotherSendMode) {
  using schedule::SendMode;
  std::istringstream text(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  const auto program = schedule::Program::validated(schedule::read_csv(text).draft(), SendMode::Buffered);
  EXPECT_ERROR(schedule::Program::validated(program.draft(), SendMode::Blocking), ScheduleError,
               "is not safe with blocking sends");
  run_gloo_threads(2, [&](const StorePtr& store, const BackendPtr& backend) {
    const auto connect = [&](const std::string& name, const std::vector<int>& members, int me) {
      return gloo(store, backend->getRank(), members, me, name);
    };
    for (const SendMode mode : {SendMode::Blocking, SendMode::Buffered}) {
      const Group group = adopt_group(backend, {.send_mode = mode, .connect = connect});
      const auto module = runtime::make_stage_module(
          nullptr,
          [](const value::Args& args, const value::Kwargs&) { return runtime::StageResult(args[0]); });
      const runtime::PipelineStage stage(module, StageId(group.rank()), 2, at::kCPU, group);
      bool rejected = false;
      try {
        const runtime::PipelineSchedule pipeline(stage, program);
      } catch (const ScheduleError&) {
        rejected = true;
      }
      CHECK_SAME(rejected, mode == SendMode::Blocking);
    }
  });
}

}  // namespace
}  // namespace penstock::comm
