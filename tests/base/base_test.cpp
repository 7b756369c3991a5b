// Tests of ids, errors, diagnostics, text helpers, JSON, input files and the logger.
#include "base/io/json_reader.h"
#include "base/io/regular_file.h"
#include "base/io/storage_error.h"
#include "base/json.h"
#include "base/log_line.h"
#include "base/markup.h"
#include "base/text.h"
#include "support/error_message.h"

#include <penstock/base/diagnostic.h>
#include <penstock/base/error.h>
#include <penstock/base/ids.h>
#include <penstock/version.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <regex>
#include <type_traits>

namespace penstock {
namespace {

TEST(BaseIds, DifferentKindsDoNotConvert) {
  static_assert(!std::is_convertible_v<StageId, Rank>);
  static_assert(!std::is_convertible_v<int, StageId>);
  EXPECT_LT(StageId(1), StageId(2));
  EXPECT_EQ(std::hash<Rank>{}(Rank(3)), std::hash<Rank>{}(Rank(3)));
}

TEST(BaseIds, RejectNumbersAbove32Bits) {
  EXPECT_EQ(StageId(std::int64_t{2'147'483'647}).value, 2'147'483'647);
  EXPECT_ERROR(StageId(std::int64_t{2'147'483'648}), UsageError, "must fit in 32 bits");
  EXPECT_ERROR(Rank(std::size_t{1} << 32U), UsageError, "must fit in 32 bits");
}

TEST(BaseVersion, MatchesProjectVersion) {
  std::ifstream file(PENSTOCK_SOURCE_DIR "/CMakeLists.txt");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::smatch found;
  ASSERT_TRUE(std::regex_search(text, found, std::regex(R"(project\(penstock VERSION (\d+\.\d+\.\d+))")));
  EXPECT_EQ(version(), found[1].str());
}

TEST(BaseError, TextContainsMessageContextAndHint) {
  const ShapeError error("expected 2 rows, got 3",
                         {.rank = Rank(1), .stage = StageId(4), .tensor = "args[0]"}, "pad it");
  EXPECT_STREQ(error.what(), "expected 2 rows, got 3 (rank 1, stage 4, tensor args[0])\nhint: pad it");
  EXPECT_EQ(error.message(), "expected 2 rows, got 3");
}

TEST(BaseError, ContextIsFilledByCallers) {
  const ErrorContext inner{.stage = StageId(2), .action = "2F0"};
  const ErrorContext outer{.rank = Rank(5), .stage = StageId(9)};
  EXPECT_EQ(to_string(inner.within(outer)), "rank 5, stage 2, action 2F0");
}

TEST(BaseError, ShowsAndFillsEveryContextField) {
  const ErrorContext all{.rank = Rank(1),
                         .stage = StageId(2),
                         .microbatch = MicrobatchId(3),
                         .action = "2F3",
                         .tensor = "x",
                         .op = "aten::mm"};
  const std::string text = "rank 1, stage 2, microbatch 3, action 2F3, tensor x, op aten::mm";
  EXPECT_EQ(to_string(all), text);
  EXPECT_EQ(to_string(ErrorContext{}), "");
  EXPECT_EQ(to_string(ErrorContext{}.within(all)), text);
  const ErrorContext other{.rank = Rank(9),
                           .stage = StageId(9),
                           .microbatch = MicrobatchId(9),
                           .action = "9F9",
                           .tensor = "y",
                           .op = "aten::add"};
  EXPECT_EQ(to_string(all.within(other)), text);
  const UsageError plain("no rows");
  EXPECT_STREQ(plain.what(), "no rows");
  EXPECT_EQ(plain.hint(), "");
  EXPECT_EQ(to_string(ShapeError("a", all, "b").context()), text);
  EXPECT_EQ(ShapeError("a", all, "b").hint(), "b");
}

TEST(BaseError, PeerFailedNamesPeerAndIsCommError) {
  try {
    throw PeerFailed(Rank(2), "killed by signal 9", {.rank = Rank(0)});
  } catch (const CommError& error) {
    EXPECT_STREQ(error.what(), "rank 2 failed: killed by signal 9 (rank 0)");
  }
  const PeerFailed failed(Rank(2), "lost");
  EXPECT_EQ(failed.peer(), Rank(2));
  EXPECT_EQ(failed.cause(), "lost");
}

TEST(BaseError, StorageErrorHasCodeAndHint) {
  const StorageError full("cannot write 'a'", ENOSPC);
  EXPECT_EQ(full.code(), ENOSPC);
  EXPECT_THAT(full.hint(), testing::HasSubstr("free space"));
  EXPECT_EQ(StorageError("cannot write 'a'", ENOSPC, "another hint").hint(), "another hint");
  EXPECT_EQ(test::error_message<StorageError>([] { throw_storage_error("open", "a b", EISDIR); }),
            "cannot open 'a b': Is a directory");
  const auto hint = [](int code) { return StorageError("cannot write 'a'", code).hint(); };
  for (const int code : {ENOSPC, EDQUOT, EFBIG}) EXPECT_THAT(hint(code), testing::HasSubstr("free space"));
  EXPECT_EQ(hint(EROFS), "use a directory that this user can write to");
  for (const int code : {EACCES, EPERM}) EXPECT_THAT(hint(code), testing::HasSubstr("permissions"));
  EXPECT_THAT(hint(ENOENT), testing::HasSubstr("check the path"));
  EXPECT_THAT(hint(EBUSY), testing::HasSubstr("the other run"));
  for (const int code : {EMFILE, ENFILE}) EXPECT_THAT(hint(code), testing::HasSubstr("ulimit -n"));
  EXPECT_EQ(hint(EIO), "");
}

TEST(BaseMarkup, EscapesExactlyFourCharacters) {
  EXPECT_EQ(escape_markup("a<b> & \"c\" 'd'"), "a&lt;b&gt; &amp; &quot;c&quot; 'd'");
  EXPECT_EQ(escape_markup("&amp;"), "&amp;amp;");
  EXPECT_EQ(escape_markup(""), "");
}

TEST(BaseDiagnostic, OnlyErrorsCountAsErrors) {
  Diagnostics found{{Severity::Warning, "row 1, column 2", "idle"}};
  EXPECT_FALSE(has_errors(found));
  found.push_back({Severity::Error, "", "no rows"});
  EXPECT_TRUE(has_errors(found));
  EXPECT_EQ(to_string(found), "warning: row 1, column 2: idle\nerror: no rows\n");
}

TEST(BaseDiagnostic, NamesEverySeverity) {
  EXPECT_EQ(to_string(Severity::Note), "note");
  EXPECT_EQ(to_string(Severity::Warning), "warning");
  EXPECT_EQ(to_string(Severity::Error), "error");
  EXPECT_EQ(to_string(Diagnostics{}), "");
  EXPECT_FALSE(has_errors({}));
}

TEST(BaseText, UnitsChangeAtTheirBoundaries) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(10 * 1024), "10.0 KiB");
  EXPECT_EQ(format_bytes(100 * 1024), "100 KiB");
  EXPECT_EQ(format_bytes(1024 * 1024), "1.00 MiB");
  EXPECT_EQ(format_bytes(std::uint64_t{1} << 40), "1.00 TiB");
  EXPECT_EQ(format_bytes(std::uint64_t{1} << 50), "1024 TiB");
  EXPECT_EQ(format_seconds(0), "0.00 us");
  EXPECT_EQ(format_seconds(1), "1.00 s");
  EXPECT_EQ(format_seconds(10), "10.0 s");
  EXPECT_EQ(format_seconds(100), "100 s");
  EXPECT_EQ(format_seconds(-2), "-2.00 s");
  EXPECT_EQ(format_seconds(1e-3), "1.00 ms");
  EXPECT_EQ(format_seconds(5e-4), "500 us");
}

TEST(BaseText, FormatsUnits) {
  EXPECT_EQ(format_bytes(640), "640 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(std::uint64_t{16} << 30), "16.0 GiB");
  EXPECT_EQ(format_seconds(1.25), "1.25 s");
  EXPECT_EQ(format_seconds(0.0031), "3.10 ms");
  EXPECT_EQ(format_seconds(12e-6), "12.0 us");
  EXPECT_EQ(format_share(0.2734), "27.3%");
  EXPECT_EQ(format_share(1), "100.0%");
}

TEST(BaseText, FormatsLikePrintf) {
  EXPECT_EQ(formatted("%s %05d %.2f%%", "a", 42, 1.005e2), "a 00042 100.50%");
  EXPECT_EQ(formatted("nothing"), "nothing");
  EXPECT_EQ(formatted("%s", ""), "");
  EXPECT_EQ(formatted("%s", std::string(5000, 'x').c_str()), std::string(5000, 'x'));
}

TEST(BaseText, QuoteEscapesAndTruncates) {
  EXPECT_EQ(quote("1F0"), "'1F0'");
  EXPECT_EQ(quote(std::string("a\0b", 3)), "'a\\x00b'");
  EXPECT_EQ(quote("abcdef", 3), "'abc…'");
  EXPECT_EQ(quote("abc", 3), "'abc'");
  EXPECT_EQ(quote(" ~\x7f\x1f\n"), "' ~\\x7f\\x1f\\x0a'");
  EXPECT_EQ(quote(std::string("\xc3\xa9")), "'\\xc3\\xa9'");
}

TEST(BaseText, JoinsAndLowercases) {
  EXPECT_EQ(join({}, ", "), "");
  EXPECT_EQ(join({"a"}, ", "), "a");
  EXPECT_EQ(join({"a", "b", "c"}, ", "), "a, b, c");
  EXPECT_EQ(to_lower("AZaz@[`{09"), "azaz@[`{09");
}

TEST(BaseText, CountsAndLists) {
  EXPECT_EQ(counted(1, "stage"), "1 stage");
  EXPECT_EQ(counted(0, "stage"), "0 stages");
  EXPECT_EQ(counted(2, "microbatch"), "2 microbatches");
  EXPECT_EQ(numbered("rank", std::vector<int>{2}), "rank 2");
  EXPECT_EQ(numbered("microbatch", std::vector<int>{0, 2, 5}), "microbatches 0, 2, 5");
  EXPECT_EQ(numbered("rank", std::vector<int>{0, 2, 5}, 3), "ranks 0, 2, 5");
  EXPECT_EQ(numbered("rank", std::vector<int>{0, 2, 5, 6}, 2), "ranks 0, 2 and 2 more");
}

TEST(BaseText, DidYouMeanAlsoFindsPrefixes) {
  EXPECT_EQ(did_you_mean("versoin", {"version"}, "", "penstock "), "did you mean penstock version?");
  EXPECT_EQ(did_you_mean("--batch-size", {"--batch"}), "did you mean --batch?");
  EXPECT_EQ(did_you_mean("", {"train"}, "see the help"), "see the help");
  // The longest candidate with a common prefix wins, whatever the order; short and unrelated ones do not
  // count.
  EXPECT_EQ(did_you_mean("--batch-size", {"--ba", "--batch", "--bat"}), "did you mean --batch?");
  EXPECT_EQ(did_you_mean("--batch-size", {"--unrelated-flag"}, "none"), "none");
  EXPECT_EQ(did_you_mean("microbatches", {"micr"}, "none"), "did you mean micr?");
  EXPECT_EQ(did_you_mean("microbatches", {"mic"}, "none"), "none");
  EXPECT_EQ(did_you_mean("micro", {"microbatches"}, "none"), "did you mean microbatches?");
  EXPECT_EQ(did_you_mean("micro", {"microbatches", "microseconds"}), "did you mean microbatches?");
  // A similar name is preferred to one with a common prefix.
  EXPECT_EQ(did_you_mean("versoin", {"version", "versoin-of-all"}), "did you mean version?");
}

TEST(BaseText, NearestAllowsOneThirdOfLettersToDiffer) {
  EXPECT_EQ(nearest_name("ab", {"abcd"}), "abcd");  // two insertions are always allowed
  EXPECT_EQ(nearest_name("ab", {"abcde"}), "");     // three are not
  EXPECT_EQ(nearest_name("abcdefghi", {"abcdefxyz"}), "abcdefxyz");
  EXPECT_EQ(nearest_name("abcdefghi", {"abcdewxyz"}), "");
  EXPECT_EQ(nearest_name("cat", {"cut", "cart", "cat", "bat"}), "cat");
  EXPECT_EQ(nearest_name("xat", {"bat", "cat"}), "bat");  // ties: the first one wins
  EXPECT_EQ(nearest_name("kitten", {"sitting"}), "");     // three edits
  EXPECT_EQ(nearest_name("sitten", {"sitting"}), "sitting");
  // Distances are counted in bytes, so both candidates are one edit away.
  EXPECT_EQ(nearest_name("kind", {"kinf", std::string("\0kind", 5)}), "kinf");
}

TEST(BaseText, NearestFindsMisspellings) {
  const std::vector<std::string> names{"GPipe", "1F1B", "ZBVZeroBubble"};
  EXPECT_EQ(nearest_name("gpip", names), "GPipe");
  EXPECT_EQ(nearest_name("zbvzerobuble", names), "ZBVZeroBubble");
  EXPECT_EQ(nearest_name("something else", names), "");
}

TEST(BaseJson, NestsAndQuotes) {
  JsonWriter json;
  json.begin_object().field("a", 1).key("b").begin_array().value(true).null().value("x\"\n").end_array();
  json.field("c", 0.1).end_object();
  EXPECT_EQ(json.text(), R"({"a":1,"b":[true,null,"x\"\n"],"c":0.1})");
}

TEST(BaseJson, NumbersRoundTrip) {
  for (const double number : {1.0 / 3, 1e300, -2.5e-17, 0.0}) {
    JsonWriter json;
    json.value(number);
    EXPECT_EQ(std::stod(json.text()), number);
  }
  JsonWriter json;
  json.begin_array().value(std::nan("")).value(std::numeric_limits<double>::infinity()).end_array();
  EXPECT_EQ(json.text(), "[null,null]");
}

TEST(BaseJson, ReplacesInvalidUtf8) {
  EXPECT_EQ(json_quote("\xc3\xa9"), "\"\xc3\xa9\"");
  EXPECT_EQ(json_quote("\xff"), "\"\xef\xbf\xbd\"");
  EXPECT_EQ(json_quote("\xed\xa0\x80"), "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");  // a surrogate
  EXPECT_EQ(json_quote("\x01"), "\"\\u0001\"");
}

TEST(BaseJson, EscapesControlCharactersAndBackslashes) {
  EXPECT_EQ(json_quote("a\\b\"c\td\ne\x1f "), R"("a\\b\"c\td\ne\u001f ")");
  EXPECT_EQ(json_quote(""), "\"\"");
}

// Each boundary of the valid code points, with its invalid neighbor.
TEST(BaseJson, KeepsExactlyValidUtf8Sequences) {
  const std::string replaced = "\xef\xbf\xbd";
  const auto kept = [](const std::string& text) { return json_quote(text) == "\"" + text + "\""; };
  const auto bytes_replaced = [&](const std::string& text) {
    std::string expected = "\"";
    for (std::size_t i = 0; i < text.size(); ++i) expected += replaced;
    return json_quote(text) == expected + "\"";
  };
  for (const char* good : {"\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
                           "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", "\xc3\xa9\xe2\x82\xac"})
    EXPECT_TRUE(kept(good)) << json_quote(good);
  for (const char* bad :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc3", "\xe2\x82", "\xf0\x90\x80"})
    EXPECT_TRUE(bytes_replaced(bad)) << json_quote(bad);
  EXPECT_EQ(json_quote("\xc3x"), "\"" + replaced + "x\"");
  EXPECT_EQ(json_quote("\xc3\xc3\xa9"), "\"" + replaced + "\xc3\xa9\"");
}

TEST(BaseJson, SeparatesItemsAtEveryDepth) {
  JsonWriter json;
  json.begin_array().begin_object().end_object().begin_array().value(1).value(2).end_array().value(false);
  json.begin_object().field("a", "b").field("c", std::uint64_t{18446744073709551615U}).end_object();
  json.value(std::int64_t{-3}).end_array();
  EXPECT_EQ(json.text(), R"([{},[1,2],false,{"a":"b","c":18446744073709551615},-3])");
}

TEST(BaseJsonAccess, RejectsWrongKindWithPath) {
  const auto problem = [](const auto& read, const std::string& text) {
    return test::error_message<ParseError>([&] { read(parse_json(text, "file"), "place"); });
  };
  const auto list = [](const JsonValue& value, const std::string& where) { array_at(value, where); };
  const auto choice = [](const JsonValue& value, const std::string& where) { choice_at(value, where); };
  EXPECT_EQ(problem(list, "[1]"), "no error");
  EXPECT_EQ(problem(list, "{}"), "place: expected a list");
  EXPECT_EQ(problem(bool_at, "1"), "place: expected true or false");
  EXPECT_TRUE(bool_at(parse_json("true", "file"), "place"));
  EXPECT_FALSE(bool_at(parse_json("false", "file"), "place"));
  EXPECT_EQ(problem(choice, "{\"a\":null}"), "place: expected an entry");
  EXPECT_EQ(problem(choice, "{\"a\":1,\"b\":2}"), "place: expected one entry, not a and b");
  EXPECT_EQ(problem(choice, "{\"a\":null,\"b\":2}"), "no error");
}

TEST(BaseRegularFile, OpensOnlyRegularFiles) {
  const std::string dir = testing::TempDir() + "penstock_regular_" + std::to_string(getpid());
  ASSERT_EQ(mkdir(dir.c_str(), 0700), 0);
  const std::string path = dir + "/file", fifo = dir + "/fifo", socket_path = dir + "/socket";
  std::ofstream(path) << "seven..";
  const RegularFile file = open_regular_file(path);
  EXPECT_GE(file.descriptor, 0);
  EXPECT_EQ(file.size, 7u);
  EXPECT_EQ(file.error, 0);
  EXPECT_EQ(close(file.descriptor), 0);
  const auto expect_refused = [](const std::string& name, int error, const std::string& problem) {
    const RegularFile refused = open_regular_file(name);
    EXPECT_EQ(refused.descriptor, -1) << name;
    EXPECT_EQ(refused.error, error) << name;
    EXPECT_EQ(refused.problem, problem);
  };
  expect_refused(dir + "/none", ENOENT, std::strerror(ENOENT));
  expect_refused(dir, EISDIR, "it is a directory, not a regular file");
  expect_refused("/dev/null", EINVAL, "it is a device, not a regular file");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  expect_refused(fifo, EINVAL, "it is a FIFO, not a regular file");
  // `open` would also fail for a socket, but with a less helpful error.
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(socket_path.size(), sizeof address.sun_path);
  socket_path.copy(address.sun_path, socket_path.size());
  ASSERT_EQ(bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  expect_refused(socket_path, EINVAL, "it is a socket, not a regular file");
  close(socket);
  // Descriptor 0 is valid if standard input is closed.
  const int input = dup(STDIN_FILENO);
  ASSERT_GE(input, 0);
  close(STDIN_FILENO);
  const RegularFile zeroth = open_regular_file(path);
  ASSERT_EQ(dup2(input, STDIN_FILENO), STDIN_FILENO);
  close(input);
  EXPECT_EQ(zeroth.descriptor, 0);
  EXPECT_EQ(zeroth.error, 0);
  // A file that exists but cannot be opened because no descriptors are left.
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const RegularFile exhausted = open_regular_file(path);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(exhausted.descriptor, -1);
  EXPECT_EQ(exhausted.error, EMFILE);
  EXPECT_EQ(exhausted.problem, std::strerror(EMFILE));
  for (const std::string& name : {path, fifo, socket_path}) unlink(name.c_str());
  rmdir(dir.c_str());
}

TEST(BaseLog, WritesOnlyEnabledLevelsWithRank) {
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

TEST(BaseLog, OmitsRankIfUnsetAndNeverWritesOff) {
  const LogLevel before = log_level();
  set_log_level(LogLevel::Trace);
  testing::internal::CaptureStderr();
  log_line(LogLevel::Off, "never");
  log_line(LogLevel::Trace, "fine");
  log_line(LogLevel::Error, "bad");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(log_level(), LogLevel::Trace);
  set_log_level(before);
  EXPECT_EQ(log_rank(), std::nullopt);
  EXPECT_EQ(text, "penstock trace: fine\npenstock error: bad\n");
}

// Runs in its own process because the environment is read only once.
TEST(BaseLog, IsEnabledByEnvironment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto lines = [](const char* value) {
    setenv("PENSTOCK_LOG", value, 1);
    log_line(LogLevel::Info, "shown");
    log_line(LogLevel::Debug, "hidden");
    std::exit(0);
  };
  const testing::ExitedWithCode fine(0);
  EXPECT_EXIT(lines("info"), fine, "^penstock info: shown\n$");
  EXPECT_EXIT(lines(""), fine, "^$");
  EXPECT_EXIT(lines("loud"), fine, "^penstock warn: PENSTOCK_LOG=loud is not a log level [^\n]*\n$");
}

TEST(BaseLog, ParsesLevelsStrictly) {
  EXPECT_EQ(try_parse_log_level("off"), LogLevel::Off);
  EXPECT_EQ(try_parse_log_level("error"), LogLevel::Error);
  EXPECT_EQ(try_parse_log_level("warn"), LogLevel::Warn);
  EXPECT_EQ(try_parse_log_level("info"), LogLevel::Info);
  EXPECT_EQ(try_parse_log_level("debug"), LogLevel::Debug);
  EXPECT_EQ(try_parse_log_level("trace"), LogLevel::Trace);
  EXPECT_EQ(try_parse_log_level("verbose"), std::nullopt);
}

}  // namespace
}  // namespace penstock
