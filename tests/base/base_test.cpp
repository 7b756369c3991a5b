// Ids, errors, diagnostics, text, JSON and the logger.
#include <penstock/base/diagnostic.h>
#include <penstock/base/error.h>
#include <penstock/base/ids.h>
#include <penstock/base/json.h>
#include <penstock/base/log.h>
#include <penstock/base/text.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <type_traits>

namespace penstock {
namespace {

TEST(Ids, DifferentKindsDoNotConvert) {
  static_assert(!std::is_convertible_v<StageId, Rank>);
  static_assert(!std::is_convertible_v<int, StageId>);
  EXPECT_LT(StageId(1), StageId(2));
  EXPECT_EQ(std::hash<Rank>{}(Rank(3)), std::hash<Rank>{}(Rank(3)));
}

TEST(Error, TextHasMessageContextAndHint) {
  const ShapeError error("expected 2 rows, got 3", {.rank = Rank(1), .stage = StageId(4), .tensor = "args[0]"}, "pad it");
  EXPECT_STREQ(error.what(), "expected 2 rows, got 3 (rank 1, stage 4, tensor args[0])\nhint: pad it");
  EXPECT_EQ(error.message(), "expected 2 rows, got 3");
}

TEST(Error, ContextIsFilledFromOutside) {
  const ErrorContext inner{.stage = StageId(2), .action = "2F0"};
  const ErrorContext outer{.rank = Rank(5), .stage = StageId(9)};
  EXPECT_EQ(inner.within(outer).text(), "rank 5, stage 2, action 2F0");
}

TEST(Error, PeerFailedNamesThePeerAndIsACommError) {
  try {
    throw PeerFailed(Rank(2), "killed by signal 9", {.rank = Rank(0)});
  } catch (const CommError& error) {
    EXPECT_STREQ(error.what(), "rank 2 failed: killed by signal 9 (rank 0)");
  }
}

TEST(Diagnostic, OnlyErrorsCountAsErrors) {
  Diagnostics found{{Severity::Warning, "row 1, column 2", "idle"}};
  EXPECT_FALSE(has_errors(found));
  found.push_back({Severity::Error, "", "no rows"});
  EXPECT_TRUE(has_errors(found));
  EXPECT_EQ(to_text(found), "warning: row 1, column 2: idle\nerror: no rows\n");
}

TEST(Text, UnitsReadWell) {
  EXPECT_EQ(bytes_text(640), "640 B");
  EXPECT_EQ(bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(bytes_text(std::uint64_t{16} << 30), "16.0 GiB");
  EXPECT_EQ(seconds_text(1.25), "1.25 s");
  EXPECT_EQ(seconds_text(0.0031), "3.10 ms");
  EXPECT_EQ(seconds_text(12e-6), "12.0 us");
}

TEST(Text, QuoteEscapesAndCuts) {
  EXPECT_EQ(quote("1F0"), "'1F0'");
  EXPECT_EQ(quote(std::string("a\0b", 3)), "'a\\x00b'");
  EXPECT_EQ(quote("abcdef", 3), "'abc…'");
}

TEST(Text, NearestFindsMisspellings) {
  const std::vector<std::string> names{"GPipe", "1F1B", "ZBVZeroBubble"};
  EXPECT_EQ(nearest("gpip", names), "GPipe");
  EXPECT_EQ(nearest("zbvzerobuble", names), "ZBVZeroBubble");
  EXPECT_EQ(nearest("something else", names), "");
}

TEST(Json, NestsAndQuotes) {
  JsonWriter json;
  json.begin_object().field("a", 1).key("b").begin_array().value(true).null().value("x\"\n").end_array();
  json.field("c", 0.1).end_object();
  EXPECT_EQ(json.text(), R"({"a":1,"b":[true,null,"x\"\n"],"c":0.1})");
}

TEST(Json, NumbersReadBackEqual) {
  for (const double number : {1.0 / 3, 1e300, -2.5e-17, 0.0}) {
    JsonWriter json;
    json.value(number);
    EXPECT_EQ(std::stod(json.text()), number);
  }
  JsonWriter json;
  json.begin_array().value(std::nan("")).value(std::numeric_limits<double>::infinity()).end_array();
  EXPECT_EQ(json.text(), "[null,null]");
}

TEST(Json, BytesThatAreNotUtf8AreReplaced) {
  EXPECT_EQ(json_quote("\xc3\xa9"), "\"\xc3\xa9\"");
  EXPECT_EQ(json_quote("\xff"), "\"\xef\xbf\xbd\"");
  EXPECT_EQ(json_quote("\xed\xa0\x80"), "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");  // a surrogate
  EXPECT_EQ(json_quote("\x01"), "\"\\u0001\"");
}

TEST(Log, WritesOnlyEnabledLevelsWithTheRank) {
  const LogLevel before = log_level();
  set_log_level(LogLevel::Info);
  set_log_rank(Rank(7));
  testing::internal::CaptureStderr();
  Log(LogLevel::Info) << "joined " << 3;
  Log(LogLevel::Debug) << "not shown";
  const std::string text = testing::internal::GetCapturedStderr();
  set_log_rank(std::nullopt);
  set_log_level(before);
  EXPECT_EQ(text, "penstock[7] info: joined 3\n");
}

TEST(Log, LevelsAreReadStrictly) {
  EXPECT_EQ(parse_log_level("debug"), LogLevel::Debug);
  EXPECT_EQ(parse_log_level("verbose"), std::nullopt);
}

}  // namespace
}  // namespace penstock
