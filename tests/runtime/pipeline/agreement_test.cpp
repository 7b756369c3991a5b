// The fields that ranks must agree on before the first step, and disconnected pairs of ranks.
#include "runtime/setup/agreement.h"

#include "runtime/setup/make_setup.h"
#include "support/check.h"
#include "support/dense_comparison.h"
#include "support/disconnected_pair.h"
#include "support/models/stage_models.h"
#include "support/process_ranks.h"

#include <penstock/base/error.h>
#include <penstock/comm/thread_ranks.h>
#include <penstock/torch_version.h>
#include <penstock/version.h>

#include <ATen/ATen.h>
#include <c10/core/DefaultDtype.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <iostream>
#include <map>

namespace penstock::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

runtime::PipelineSetup mlp_setup(const comm::Group& group) {
  const runtime::PipelineOptions options = options_for(mlp(), group.size());
  const auto stages = stages_for(mlp(), group, schedule::ScheduleKind::OneFOneB, 1);
  return make_setup(stages, program_of(schedule::ScheduleKind::OneFOneB, stages, 5, options), options);
}

TEST(RuntimeAgreement, ContainsEveryFieldThatMustMatch) {
  comm::run_thread_ranks(3, [](comm::World& world) {
    const runtime::SetupFields fields = fields_of(mlp_setup(world.group()));
    const std::map<std::string, std::string> found(fields.begin(), fields.end());
    CHECK_SAME(found.size(), fields.size());
    CHECK_SAME(found.at("Penstock version"), version());
    CHECK_SAME(found.at("libtorch version"), torch_version());
    CHECK_SAME(found.at("number of stages"), "3");
    CHECK_SAME(found.at("number of microbatches"), "5");
    CHECK_SAME(found.at("schedule"), "1F1B");
    CHECK_THAT(!found.at("program").empty());
    CHECK_SAME(found.at("kind of device"), "cpu");
    CHECK_SAME(found.at("default dtype"), "float");
    CHECK_SAME(found.at("shape mode"), "inferred");
    CHECK_SAME(found.at("scaling of gradients"), "on");
    CHECK_SAME(found.at("loss on all ranks"), "off");
  });
}

// A mismatch in any field is reported on all ranks with the field, both values and the ranks.
TEST(RuntimeAgreement, ReportsMismatchInAnyFieldOnEveryRank) {
  constexpr int ranks = 3;
  std::size_t compared = 0;
  comm::run_thread_ranks(ranks, [&](comm::World& world) {
    const runtime::SetupFields fields = fields_of(mlp_setup(world.group()));
    for (std::size_t field = 0; field < fields.size(); ++field) {
      for (int differing = 0; differing < ranks; ++differing) {
        runtime::SetupFields mine = fields;
        if (world.rank().value == differing) mine[field].second = "something else";
        std::string text;
        try {
          runtime::compare_fields(world.group(), mine);
        } catch (const UsageError& e) {
          text = e.what();
        }
        const auto has = [&](const std::string& part) { return text.find(part) != std::string::npos; };
        CHECK_THAT(has("differ in the " + fields[field].first + ": "));
        CHECK_THAT(has("something else on rank " + std::to_string(differing)));
        CHECK_THAT(has(fields[field].second + " on rank " + std::to_string(differing == 0 ? 1 : 0)));
        if (world.rank().value == 0) ++compared;
      }
    }
  });
  EXPECT_GE(compared, 3U * 13U);
}

TEST(RuntimeAgreement, ReportsOlderVersionWithFewerFields) {
  comm::run_thread_ranks(2, [](comm::World& world) {
    runtime::SetupFields mine = fields_of(mlp_setup(world.group()));
    if (world.rank().value == 1) {
      mine.resize(4);
      mine[0].second = "0.0.1";
    }
    try {
      runtime::compare_fields(world.group(), mine);
    } catch (const UsageError& e) {
      CHECK_THAT(std::string(e.what()).find("0.0.1 on rank 1") != std::string::npos);
      return;
    }
    throw std::logic_error("not refused");
  });
}

// The default dtype is global to a process, so this test needs processes.
const RankFunction own_dtype("own_dtype", [] {
  comm::World world = comm::init();
  if (world.rank().value == 1) c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
  try {
    runtime::PipelineSchedule(stages_for(mlp(), world.group(), schedule::ScheduleKind::OneFOneB, 1), "1F1B",
                              4, options_for(mlp(), 2));
  } catch (const Error& e) {
    std::cout << e.message() << std::endl;
  }
  return 0;
});

TEST(RuntimeAgreement, ReportsProcessesWithDifferentDefaultDtypes) {
  const RanksOutcome outcome = run_process_ranks("own_dtype", 2);
  for (const auto& lines : outcome.lines) {
    ASSERT_FALSE(lines.empty()) << outcome.text();
    EXPECT_THAT(lines.front(), HasSubstr("differ in the default dtype: float on rank 0, double on rank 1"));
  }
}

struct Wires {
  PipelineModel model;
  int one, other;
};

// The errors of 3 ranks when two of them are disconnected. No rank waits longer than the timeout, with some
// room for a busy machine.
std::vector<std::string> words_about(const Wires& wires) {
  const DisconnectedPair deaf(wires.one, wires.other);
  comm::InitOptions options;
  options.timeout = std::chrono::seconds(3);
  std::vector<std::string> texts(3);
  run_thread_ranks(
      3,
      [&](comm::World& world) {
        const auto start = std::chrono::steady_clock::now();
        try {
          runtime::PipelineSchedule(
              stages_for(wires.model, deaf.group(world.group()), schedule::ScheduleKind::OneFOneB, 1), "1F1B",
              4, options_for(wires.model, 3));
        } catch (const CommError& e) {
          texts[world.rank().index()] = e.what();
        }
        CHECK_THAT(std::chrono::steady_clock::now() - start < std::chrono::seconds(13));
        // The lost messages belong to the old world.
        world.rebuild();
        step_on(runtime::PipelineSchedule(
                    stages_for(wires.model, world.group(), schedule::ScheduleKind::OneFOneB, 1), "1F1B", 4,
                    options_for(wires.model, 3)),
                wires.model.batch(8));
      },
      options);
  return texts;
}

TEST(RuntimeWarmUp, ReportsDisconnectedPairOnEveryRank) {
  EXPECT_THAT(words_about({mlp(), 1, 2}), Each(AllOf(HasSubstr("ranks 1 and 2 cannot reach each other"),
                                                     HasSubstr("waited"), HasSubstr("recv"))));
  // Connected only by a skip value.
  EXPECT_THAT(words_about({skip_net(), 0, 2}), Each(HasSubstr("ranks 0 and 2 cannot reach each other")));
}

}  // namespace
}  // namespace penstock::test
