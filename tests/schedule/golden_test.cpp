// Our tables compared with the reference, byte for byte except for the order of simultaneous reshards:
// golden/*.txt, written by golden/make_golden.py.
#include "schedule/python_set.h"
#include "support/error_message.h"

#include <penstock/base/error.h>
#include <penstock/schedule/csv.h>
#include <penstock/schedule/generate.h>
#include <penstock/schedule/lower.h>
#include <penstock/schedule/stage_placement.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

namespace penstock::schedule {
namespace {

using test::error_message;

std::ifstream open_golden(const std::string& name) {
  std::ifstream in(std::string(PENSTOCK_SOURCE_DIR) + "/tests/schedule/golden/" + name + ".txt");
  EXPECT_TRUE(in) << name;
  return in;
}

// When several stages are resharded at once, the reference uses the order of a Python set, Penstock ascending
// order. Puts each run of RESHARD actions into the reference's order.
Draft with_reference_order(Draft draft) {
  for (ActionList& list : draft.ranks) {
    PythonSet active;
    for (auto at = list.begin(); at != list.end(); ++at) {
      if (at->kind() == ActionKind::Unshard) active.add(at->stage().value);
      if (at->kind() != ActionKind::Reshard) continue;
      const auto end =
          std::find_if(at, list.end(), [](const Action& next) { return next.kind() != ActionKind::Reshard; });
      const std::vector<int> order = active.values();
      const auto position = [&](const Action& action) {
        return std::find(order.begin(), order.end(), action.stage().value) - order.begin();
      };
      std::sort(at, end, [&](const Action& a, const Action& b) { return position(a) < position(b); });
      for (; at != end; ++at) active.remove(at->stage().value);
      --at;
    }
  }
  return draft;
}

class ScheduleGolden : public testing::TestWithParam<const char*> {};

TEST_P(ScheduleGolden, TablesMatchReference) {
  std::ifstream in = open_golden(GetParam());
  std::string line;
  int tables = 0;
  while (std::getline(in, line)) {
    int ranks = 0, stages = 0, microbatches = 0;
    char what[16] = {};
    if (std::sscanf(line.c_str(), "[%d ranks, %d stages a rank, %d microbatches: %15[a-z]]", &ranks, &stages,
                    &microbatches, what) != 4) {
      continue;
    }
    const std::string title = line;
    std::string expected;
    for (int rank = 0; rank < ranks && std::getline(in, line); ++rank) expected += line + "\n";
    const Schedule schedule = make_schedule(GetParam(), {ranks, stages, microbatches});
    const bool lowered = std::string(what) == "lowered";
    EXPECT_EQ(lowered ? to_csv(with_reference_order(lower(schedule))) : to_csv(schedule), expected) << title;
    ++tables;
  }
  EXPECT_GE(tables, 30);
}

INSTANTIATE_TEST_SUITE_P(Reference, ScheduleGolden,
                         testing::Values("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS",
                                         "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"),
                         [](const auto& test) { return std::string(test.param); });

std::uint64_t fnv(const std::string& text) {
  std::uint64_t value = 0xcbf29ce484222325U;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return value;
}

TEST(ScheduleGoldenWide, ThousandRandomShapesMatchReference) {
  std::ifstream in = open_golden("wide");
  std::string line;
  int lines = 0;
  while (std::getline(in, line)) {
    if (line.starts_with("#")) continue;
    std::istringstream fields(line);
    std::string name;
    ScheduleShape shape;
    std::uint64_t compute = 0, lowered = 0;
    fields >> name >> shape.ranks >> shape.stages_per_rank >> shape.microbatches >> compute >> lowered;
    const Schedule schedule = make_schedule(name, shape);
    EXPECT_EQ(fnv(to_csv(schedule)), compute) << line;
    EXPECT_EQ(fnv(to_csv(with_reference_order(lower(schedule)))), lowered) << line;
    ++lines;
  }
  EXPECT_EQ(lines, 1000);
}

TEST(ScheduleGoldenPlacement, MatchesReference) {
  std::ifstream in = open_golden("placement");
  std::string line;
  int lines = 0;
  while (std::getline(in, line)) {
    if (line.starts_with("#")) continue;
    std::istringstream fields(line);
    std::string style;
    int ranks = 0, stages = 0, rank = 0;
    char colon = 0;
    fields >> style >> ranks >> stages >> colon;
    std::vector<Rank> expected;
    while (fields >> rank) expected.emplace_back(rank);
    const PlacementStyle parsed = parse_placement_style(style);
    EXPECT_EQ(generate_stage_to_rank_mapping(ranks, stages, parsed), expected) << line;
    const auto back = generate_rank_to_stage_mapping(ranks, stages, parsed);
    std::vector<std::vector<StageId>> ascending(static_cast<std::size_t>(ranks));
    for (int stage = 0; stage < stages; ++stage)
      ascending[expected[static_cast<std::size_t>(stage)].index()].emplace_back(stage);
    EXPECT_EQ(back, ascending) << line;
    ++lines;
  }
  EXPECT_EQ(lines, 904 + 211);  // loop: every count from ranks to 64; v: multiples of the ranks
}

// Errors for unsupported counts. (The reference returns ranks without a stage, which are of no use here.)
TEST(ScheduleGoldenPlacement, RejectsInvalidCounts) {
  EXPECT_EQ(error_message<UsageError>([] { generate_stage_to_rank_mapping(4, 6, PlacementStyle::V); }),
            "cannot place 6 stages on 4 ranks in the v style: the number of stages is not a multiple of the "
            "number of ranks\nhint: use 4 or 8 stages");
  EXPECT_EQ(error_message<UsageError>([] { generate_rank_to_stage_mapping(4, 3, PlacementStyle::Loop); }),
            "cannot place 3 stages on 4 ranks: some ranks would have no stage\nhint: use at least 4 stages");
  EXPECT_EQ(error_message<UsageError>([] { generate_stage_to_rank_mapping(0, 3, PlacementStyle::Loop); }),
            "cannot place 3 stages on 0 ranks\nhint: use at least 1 rank");
  EXPECT_EQ(error_message<UsageError>([] { parse_placement_style("spiral"); }),
            "unknown placement style 'spiral'\nhint: use 'loop' or 'v'");
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (int stages = 0; stages <= 64; ++stages) {
      const bool mapped = error_message<UsageError>([&] {
                            generate_stage_to_rank_mapping(ranks, stages, PlacementStyle::V);
                          }) == "no error";
      EXPECT_EQ(mapped, stages >= ranks && stages % ranks == 0) << ranks << " " << stages;
    }
  }
}

}  // namespace
}  // namespace penstock::schedule
