// Runs the contract on every transport: one test per case for thread ranks, and all cases in one world for
// processes over Gloo and over shared memory.
#include "comm/contract.h"

#include "support/check.h"
#include "support/process_ranks.h"

#include <penstock/comm/thread_ranks.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>

namespace penstock::test {
namespace {

class CommThreadContract : public ::testing::TestWithParam<std::tuple<int, ContractCase>> {};

TEST_P(CommThreadContract, PassesContractSuite) {
  const auto& [ranks, suite] = GetParam();
  comm::run_thread_ranks(ranks, [&contract = suite](comm::World& world) { run(contract, world); });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CommThreadContract,
                         ::testing::Combine(::testing::Values(1, 2, 3, 5),
                                            ::testing::ValuesIn(contract_cases())),
                         [](const auto& test) {
                           return std::string(std::get<1>(test.param).name) +
                                  std::to_string(std::get<0>(test.param));
                         });

const RankFunction contract_ranks("contract", [] {
  comm::World world = comm::init();
  if (world.size() > 1) CHECK_SAME(world.group().backend(), std::string(std::getenv("PENSTOCK_BACKEND")));
  for (const ContractCase& contract : contract_cases()) {
    run(contract, world);
    world.group().barrier();
    std::cout << "held " << contract.name << std::endl;
  }
  return 0;
});

struct ProcessTransport {
  const char* name;
  std::map<std::string, std::string> environment;
};

class CommProcessContract : public ::testing::TestWithParam<std::tuple<int, ProcessTransport>> {};

TEST_P(CommProcessContract, PassesContractSuite) {
  const auto& [ranks, transport] = GetParam();
  const RanksOutcome outcome = run_process_ranks("contract", ranks, {.environment = transport.environment});
  ASSERT_TRUE(outcome.result.ok) << outcome.text();
  for (const auto& lines : outcome.lines) EXPECT_EQ(lines.size(), contract_cases().size()) << outcome.text();
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, CommProcessContract,
    ::testing::Combine(::testing::Values(1, 2, 3, 4),
                       ::testing::Values(ProcessTransport{"Gloo", {{"PENSTOCK_BACKEND", "gloo"}}},
                                         ProcessTransport{"Shm", {{"PENSTOCK_BACKEND", "shm"}}},
                                         ProcessTransport{
                                             "ShmCopied",
                                             {{"PENSTOCK_BACKEND", "shm"}, {"PENSTOCK_SHM_DIRECT", "0"}}})),
    [](const auto& test) {
      return std::string(std::get<1>(test.param).name) + std::to_string(std::get<0>(test.param));
    });

}  // namespace
}  // namespace penstock::test
