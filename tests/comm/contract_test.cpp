// Runs the contract on every transport: one test per case for thread ranks, and all cases in one world for
// Gloo processes.
#include "comm/contract.h"

#include "support/process_ranks.h"

#include <penstock/comm/thread_ranks.h>

#include <gtest/gtest.h>

#include <iostream>

namespace penstock::test {
namespace {

class CommThreadContract : public ::testing::TestWithParam<std::tuple<int, ContractCase>> {};

TEST_P(CommThreadContract, PassesContractSuite) {
  const auto& [ranks, contract] = GetParam();
  comm::run_thread_ranks(ranks, [&contract = contract](comm::World& world) { run(contract, world); });
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
  if (world.group().backend() != "gloo" && world.size() > 1) throw std::logic_error("this should be Gloo");
  for (const ContractCase& contract : contract_cases()) {
    run(contract, world);
    world.group().barrier();
    std::cout << "held " << contract.name << std::endl;
  }
  return 0;
});

class CommGlooContract : public ::testing::TestWithParam<int> {};

TEST_P(CommGlooContract, PassesContractSuite) {
  const RanksOutcome outcome = run_process_ranks("contract", GetParam());
  ASSERT_TRUE(outcome.result.ok) << outcome.text();
  for (const auto& lines : outcome.lines) EXPECT_EQ(lines.size(), contract_cases().size()) << outcome.text();
}

INSTANTIATE_TEST_SUITE_P(Ranks, CommGlooContract, ::testing::Values(1, 2, 3, 4),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace penstock::test
