// Kills ranks at random actions.
#include "runtime/support/kill.h"

#include "support/dense_comparison.h"
#include "support/models/stage_models.h"
#include "support/process_ranks.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <iostream>
#include <random>

namespace penstock::test {
namespace {

using ::testing::HasSubstr;

constexpr int kKillRanks = 3;
constexpr int kKillMicrobatches = 4;
constexpr int kKillRows = 8;
constexpr double kRoomOfMachine = 5;  // room for a busy machine, in addition to the documented 5 s

// One rank kills itself at a random action; the others must raise in time, measured by the system clock.
double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

const RankFunction killed("killed", [] {
  at::set_num_threads(1);
  const int victim = std::atoi(std::getenv("VICTIM")), at_action = std::atoi(std::getenv("AT_ACTION"));
  const PipelineModel model = mlp();
  comm::World world = comm::init();
  runtime::PipelineOptions options = options_for(model, world.size());
  int done = 0;
  const runtime::ActionFunction count = [&](const schedule::Action&,
                                            const std::function<void()>& run_default) {
    if (world.rank().value == victim && done++ == at_action) {
      std::cout << "dies " << std::to_string(now()) << std::endl;
      raise(SIGKILL);
    }
    run_default();
  };
  for (const schedule::ActionKind kind :
       {schedule::ActionKind::Forward, schedule::ActionKind::Backward, schedule::ActionKind::SendForward,
        schedule::ActionKind::SendBackward})
    options.execution.custom[kind] = count;
  if (std::getenv("COUNT_RECEIVES") != nullptr) {  // replaced receives are not posted in advance
    options.execution.custom[schedule::ActionKind::RecvForward] = count;
    options.execution.custom[schedule::ActionKind::RecvBackward] = count;
  }
  runtime::PipelineSchedule pipeline(stages_for(model, world.group(), schedule::ScheduleKind::OneFOneB, 1),
                                     schedule::ScheduleKind::OneFOneB, kKillMicrobatches, options);
  try {
    while (true) step_on(pipeline, model.batch(kKillRows));
  } catch (const PeerFailed& e) {
    std::cout << "raises " << std::to_string(now()) << " for rank " << e.peer().value << std::endl;
  }
  return 3;
});

}  // namespace

void kill_at_random(int times, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  double slowest = 0;
  for (int i = 0; i < times; ++i) {
    const int victim = static_cast<int>(random() % kKillRanks), action = static_cast<int>(random() % 60);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", kill rank " + std::to_string(victim) + " at action " +
                 std::to_string(action));
    RanksOptions options{.deadline = std::chrono::seconds(60),
                         .environment = {{"VICTIM", std::to_string(victim)},
                                         {"AT_ACTION", std::to_string(action)},
                                         {"OMP_NUM_THREADS", "1"}}};
    if (i % 2 == 0) options.environment["COUNT_RECEIVES"] = "1";
    const RanksOutcome outcome = run_process_ranks("killed", kKillRanks, options);
    ASSERT_FALSE(outcome.result.ok);
    double died = 0;
    for (const std::string& line : outcome.lines[static_cast<std::size_t>(victim)])
      if (line.starts_with("dies ")) died = std::stod(line.substr(5));
    ASSERT_GT(died, 0) << outcome.text();
    for (int rank = 0; rank < kKillRanks; ++rank) {
      if (rank == victim) continue;
      std::string raised;
      for (const std::string& line : outcome.lines[static_cast<std::size_t>(rank)])
        if (line.starts_with("raises ")) raised = line;
      ASSERT_THAT(raised, HasSubstr("for rank " + std::to_string(victim))) << outcome.text();
      EXPECT_LT(std::stod(raised.substr(7)) - died, 5.0 + kRoomOfMachine) << outcome.text();
      slowest = std::max(slowest, std::stod(raised.substr(7)) - died);
    }
  }
  std::cout << times << " kills, the slowest rank knew after " << slowest << " s" << std::endl;
}

}  // namespace penstock::test
