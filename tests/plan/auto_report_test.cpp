// Auto over a thousand random profiles: how often and by how much it beats the best named schedule, and its
// distance from the lower bound. Prints the table in docs/simulation.md.
#include "plan_profiles.h"

#include <penstock/base/error.h>
#include <penstock/plan/auto_schedule.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

namespace penstock::plan {
namespace {

struct Group {
  int profiles = 0, faster = 0, only = 0, impossible = 0;
  double gain = 0, most = 0, gap = 0, named_gap = 0;
  std::vector<double> gaps;
};

void print(const char* name, Group& group) {
  std::sort(group.gaps.begin(), group.gaps.end());
  const int compared = group.profiles - group.only;
  std::printf("%-28s %8d %7.1f%% %8.2f%% %8.1f%% %8.2f%% %8.2f%% %8.2f%% %5d %5d\n", name, group.profiles,
              100.0 * group.faster / std::max(1, compared), 100 * group.gain / std::max(1, compared),
              100 * group.most, 100 * group.gap / std::max(1, group.profiles),
              100 * group.gaps[group.gaps.size() / 2], 100 * group.named_gap / std::max(1, compared),
              group.only, group.impossible);
}

TEST(PlanAutoReport, CoversThousandRandomProfiles) {
  std::map<std::string, Group> groups;
  for (unsigned seed = 0; seed < 1000; ++seed) {
    const Profile profile = random_profile(seed);
    const std::string name = std::to_string(profile.stages_per_rank) +
                             (profile.stages_per_rank == 1 ? " stage" : " stages") + " a rank, " +
                             (profile.cap ? "capped" : "no cap");
    AutoResult result;
    try {
      result =
          make_auto_schedule(profile.ranks, profile.microbatches, profile.costs, {.memory_cap = profile.cap});
    } catch (const ScheduleError&) {
      ++groups[name].impossible, ++groups["all"].impossible;
      continue;
    }
    for (Group* group : {&groups[name], &groups["all"]}) {
      ++group->profiles;
      const double gap = result.step_time / result.lower_bound - 1;
      group->gap += gap;
      group->gaps.push_back(gap);
      if (!result.best_named) {
        ++group->only;
        continue;
      }
      const double named_time = result.best_named->step_time, gain = 1 - result.step_time / named_time;
      ASSERT_GE(gain, 0) << "seed " << seed;
      group->named_gap += named_time / result.lower_bound - 1;
      group->faster += gain > 1e-6;
      group->gain += gain;
      group->most = std::max(group->most, gain);
    }
  }
  std::printf("%-28s %8s %8s %9s %9s %9s %9s %9s %5s %5s\n", "", "profiles", "faster", "mean gain", "most",
              "to bound", "median", "named to", "only", "none");
  for (auto& [name, group] : groups) print(name.c_str(), group);
  const Group& all = groups["all"];
  EXPECT_GT(all.faster, (all.profiles - all.only) * 6 / 10);
}

}  // namespace
}  // namespace penstock::plan
