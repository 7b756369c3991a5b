// Tests of the JSON reader: kinds of values, order and duplicates of members, limited nesting, short errors.
#include "base/io/json_reader.h"

#include "support/error_message.h"

#include <penstock/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>

namespace penstock {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string parse_error(const std::string& text) {
  return test::error_message<ParseError>([&] { parse_json(text, "here"); });
}

std::vector<std::string> names_of(const JsonValue& value) {
  std::vector<std::string> names;
  for (const auto& [name, member] : object_at(value, "here")) names.push_back(name);
  return names;
}

std::string nested(int depth, const std::string& open, const std::string& close) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += open;
  text += "0";
  for (int i = 0; i < depth; ++i) text += close;
  return text;
}

TEST(BaseJsonReader, ReadsEveryKind) {
  const JsonValue json = parse_json(
      R"( [null, true, -3, 7, 2.5, "a\u00e9\n", [], {}, 18446744073709551615, 36893488147419103232] )",
      "here");
  const JsonArray& items = array_at(json, "here");
  ASSERT_THAT(items, SizeIs(10U));
  EXPECT_TRUE(items[0].is_null());
  EXPECT_EQ(items[1].boolean(), true);
  EXPECT_EQ(items[2].integer(), -3);
  EXPECT_EQ(items[2].unsigned_integer(), std::nullopt);
  EXPECT_EQ(items[3].integer(), 7);
  EXPECT_EQ(items[3].unsigned_integer(), 7U);
  EXPECT_EQ(items[3].number(), 7.0);
  EXPECT_EQ(items[4].number(), 2.5);
  EXPECT_FALSE(items[4].is_integer());
  EXPECT_EQ(string_at(items[5], "here"), "a\xc3\xa9\n");
  EXPECT_THAT(array_at(items[6], "here"), SizeIs(0U));
  EXPECT_THAT(object_at(items[7], "here"), SizeIs(0U));
  EXPECT_TRUE(items[8].is_integer());
  EXPECT_EQ(items[8].integer(), std::nullopt);
  EXPECT_EQ(items[8].unsigned_integer(), 18446744073709551615ULL);
  EXPECT_EQ(items[8].number(), std::ldexp(1.0, 64));
  EXPECT_EQ(items[0].number(), std::nullopt);
  EXPECT_EQ(parse_json("0", "here").unsigned_integer(), 0U);
  EXPECT_EQ(items[9].number(), std::ldexp(1.0, 65));
  EXPECT_FALSE(items[9].is_integer());
}

TEST(BaseJsonReader, ReadsBytes) {
  const std::vector<std::uint8_t> bytes = {'[', '7', ']'};
  EXPECT_EQ(array_at(parse_json(bytes, "here"), "here").at(0).integer(), 7);
}

TEST(BaseJsonReader, KeepsMemberOrderAndLastDuplicate) {
  const JsonValue json = parse_json(R"({"z": 1, "a": 2, "z": 3, "m": 4, "z": 5})", "here");
  EXPECT_THAT(names_of(json), ElementsAre("a", "m", "z"));
  EXPECT_EQ(integer_at(field(json, "z", "here"), "here"), 5);
  EXPECT_THAT(names_of(parse_json(R"({"z": 1, "a": 2})", "here")), ElementsAre("z", "a"));
  const JsonValue twice = parse_json(R"({"z": 1, "z": 2})", "here");
  EXPECT_THAT(names_of(twice), ElementsAre("z"));
  EXPECT_EQ(twice.object()->find("z")->integer(), 2);
}

TEST(BaseJsonReader, FindsMembersOfObjectsOfAnySize) {
  const unsigned seed = 11;
  std::mt19937 random(seed);
  for (int size = 0; size < 60; ++size) {
    std::map<std::string, int> expected;
    std::string text;
    for (int i = 0; i < size; ++i) {
      const std::string name = "n" + std::to_string(random() % 40);
      expected[name] = i;
      text += (i > 0 ? ", \"" : "\"") + name + "\": " + std::to_string(i);
    }
    const JsonValue json = parse_json("{" + text + "}", "here");
    EXPECT_THAT(object_at(json, "here"), SizeIs(expected.size())) << "seed " << seed << "\n" << text;
    for (int i = 0; i < 40; ++i) {
      const std::string name = "n" + std::to_string(i);
      const JsonValue* const found = json.object()->find(name);
      ASSERT_EQ(found != nullptr, expected.contains(name)) << "seed " << seed << "\n" << text;
      if (found != nullptr) {
        EXPECT_EQ(found->integer(), expected[name]) << "seed " << seed << "\n" << text;
      }
    }
  }
}

