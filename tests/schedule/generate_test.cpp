// Every generator, over the whole sweep of counts that it allows, is valid and lowers to lists that are safe
// in every mode.
#include <penstock/base/error.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>
#include <penstock/schedule/validate.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock {
namespace {

using testing::HasSubstr;

bool legal(ScheduleKind kind, const ScheduleShape& shape) {
  try {
    check_shape(kind, shape);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

class EveryKind : public testing::TestWithParam<ScheduleKind> {};

TEST_P(EveryKind, IsValidForAllLegalCountsUpTo16RanksBy4StagesBy64Microbatches) {
  int checked = 0;
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (int stages = 1; stages <= 4; ++stages) {
      for (int microbatches = 1; microbatches <= 64; ++microbatches) {
        const ScheduleShape shape{ranks, stages, microbatches};
        if (!legal(GetParam(), shape)) continue;
        const Schedule schedule = make_schedule(GetParam(), shape);
        const Verdict verdict = validate(schedule);
        ASSERT_TRUE(verdict.valid()) << ranks << " x " << stages << " x " << microbatches << "\n"
                                     << to_text(verdict.findings);
        const Verdict lowered = validate(lower(schedule));
        for (const SendMode mode : {SendMode::Buffered, SendMode::Ordered, SendMode::Blocking}) {
          ASSERT_TRUE(lowered.safe(mode)) << ranks << " x " << stages << " x " << microbatches << "\n"
                                          << to_text(lowered.all(mode));
        }
        ++checked;
      }
    }
  }
  EXPECT_GE(checked, GetParam() == ScheduleKind::DualPipeV ? 700 : 1024);
}

std::string kind_name(const testing::TestParamInfo<ScheduleKind>& info) {
  std::string name(schedule_name(info.param));
  std::erase(name, '-');
  return name;
}

std::vector<ScheduleKind> all_kinds() {
  std::vector<ScheduleKind> kinds;
  for (const ScheduleInfo& info : schedule_infos()) kinds.push_back(info.kind);
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Generators, EveryKind, testing::ValuesIn(all_kinds()), kind_name);

}  // namespace
}  // namespace penstock
