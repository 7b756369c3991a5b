// The environment of a rank and backend names are parsed strictly.
#include "comm/variables.h"

#include <penstock/base/error.h>
#include <penstock/comm/world.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::comm {
namespace {

using test::error_of;
using test::read;
using test::Variables;

Variables good() {
  return {{"RANK", "3"},
          {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", "1"},
          {"MASTER_ADDR", "10.0.0.1"},
          {"MASTER_PORT", "29500"}};
}

TEST(CommRankEnvironment, IsOneRankWithoutRankAndWorldSize) {
  for (const Variables& variables : {Variables{}, Variables{{"MASTER_ADDR", "head"}, {"MASTER_PORT", "1"}},
                                     Variables{{"LOCAL_WORLD_SIZE", "1"}, {"LOCAL_RANK", ""}}}) {
    const LaunchedRank found = read(variables);
    EXPECT_EQ(found.launcher, LauncherKind::None);
    EXPECT_EQ(found.world_size, 1);
    EXPECT_EQ(to_string(found), "no launcher: a world of one rank");
  }
}

TEST(CommRankEnvironment, ReadsTorchrunVariables) {
  Variables variables = good();
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  variables["TORCHELASTIC_RESTART_COUNT"] = "2";
  const LaunchedRank found = read(variables);
  EXPECT_EQ(found.launcher, LauncherKind::Torchrun);
  EXPECT_EQ(found.rank, Rank(3));
  EXPECT_EQ(found.world_size, 4);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.master_address, "10.0.0.1");
  EXPECT_EQ(found.master_port, 29500);
  EXPECT_TRUE(found.launcher_hosts_store);
  EXPECT_EQ(found.attempt, 2);
  EXPECT_EQ(to_string(found), "RANK and WORLD_SIZE: rank 3 of 4, store at 10.0.0.1:29500");
}

TEST(CommRankEnvironment, ReportsMissingOrInvalidVariable) {
  const std::vector<std::pair<const char*, const char*>> wrong{
      {"RANK", "4"},        {"RANK", "-1"},
      {"RANK", "1x"},       {"RANK", ""},
      {"WORLD_SIZE", "0"},  {"RANK", " 1"},
      {"RANK", "1e0"},      {"MASTER_PORT", "65536"},
      {"MASTER_PORT", "x"}, {"LOCAL_RANK", "99999999999"}};
  for (const auto& [name, value] : wrong) {
    Variables variables = good();
    variables[name] = value;
    EXPECT_THROW(read(variables), UsageError) << name << "=" << value;
  }
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    Variables variables = good();
    variables.erase(name);
    EXPECT_THAT(error_of(variables), testing::HasSubstr(name));
  }
}

TEST(CommRankEnvironment, SingleRankNeedsNoStore) {
  const LaunchedRank found =
      read({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "8"}});
  EXPECT_EQ(found.launcher, LauncherKind::Torchrun);
  EXPECT_EQ(found.world_size, 1);
}

TEST(CommBackends, NamesAreCaseInsensitive) {
  EXPECT_EQ(parse_backend("Gloo"), BackendKind::Gloo);
  EXPECT_EQ(parse_backend("NCCL"), BackendKind::Nccl);
  EXPECT_THROW(parse_backend("carrier pigeon"), UsageError);
  EXPECT_TRUE(backend_available(BackendKind::Gloo));
}

TEST(CommWorld, HasOneRankWithoutEnvironment) {
  World world = init();
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.rank(), Rank(0));
  world.group().barrier();
}

}  // namespace
}  // namespace penstock::comm