TEST(BaseJsonReader, LimitsNestingOfListsAndObjects) {
  for (const auto& [open, close] :
       {std::pair<std::string, std::string>{"[", "]"}, {"{\"a\":", "}"}, {"[{\"a\":", "}]"}}) {
    EXPECT_THAT(parse_error(nested(200'000, open, close)),
                HasSubstr("here: lists and objects are nested deeper than 500"));
    const int each = open.size() == 6 ? 2 : 1;
    EXPECT_EQ(parse_error(nested(kMaxJsonDepth / each, open, close)), "no error") << open;
    EXPECT_NE(parse_error(nested(kMaxJsonDepth / each + 1, open, close)), "no error") << open;
  }
  EXPECT_NE(parse_error(std::string(200'000, '[')), "no error");
}

TEST(BaseJsonReader, IgnoresBracketsInStrings) {
  const std::string brackets(1000, '[');
  EXPECT_EQ(parse_error("[\"" + brackets + "\"]"), "no error");
  EXPECT_EQ(parse_error("[\"\\\"" + brackets + "\"]"), "no error");
  EXPECT_EQ(parse_error("[\"\\\\\", \"" + brackets + "\"]"), "no error");
  EXPECT_EQ(parse_error(nested(100, "[\"]]]\", ", "]")), "no error");
}

TEST(BaseJsonReader, SiblingListsDoNotCountAsNesting) {
  std::string text = "[[]";
  for (int i = 0; i < 2000; ++i) text += ",[],{}";
  EXPECT_EQ(parse_error(text + "]"), "no error");
}

TEST(BaseJsonReader, ReportsShortErrorsWithPosition) {
  EXPECT_THAT(parse_error("{\"a\":\n1,]"),
              AllOf(HasSubstr("here: not valid JSON at line 2, column 3: syntax error"), HasSubstr("']'")));
  EXPECT_THAT(parse_error("[1e999]"), AllOf(HasSubstr("here: not valid JSON at byte "), HasSubstr("1e999")));
  EXPECT_THAT(parse_error(""), HasSubstr("not valid JSON at line 1, column 1"));
  EXPECT_THAT(parse_error("1 2"), HasSubstr("not valid JSON"));
  EXPECT_THAT(parse_error("[\"\xff\"]"), HasSubstr("not valid JSON"));
  const std::string unfinished = parse_error("{\"" + std::string(1'000'000, 'x'));
  const std::string prefix = "here: not valid JSON at ";
  EXPECT_TRUE(unfinished.starts_with(prefix + "line 1, column "));
  EXPECT_EQ(unfinished.find('\n'), prefix.size() + 300) << "the library's text is cut off";
}

TEST(BaseJsonReader, ReportsFieldsOfWrongKind) {
  const JsonValue json = parse_json(R"({"a": 1, "b": null, "c": "NaN", "d": 18446744073709551615})", "here");
  const auto problem = [](const auto& read) { return test::error_message<ParseError>(read); };
  EXPECT_EQ(optional_field(json, "b", "here"), nullptr);
  EXPECT_EQ(problem([&] { field(json, "b", "here"); }), "here: missing field b");
  EXPECT_EQ(problem([&] { string_at(field(json, "a", "here"), "here"); }), "here: expected a string");
  EXPECT_EQ(problem([&] { integer_at(field(json, "d", "here"), "here"); }),
            "here: the integer exceeds the range of int64");
  EXPECT_TRUE(std::isnan(real_at(field(json, "c", "here"), "here")));
  EXPECT_EQ(real_at(parse_json("\"Infinity\"", "here"), "here"), std::numeric_limits<double>::infinity());
  EXPECT_EQ(real_at(parse_json("\"-Infinity\"", "here"), "here"), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(real_at(parse_json("-2", "here"), "here"), -2);
  EXPECT_EQ(problem([] { real_at(parse_json("\"inf\"", "here"), "here"); }), "here: expected a number");
  EXPECT_EQ(problem([] { real_at(parse_json("null", "here"), "here"); }), "here: expected a number");
  EXPECT_EQ(problem([] { integer_at(parse_json("2.5", "here"), "here"); }), "here: expected an integer");
  EXPECT_EQ(problem([] { object_at(parse_json("[]", "here"), "here"); }), "here: expected an object");
  EXPECT_EQ(problem([&] { choice_at(json, "here"); }), "here: expected one entry, not a and c");
  EXPECT_EQ(choice_at(parse_json(R"({"x": null, "y": 2})", "here"), "here").name, "y");
}

}  // namespace
}  // namespace penstock
