// Worlds that span hosts: shared memory within a host and Gloo between hosts. The hosts are network
// namespaces.
#include "comm/contract.h"
#include "support/check.h"
#include "support/process_ranks.h"
#include "support/simulated_hosts.h"

#include <penstock/comm/world.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>

namespace penstock::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const RankFunction hybrid_ranks("hybrid", [] {
  comm::World world = comm::init();
  CHECK_SAME(world.size(), 4);
  CHECK_SAME(world.group().backend(), std::string("shm"));
  for (const ContractCase& contract : contract_cases()) {
    run(contract, world);
    world.group().barrier();
  }
  // A group of one rank per host, and the group of a host.
  const auto across = world.group().split(world.rank().value % 2);
  const auto within = world.group().split(world.rank().value / 2);
  const at::Tensor sum = at::full({3}, world.rank().value);
  across->all_reduce(sum);
  within->all_reduce(sum);
  CHECK_TENSORS(sum, at::full({3}, 6));
  std::cout << "held " << contract_cases().size() << std::endl;
  return 0;
});

std::vector<std::string> launch_line(int ranks, const std::vector<std::string>& more) {
  std::vector<std::string> words{PENSTOCK_TOOL, "run", "--ranks=" + std::to_string(ranks)};
  words.insert(words.end(), more.begin(), more.end());
  words.insert(words.end(), {"--", std::filesystem::read_symlink("/proc/self/exe").string()});
  return words;
}

TEST(CommHosts, PassContractSuiteOverSharedMemoryAndGloo) {
  const SimulatedHosts hosts(2);
  if (!hosts.problem().empty()) GTEST_SKIP() << hosts.problem();
  const auto start = [&](int host) {
    const std::vector<std::string> line =
        launch_line(2, {"--nodes=2", "--node-rank=" + std::to_string(host),
                        "--rendezvous=" + SimulatedHosts::address(0) + ":29500"});
    return Program(hosts.on(host, line), {"PENSTOCK_TEST_RANKS=hybrid", "PENSTOCK_LOG=info"});
  };
  Program first = start(0), second = start(1);
  const Outcome zero = first.finish(), one = second.finish();
  EXPECT_EQ(zero.code, 0) << zero.out << zero.err;
  EXPECT_EQ(one.code, 0) << one.out << one.err;
  EXPECT_THAT(zero.out, HasSubstr("held "));
  for (const std::string& all : {zero.out + zero.err, one.out + one.err})
    EXPECT_THAT(all, HasSubstr("shared memory connects the 2 ranks of this host"));
}

const RankFunction fallback_ranks("fallback", [] {
  const comm::World world = comm::init();
  const at::Tensor sum = at::ones({1000});
  world.group().all_reduce(sum);
  CHECK_TENSORS(sum, at::full({1000}, 2.0));
  std::cout << "over " << world.group().backend() << std::endl;
  return 0;
});

//! Runs two ranks where /dev/shm has a size.
Outcome run_with_shared_memory(const std::string& size, const std::vector<std::string>& settings) {
  std::string line = "mount -t tmpfs -o size=" + size + " tmpfs /dev/shm && exec";
  for (const std::string& word : launch_line(2, {})) line += " " + word;
  std::vector<std::string> all{"PENSTOCK_TEST_RANKS=fallback"};
  all.insert(all.end(), settings.begin(), settings.end());
  return run_program({"unshare", "-m", "sh", "-c", line}, all);
}

TEST(CommSmallSharedMemory, FallsBackToGlooAndSaysWhy) {
  if (run_program({"unshare", "-m", "true"}).code != 0) GTEST_SKIP() << "unshare is not permitted here";
  const Outcome large = run_with_shared_memory("16m", {});
  EXPECT_EQ(large.code, 0) << large.err;
  EXPECT_THAT(large.out, HasSubstr("over shm"));
  const Outcome small = run_with_shared_memory("64k", {});
  EXPECT_EQ(small.code, 0) << small.err;
  EXPECT_THAT(small.out, AllOf(HasSubstr("over gloo"), Not(HasSubstr("over shm"))));
  EXPECT_THAT(small.out + small.err,
              AllOf(HasSubstr("the ranks of this host use gloo instead of shared memory"),
                    HasSubstr("/dev/shm is too small"), HasSubstr("shm-size")));
  const Outcome bounded = run_with_shared_memory("2m", {"PENSTOCK_SHM_BYTES=100000"});
  EXPECT_THAT(bounded.out, HasSubstr("over shm")) << bounded.err;
  const Outcome wrong = run_with_shared_memory("16m", {"PENSTOCK_SHM_BYTES=lots"});
  EXPECT_NE(wrong.code, 0);
  EXPECT_THAT(wrong.out + wrong.err, HasSubstr("PENSTOCK_SHM_BYTES"));
}

}  // namespace
}  // namespace penstock::test
