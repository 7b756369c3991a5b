// The environment of a rank and backend names are parsed strictly.
#include "comm/variables.h"
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/comm/world.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

namespace penstock::comm {
namespace {

using test::error_of;
using test::read;
using test::Variables;
using ::testing::HasSubstr;

Variables good() {
  return {{"RANK", "3"},
          {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", "1"},
          {"MASTER_ADDR", "10.0.0.1"},
          {"MASTER_PORT", "29500"}};
}

TEST(CommRankEnvironment, IsOneRankWithoutRankAndWorldSize) {
  for (const Variables& variables : {Variables{}, Variables{{"MASTER_ADDR", ""}, {"MASTER_PORT", ""}},
                                     Variables{{"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "1"}},
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
    EXPECT_ERROR(read(variables), UsageError, name) << name << "=" << value;
  }
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    Variables variables = good();
    variables.erase(name);
    EXPECT_THAT(error_of(variables), HasSubstr(name));
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
  EXPECT_ERROR(parse_backend("carrier pigeon"), UsageError, "unknown backend 'carrier pigeon'");
  EXPECT_TRUE(backend_available(BackendKind::Gloo));
}

TEST(CommBackends, ErrorForMpiAndUccSaysWhatToUse) {
  for (const char* name : {"mpi", "MPI", "ucc"}) {
    const std::string message = test::error_message<UsageError>([&] { parse_backend(name); });
    EXPECT_THAT(message, HasSubstr("is not supported"));
    EXPECT_THAT(message, HasSubstr("use gloo, also for ranks that mpirun starts"));
  }
}

// A value of the program takes precedence; the environment is the default of what is unset.
TEST(CommInitOptions, ProgramTakesPrecedenceOverEnvironment) {
  const Variables variables{{"PENSTOCK_TIMEOUT", "7"}, {"PENSTOCK_BACKEND", "nccl"}};
  InitOptions chosen;
  chosen.backend = BackendKind::Gloo;
  chosen.timeout = std::chrono::seconds(3);
  const InitOptions found = with_environment(chosen, test::lookup_in(variables));
  EXPECT_EQ(found.backend, BackendKind::Gloo);
  EXPECT_EQ(found.timeout, std::chrono::seconds(3));
}

TEST(CommInitOptions, EnvironmentIsDefaultOfUnsetOptions) {
  const Variables variables{{"PENSTOCK_TIMEOUT", "7"}, {"PENSTOCK_BACKEND", "nccl"}};
  const InitOptions found = with_environment({}, test::lookup_in(variables));
  EXPECT_EQ(found.backend, BackendKind::Nccl);
  EXPECT_EQ(found.timeout, std::chrono::seconds(7));

  const InitOptions without = with_environment({}, test::lookup_in({}));
  EXPECT_EQ(without.backend, BackendKind::Auto);
  EXPECT_EQ(without.timeout, std::chrono::minutes(5));
}

TEST(CommInitOptions, InvalidVariableIsReportedOnlyIfItIsUsed) {
  const Variables variables{{"PENSTOCK_TIMEOUT", "soon"}};
  EXPECT_THAT(test::error_message<UsageError>([&] { with_environment({}, test::lookup_in(variables)); }),
              HasSubstr("PENSTOCK_TIMEOUT"));
  InitOptions chosen;
  chosen.timeout = std::chrono::seconds(3);
  EXPECT_EQ(with_environment(chosen, test::lookup_in(variables)).timeout, std::chrono::seconds(3));
}

TEST(CommInitOptions, AlsoApplyToThreadRanks) {
  setenv("PENSTOCK_TIMEOUT", "1", 1);
  const auto errors = try_thread_ranks(2, [](World& world) {
    if (world.rank() == Rank(0)) world.group().recv(at::empty(1), 1);
  });
  unsetenv("PENSTOCK_TIMEOUT");
  ASSERT_TRUE(errors[0]);
  EXPECT_THAT(test::error_message<TimeoutError>([&] { std::rethrow_exception(errors[0]); }),
              HasSubstr("PENSTOCK_TIMEOUT"));
}

TEST(CommWorld, HasOneRankWithoutEnvironment) {
  World world = init();
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.rank(), Rank(0));
  world.group().barrier();
}

}  // namespace
}  // namespace penstock::comm
