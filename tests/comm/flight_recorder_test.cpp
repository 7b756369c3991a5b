// The flight recorder keeps the last operations, and a set of dumps shows which rank did not join.
#include "comm/failure/flight_recorder.h"

#include "comm/failure/flight_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

FlightRecord collective(std::uint64_t sequence) {
  return {.op = "all_reduce", .group = "world", .sequence = sequence, .bytes = 64};
}

TEST(CommFlightRecorder, KeepsLastOperationsInOrder) {
  FlightRecorder recorder(Rank(0), 4);
  for (std::uint64_t i = 1; i <= 10; ++i) recorder.finish(recorder.start(collective(i)), false);
  recorder.finish(3, true);  // already overwritten: no effect
  std::vector<std::uint64_t> kept;
  for (const FlightRecord& record : recorder.records()) {
    kept.push_back(record.sequence.value_or(0));
    EXPECT_FALSE(record.failed);
    EXPECT_GE(record.finished, record.started);
  }
  EXPECT_THAT(kept, ElementsAre(7, 8, 9, 10));
}

TEST(CommFlightRecorder, ReportsRankThatDidNotJoin) {
  std::vector<std::string> dumps;
  for (int rank = 0; rank < 3; ++rank) {
    FlightRecorder recorder{Rank(rank)};
    recorder.finish(recorder.start(collective(1)), false);
    if (rank != 1) recorder.finish(recorder.start(collective(2)), true);
    dumps.push_back(to_json(recorder));
  }
  EXPECT_THAT(
      explain_flight(dumps, {Rank(3)}),
      ElementsAre("rank 1 did not join all_reduce number 2 on group world, in which ranks 0, 2 waited",
                  "rank 3 left no record (killed, or never joined)"));
}

TEST(CommFlightRecorder, ReportsUnmatchedReceive) {
  FlightRecorder recorder(Rank(2));
  recorder.start({.op = "recv", .group = "world", .peer = 1, .tag = 9, .bytes = 2048});
  EXPECT_THAT(explain_flight({to_json(recorder)}, {}),
              ElementsAre("rank 2: recv from rank 1 (tag 9, 2.00 KiB, group world) did not complete"));
}

TEST(CommFlightRecorder, RejectsDamagedDumps) {
  for (const char* text :
       {"", "{", "[]", "{\"records\":3}", "\xff\xfe", "{\"records\":[3]}", "{\"records\":[{\"op\":3}]}",
        "{\"records\":[{\"sequence\":-1}]}", "{\"rank\":4294967296,\"records\":[]}"}) {
    EXPECT_THAT(explain_flight({text}, {}), ElementsAre(HasSubstr("could not be read"))) << text;
  }
}

}  // namespace
}  // namespace penstock::comm
